"""Embeddings in a file: written once, and matched to a table's rows when read."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from routing_gym.quality.embedding import EmbeddingError, unit_rows
from routing_gym.quality.tables import OutcomeTable


def write_embeddings(path: str | Path, ids: Sequence[str], embeddings: NDArray[np.float32]) -> None:
    """Write an .npz of `ids` (n,) and `embeddings` (n, D) float32, with rows of length 1.

    Raises:
        EmbeddingError: the shapes differ, an id is there twice, or a row is zero or not finite.
    """
    if embeddings.ndim != 2 or len(embeddings) != len(ids):
        raise EmbeddingError(
            f"embeddings of shape {embeddings.shape} for {len(ids)} ids; must be (n, D) and n"
        )
    _refuse_repeated(path, ids)
    rows = unit_rows(embeddings, "row")
    with open(path, "wb") as file:  # np.savez would add a suffix to a path
        np.savez(file, ids=np.array(list(ids), dtype=np.str_), embeddings=rows)


def read_embeddings(path: str | Path, table: OutcomeTable) -> NDArray[np.float32]:
    """Return (n, D) float32: a row of length 1 per row of the table, all NaN where the file has none.

    The file is an .npz with one array of floats (rows, D) and perhaps one of ids (rows,), text or whole
    numbers; or an .npy of the first. Without ids (Python objects, which only a pickle could read, count as
    none) the rows are those of the table, or those of its file of prompts, in order.

    Raises:
        EmbeddingError: the file cannot be read or has other arrays, an id twice or one that the table lacks,
            a row that is zero or not finite, or, without ids, a number of rows that fits nothing or leaves a
            choice of two orders.
    """
    vectors, ids = _arrays(path)
    if ids is None:
        rows = _rows_in_order(path, len(vectors), table)
    else:
        _refuse_repeated(path, ids)
        where = {name: row for row, name in enumerate(table.ids)}
        strange = [name for name in ids if name not in where]
        if strange:
            raise EmbeddingError(
                f"{path}: {len(strange)} of {len(ids)} ids are not in {table.source}, first {strange[0]!r}"
            )
        rows = np.array([where[name] for name in ids], dtype=np.int64)
    unknown = np.flatnonzero(np.isnan(vectors).any(axis=1))
    if len(unknown):
        raise EmbeddingError(
            f"{path}, row {unknown[0] + 1}: the embedding holds NaN; leave rows without embedding out of the "
            "file, and give ids"
        )
    found = np.full((len(table.ids), vectors.shape[1]), np.nan, dtype=np.float32)
    found[rows] = unit_rows(vectors, f"{path}, row")
    return found


def _arrays(path: str | Path) -> tuple[NDArray[np.floating[Any]], list[str] | None]:
    """Return the embeddings and, where they can be read, their ids."""
    arrays: dict[str, NDArray[Any] | None]
    try:
        with open(path, "rb") as start:
            single = start.read(len(np.lib.format.MAGIC_PREFIX)) == np.lib.format.MAGIC_PREFIX
        if single:
            arrays = {"the array": np.load(path, allow_pickle=False)}
        else:
            # np.load asks for an archive's magic number only: it takes other files for a pickle.
            with zipfile.ZipFile(path), np.load(path, allow_pickle=False) as file:
                arrays = {name: _array(file, name) for name in file.files}
    except OSError as error:
        raise EmbeddingError(f"cannot read {path}: {error.strerror}") from error
    except (zipfile.BadZipFile, zlib.error, ValueError) as error:
        raise EmbeddingError(f"{path} is no .npz or .npy file, or is damaged: {error}") from error
    vectors = [array for array in arrays.values() if array is not None and array.ndim == 2]
    ids = [array for array in arrays.values() if array is not None and array.ndim == 1]
    fits = len(vectors) == 1 and vectors[0].dtype.kind == "f" and vectors[0].size and len(ids) <= 1
    if not fits or any(array.dtype.kind not in "iuU" or len(array) != len(vectors[0]) for array in ids):
        held = [
            f"{name} (objects)" if array is None else f"{name} ({array.dtype}, {array.shape})"
            for name, array in arrays.items()
        ]
        raise EmbeddingError(
            f"{path} holds {', '.join(held) or 'nothing'}; must hold one array of floats (rows, D) and at "
            "most one of ids (rows,), text or whole numbers"
        )
    return vectors[0], [str(name) for name in ids[0]] if ids else None


def _array(file: Any, name: str) -> NDArray[Any] | None:
    try:
        return file[name]
    except ValueError as error:
        if "allow_pickle" in str(error):  # objects
            return None
        raise


def _rows_in_order(path: str | Path, count: int, table: OutcomeTable) -> NDArray[np.int64]:
    """Return the table's rows that a file without ids holds."""
    everything = np.arange(len(table.ids), dtype=np.int64)
    candidates = [rows for rows in (everything, table.prompt_rows) if rows is not None and len(rows) == count]
    if not candidates:
        prompts = "" if table.prompt_rows is None else f", its file of prompts {len(table.prompt_rows)}"
        raise EmbeddingError(
            f"{path} has {count} rows and no ids that can be read without pickle, so they must be those of "
            f"{table.source} in order, which has {len(table.ids)} rows{prompts}"
        )
    if not np.array_equal(candidates[0], candidates[-1]):
        raise EmbeddingError(
            f"{path} has no ids that can be read without pickle, and as many rows as both {table.source} and "
            "its file of prompts, whose order differs; write the embeddings with ids"
        )
    return candidates[0]


def _refuse_repeated(where: str | Path, ids: Sequence[str]) -> None:
    first: dict[str, int] = {}
    for row, name in enumerate(ids):
        if name in first:
            raise EmbeddingError(f"{where}: rows {first[name] + 1} and {row + 1} have the same id, {name!r}")
        first[name] = row
