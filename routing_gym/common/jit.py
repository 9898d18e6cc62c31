"""Numba compilation with an on-disk cache where one can be written."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

import numba

F = TypeVar("F", bound=Callable[..., object])


def njit(function: F) -> F:
    """Compile `function` with Numba, cached on disk if that is possible.

    Numba raises at decoration time when neither the package folder nor the user's cache folder can be
    written (a read-only install under a read-only home); the function is then compiled without a cache.
    """
    try:
        return cast(F, numba.njit(cache=True)(function))
    except RuntimeError as error:
        if "cannot cache function" not in str(error):
            raise
        return cast(F, numba.njit(function))
