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


def entry_point(function: F, *arguments: object) -> F:
    """Return `function` compiled for arguments of exactly the types of these.

    It skips Numba's look-up of types, which takes longer than a step of an environment does. It checks
    nothing: call it only with arrays of the same types, dimensions and (C) order. Without compilation
    (`NUMBA_DISABLE_JIT`) it is `function` itself.
    """
    overloads = getattr(function, "overloads", None)
    if overloads is None:
        return function
    types = tuple(numba.typeof(argument) for argument in arguments)
    function.compile(types)  # type: ignore[attr-defined]
    return cast(F, overloads[types].entry_point)
