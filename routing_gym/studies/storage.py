"""Episodes on disk: a Parquet file per shard, whole or not at all. Needs pyarrow (extra `studies`)."""

from __future__ import annotations

import io
import os
import uuid
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from routing_gym.evaluation.runner import Result

if TYPE_CHECKING:
    import pyarrow as pa

SHARDS, SUFFIX = "shards", ".parquet"
FILES_PER_FOLDER = 1000
# Columns that hold an episode's curves bear this before the curve's name.
CURVE = "curve."
SECONDS = "seconds"
KEY = ("router", "condition", "seed")


def arrow() -> Any:
    """Return pyarrow with its Parquet reader and its functions of columns.

    Raises:
        ImportError: it is not installed; says what to install.
    """
    try:
        import pyarrow
        import pyarrow.compute
        import pyarrow.parquet
    except ImportError as error:
        raise ImportError(
            'a study keeps its episodes as Parquet: pip install "routing-gym[studies]"', name="pyarrow"
        ) from error
    return pyarrow


def encode(results: Iterable[Result], seconds: float = 0.0) -> bytes:
    """Return episodes as a Parquet file, in the order given; what is undefined is null.

    Args:
        results: the episodes.
        seconds: how long they took.
    """
    pa = arrow()
    rows = [
        dict(zip(KEY, (job.router.label, job.condition.name, job.seed), strict=True))
        | {name: _plain(value) for name, value in metrics.items()}
        | {CURVE + name: _plain(curve) for name, curve in curves.items()}
        for job, metrics, curves in results
    ]
    # Columns that only some routers' rows have, such as a search's convergence.
    names = dict.fromkeys(name for row in rows for name in row)
    table = pa.table({name: [row.get(name) for row in rows] for name in names})
    table = table.replace_schema_metadata({SECONDS: repr(seconds)})
    buffer = io.BytesIO()
    pa.parquet.write_table(table, buffer, compression="zstd")
    return buffer.getvalue()


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value


def shard_path(folder: Path, number: int) -> Path:
    """Return the file of a shard in a part's folder."""
    return folder / SHARDS / f"{number // FILES_PER_FOLDER:04d}" / f"{number:08d}{SUFFIX}"


def write_shard(path: Path, data: bytes) -> None:
    """Write a shard's file so that it is seen whole or not at all, even after a loss of power."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # A name of its own, as another process may be writing the same shard.
    temporary = path.with_name(f"{path.stem}.{uuid.uuid4().hex}.part")
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def rows_in(path: Path) -> int | None:
    """Return how many episodes a shard's file holds; None where it is missing or damaged."""
    pa = arrow()
    try:
        return int(pa.parquet.read_metadata(path).num_rows)
    except (OSError, pa.ArrowInvalid):
        return None


def seconds_of(path: Path) -> float:
    """Return how long a shard's episodes took."""
    return float(arrow().parquet.read_schema(path).metadata[SECONDS.encode()])


def size_of(data: bytes) -> int:
    """Return how many bytes a shard takes up, uncompressed."""
    pa = arrow()
    return int(pa.parquet.read_table(pa.BufferReader(data)).nbytes)


def shard_files(folder: Path) -> list[Path]:
    """Return the files of a part's shards, in order."""
    return sorted((folder / SHARDS).glob(f"*/*{SUFFIX}"))


def read_table(files: Sequence[Path], columns: Sequence[str] | None = None, filters: Any = None) -> pa.Table:
    """Read shards as one table.

    Args:
        files: of the shards.
        columns: to read; None reads all. A shard without one has nulls there.
        filters: rows to keep, as pyarrow's.
    """
    pa = arrow()
    tables = []
    for path in files:
        file = pa.parquet.ParquetFile(path)
        held = None if columns is None else [name for name in columns if name in file.schema_arrow.names]
        table = file.read(columns=held)
        tables.append(table.filter(filters) if filters is not None else table)
    # A metric that is undefined throughout a shard has no type of its own there.
    return pa.concat_tables(tables, promote_options="permissive")
