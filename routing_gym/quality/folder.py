"""Saved predictors: a folder of a FAISS index, arrays and a JSON manifest, checked before it is read."""

from __future__ import annotations

import hashlib
import json
import os
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from routing_gym.common.folders import replaced

FORMAT = 1
INDEX, ARRAYS, MANIFEST = "index.faiss", "arrays.npz", "manifest.json"
EVALUATION = "evaluation"  # the sub-folder of a saved predictor's figures
EVALUATION_FILES = (
    "summary.json",
    "models.csv",
    "groups.csv",
    "deferral.csv",
    "cross_validation_neighbours.csv",
    "cross_validation_clusters.csv",
    "assessment.png",
    "cross_validation.png",
    "deferral.png",
)


class FolderError(ValueError):
    """A folder that cannot be read or written; the message names the file and what differs."""


class Contents(NamedTuple):
    """What a folder holds.

    Attributes:
        details: what JSON can hold: models, sizes, settings.
        arrays: arrays of numbers or text, by name.
        index: a FAISS index.
    """

    details: dict[str, Any]
    arrays: dict[str, NDArray[Any]]
    index: Any


def import_faiss() -> Any:
    """Return the module `faiss`.

    Raises:
        ImportError: it is not installed; says what to install.
    """
    try:
        import faiss
    except ImportError as error:
        raise ImportError(
            f'retrieval needs FAISS, and importing it failed ({error}): pip install "routing-gym[quality]"'
        ) from error
    return faiss


def save(folder: str | Path, kind: str, contents: Contents, *, overwrite: bool = False) -> None:
    """Write a folder. It appears complete or not at all: it is written beside its place and then renamed.

    Args:
        folder: where; its parent is made where it is missing.
        kind: what the folder holds; `load` asks for it.
        contents: what to write.
        overwrite: whether a folder saved earlier may be replaced. Its `EVALUATION` goes with it.

    Raises:
        FolderError: as `check_free`.
    """
    faiss = import_faiss()
    check_free(folder, overwrite)
    with replaced(Path(folder)) as new:
        faiss.write_index(contents.index, os.fspath(new / INDEX))
        # Typing takes `arrays` for the keyword `allow_pickle` too.
        np.savez_compressed(new / ARRAYS, **contents.arrays)  # type: ignore[arg-type]
        manifest = {
            "format": FORMAT,
            "kind": kind,
            "versions": {
                "routing-gym": version("routing-gym"),
                "faiss": faiss.__version__,
                "numpy": np.__version__,
            },
            "details": contents.details,
            "files": {name: _fingerprint(new / name) for name in (INDEX, ARRAYS)},
        }
        (new / MANIFEST).write_bytes(_rendered(manifest))


def check_free(folder: str | Path, overwrite: bool) -> None:
    """Check that `save` may write a folder.

    Raises:
        FolderError: there is something at `folder`, and `overwrite` is false or it is no saved folder.
    """
    place = Path(folder)
    if not place.exists():
        return
    if not overwrite:
        raise FolderError(f"{place}: is there already; overwrite replaces a folder saved earlier")
    others = sorted(_others(place))
    if others:
        raise FolderError(f"{place}: holds {others[0]}, which no saved folder does; it is not replaced")


def _others(place: Path) -> Iterator[str]:
    """Yield what is there beside what is saved and evaluated."""
    if not place.is_dir():
        yield place.name
        return
    for path in place.iterdir():
        if path.name == EVALUATION and path.is_dir():
            others = {inside.name for inside in path.iterdir()} - set(EVALUATION_FILES)
            yield from (f"{EVALUATION}/{name}" for name in others)
        elif path.name not in (INDEX, ARRAYS, MANIFEST):
            yield path.name


