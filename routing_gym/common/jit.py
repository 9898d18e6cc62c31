"""Numba compilation with an on-disk cache where one can be written."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar, cast

import numba

F = TypeVar("F", bound=Callable[..., object])


def njit(function: F) -> F:
    """Compile `function` with Numba, cached on disk if that is possible.

    Numba raises at decoration time when neither the package folder nor the user's cache folder can be
    written (a read-only install under a read-only home); the function is then compiled without a cache.
    """
    try:
        compiled = numba.njit(cache=True)(function)
    except RuntimeError as error:
        if "cannot cache function" not in str(error):
            raise
        return cast(F, numba.njit(function))
    _watch_callees(compiled, function)
    return cast(F, compiled)


def _watch_callees(compiled: Any, function: Any) -> None:
    """Make the cached code out of date when a kernel in another file changes.

    Numba watches only the file that a function is written in. Code that calls into another file would be
    used on after that one was edited, or upgraded.
    """
    file = getattr(getattr(compiled, "_cache", None), "_cache_file", None)
    if file is not None:  # it is None without compilation (`NUMBA_DISABLE_JIT`)
        folders = {_package_of(__file__), _package_of(function.__code__.co_filename)}
        file._source_stamp = (file._source_stamp, *(_kernels_hash(folder) for folder in sorted(folders)))


def _package_of(file: str) -> Path:
    """Return the folder of the outermost package that a source file lies in, or the file."""
    found = Path(file).resolve()
    while (found.parent / "__init__.py").is_file():
        found = found.parent
    return found


@lru_cache
def _kernels_hash(package: Path) -> str:
    """Return a hash of all source files of a package that hold compiled functions."""
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        source = path.read_bytes()
        if b"njit" in source:
            digest.update(source)
    return digest.hexdigest()


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