def load(folder: str | Path, kind: str) -> Contents:
    """Read a folder, once its manifest and every file's size and SHA-256 have been checked. It has no pickle.

    Args:
        folder: the folder that `save` wrote.
        kind: what it must hold.

    Raises:
        FolderError: a file is missing, damaged, or of another format or kind; says what differs.
    """
    faiss = import_faiss()
    place = Path(folder)
    manifest = _manifest(place, kind)
    for name, due in manifest["files"].items():
        if not (place / name).is_file():
            raise FolderError(f"{place}: {name} is missing")
        found = _fingerprint(place / name)
        for what in ("bytes", "sha256"):
            if found[what] != due[what]:
                raise FolderError(
                    f"{place}: {name} is damaged: {what} = {found[what]}; {MANIFEST} says {due[what]}"
                )
    try:
        index = faiss.read_index(os.fspath(place / INDEX))
    except RuntimeError as error:
        raise FolderError(
            f"{place}: {INDEX}, written by FAISS {manifest['versions'].get('faiss')}, cannot be read by "
            f"FAISS {faiss.__version__}: {error}"
        ) from error
    try:
        with open(place / ARRAYS, "rb") as data, np.load(data, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except (ValueError, zipfile.BadZipFile) as error:
        raise FolderError(f"{place}: {ARRAYS} cannot be read: {error}") from error
    return Contents(manifest["details"], arrays, index)


class Due(NamedTuple):
    """What a saved array must be.

    Attributes:
        shape: after the manifest's models and sizes.
        kind: of its dtype, as numpy codes it: "f", "i" or "U", text.
        low, high: between what its numbers are; NaN passes.
    """

    shape: tuple[int, ...]
    kind: str
    low: float = 0.0
    high: float = float(np.finfo(np.float64).max)


def check_arrays(folder: str | Path, contents: Contents, arrays: Mapping[str, Due]) -> None:
    """Check that the arrays are what they must be.

    Raises:
        FolderError: an array is missing, or has another shape, type or range; says both.
    """
    for name, due in arrays.items():
        found = contents.arrays.get(name)
        what = f"{folder}: {ARRAYS}: {name}"
        if found is None or found.shape != due.shape:
            shape = "none" if found is None else found.shape
            raise FolderError(f"{what} has shape {shape}; it must be {due.shape}, after {MANIFEST}")
        if found.dtype.kind != due.kind:
            raise FolderError(f"{what} holds {found.dtype}; its kind must be {due.kind!r}")
        if due.kind != "U":
            wrong = found[(found < due.low) | (found > due.high)]
            if wrong.size:
                raise FolderError(f"{what} holds {wrong[0]:g}; must be from {due.low:g} to {due.high:g}")


@contextmanager
def putting_together(folder: str | Path) -> Iterator[None]:
    """Say which folder it is that lacks what is asked of its contents, or holds something else.

    Raises:
        FolderError: instead of the errors that missing and wrong details lead to.
    """
    try:
        yield
    except FolderError:
        raise
    except KeyError as error:
        raise FolderError(f"{folder}: {MANIFEST}: details lack {error}") from error
    except (TypeError, ValueError) as error:
        raise FolderError(f"{folder}: {MANIFEST}: {error}") from error


def _manifest(place: Path, kind: str) -> dict[str, Any]:
    path = place / MANIFEST
    if not place.is_dir():
        raise FolderError(f"{place}: there is no such folder")
    if not path.is_file():
        raise FolderError(f"{place}: {MANIFEST} is missing")
    data = path.read_bytes()
    try:
        manifest = json.loads(data)
    except ValueError as error:
        raise FolderError(f"{path}: is not valid JSON: {error}") from error
    if not isinstance(manifest, dict):
        raise FolderError(f"{path}: must hold an object, not {type(manifest).__name__}")
    if manifest.get("format") != FORMAT:
        raise FolderError(
            f"{path}: format = {manifest.get('format')!r}; this version of routing-gym reads format {FORMAT}"
        )
    due = manifest.pop("sha256", None)
    if _rendered(manifest) != data:
        raise FolderError(f"{path}: was changed; its sha256 says {due}")
    if manifest.get("kind") != kind:
        raise FolderError(f"{path}: kind = {manifest.get('kind')!r}; expected {kind!r}")
    for part in ("versions", "details", "files"):
        if not isinstance(manifest.get(part), dict):
            raise FolderError(f"{path}: {part} = {manifest.get(part)!r}; must be an object")
    files = manifest["files"]
    if set(files) != {INDEX, ARRAYS}:
        raise FolderError(f"{path}: files are {', '.join(files) or 'none'}; must be {INDEX}, {ARRAYS}")
    for name, due in files.items():
        if not isinstance(due, dict) or set(due) != {"bytes", "sha256"}:
            raise FolderError(f"{path}: files.{name} = {due!r}; must be an object of bytes and sha256")
    return manifest


def _fingerprint(path: Path) -> dict[str, Any]:
    data = path.read_bytes()
    return {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def _rendered(manifest: dict[str, Any]) -> bytes:
    """Return the file of a manifest, which ends with the hash of what is before."""
    digest = hashlib.sha256(json.dumps(manifest).encode()).hexdigest()
    return (json.dumps({**manifest, "sha256": digest}, indent=2) + "\n").encode()
