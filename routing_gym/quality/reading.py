"""Reading the cells of a table: CSV, Parquet, and pickles where they are allowed."""

from __future__ import annotations

import csv
import difflib
import gzip
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

CSV = (".csv", ".csv.gz")
PARQUET = (".parquet",)
PICKLE = (".pkl", ".pkl.gz", ".pickle", ".pickle.gz")
LONGEST_FIELD = 2**31 - 1  # the most that the csv module takes on every platform
SEPARATORS = (";", "\t")  # of what other programs call CSV
WORDS = {"": np.nan, "true": 1.0, "false": 0.0}

# Given a file's column names, the positions of those to read.
Choose = Callable[[list[str]], list[int]]


class TableError(ValueError):
    """A table that cannot be used; the message names file, row, column, the value and what is allowed."""


class LackingColumns(TableError):
    """A table without columns that it should have."""


@dataclass(frozen=True)
class Cells:
    """Some columns of a file, as they stand there.

    Attributes:
        path: the file.
        columns: the cells by column name.
        rows: where each row is: its line in a CSV, its number from 1 in other files.
        unit: "line" or "row", what `rows` counts.
    """

    path: str
    columns: Mapping[str, Sequence[Any]]
    rows: Sequence[int]
    unit: str

    def numbers(
        self,
        column: str,
        low: float,
        high: float,
        allowed: str,
        *,
        whole: bool = False,
        missing: bool = False,
    ) -> NDArray[np.float64]:
        """Return a column of numbers from `low` to `high`; empty cells are NaN, where `missing` allows them.

        Raises:
            TableError: a cell holds something else; `allowed` says what must be there.
        """
        cells = self.columns[column]
        values = np.empty(len(cells))
        for row, cell in enumerate(cells):
            try:
                values[row] = _number(cell)
            except (ValueError, TypeError):
                self.refuse(row, column, f"must be {allowed}")
        empty = np.isnan(values)
        good = (values >= low) & (values <= high)
        if whole:
            good &= values == np.rint(values)
        for row in np.flatnonzero(~good & ~empty)[:1]:
            self.refuse(row, column, f"must be {allowed}")
        if not missing:
            for row in np.flatnonzero(empty)[:1]:
                self.refuse(row, column, f"must be {allowed} (`missing: allow` would let cells be empty)")
        return values

    def texts(self, column: str, *, missing: bool = False) -> list[str | None]:
        """Return a column of text; empty and blank cells are None, where `missing` allows them.

        Raises:
            TableError: a cell is empty, or holds neither text nor a whole number.
        """
        texts: list[str | None] = []
        for row, cell in enumerate(self.columns[column]):
            if cell is None or cell != cell or (isinstance(cell, str) and not cell.strip()):
                if not missing:
                    self.refuse(row, column, "must not be empty")
                texts.append(None)
            elif isinstance(cell, str) or (isinstance(cell, int) and not isinstance(cell, bool)):
                texts.append(str(cell))
            else:
                self.refuse(row, column, "must be text or a whole number")
        return texts

    def ids(self, column: str) -> tuple[str, ...]:
        """Return a column of unique ids.

        Raises:
            TableError: an id is empty or there twice.
        """
        ids = tuple(text for text in self.texts(column) if text is not None)
        if len(set(ids)) < len(ids):
            first: dict[str, int] = {}
            for row, name in enumerate(ids):
                if first.setdefault(name, row) != row:
                    self.refuse(
                        row, column, f"is the id of {self.unit} {self.rows[first[name]]} too; ids are unique"
                    )
        return ids

    def refuse(self, row: int, column: str, what: str) -> NoReturn:
        """Raise a TableError about a cell."""
        value = repr(self.columns[column][row])
        if len(value) > 80:
            value = f"{value[:77]}..."
        raise TableError(f"{self.path}, {self.unit} {self.rows[row]}: {column} = {value}: {what}")


def _number(cell: Any) -> float:
    if cell is None or cell == "":
        return np.nan
    if isinstance(cell, str) and "_" in cell:
        raise ValueError  # Python takes 1_0 for 10
    try:
        return float(cell)
    except ValueError:
        # A column of booleans reads the same in a CSV as in Parquet.
        word = cell.strip().lower()
        if word not in WORDS:
            raise
        return WORDS[word]


def read_cells(
    path: str, named: Mapping[str, str], optional: Collection[str] = (), *, allow_pickle: bool = False
) -> Cells:
    """Read the columns `named`, by field; those of `optional` fields may be absent.

    Raises:
        LackingColumns: the file lacks columns; the message lists these and what there is.
        TableError: the file cannot be read, is a pickle that is not allowed, or has no rows.
        ImportError: the format needs a package that is not installed.
    """
    name = path.lower()
    if name.endswith(CSV):
        read = _read_csv
    elif name.endswith(PARQUET):
        read = _read_parquet
    elif name.endswith(PICKLE):
        if not allow_pickle:
            raise TableError(
                f"{path} is a pickle: loading one runs whatever code its author put into it. "
                "If you trust where it comes from, --allow-pickle (allow_pickle=True) loads it, and "
                "`routing-gym quality convert --allow-pickle` makes a CSV or Parquet file of it once"
            )
        read = _read_pickle
    else:
        known = ", ".join((*CSV, *PARQUET, *PICKLE))
        raise TableError(f"{path}: is of no known format; the name must end in one of {known}")
    try:
        cells = read(path, lambda names: _choose(path, names, named, optional))
    except OSError as error:
        raise TableError(f"cannot read the table {path}: {error.strerror or error}") from error
    if not cells.rows:
        raise TableError(f"{path} has a header but no rows")
    return cells


def _choose(path: str, names: list[str], named: Mapping[str, str], optional: Collection[str]) -> list[int]:
    wanted = dict.fromkeys(named.values())
    lacking = {
        field: column for field, column in named.items() if column not in names and field not in optional
    }
    if lacking:
        for separator in SEPARATORS:
            if len(names) == 1 and separator in names[0]:
                raise TableError(f"{path} is separated by {separator!r}; must be by commas")
        near = dict.fromkeys(
            near
            for column in lacking.values()
            for near in difflib.get_close_matches(column, names, n=1, cutoff=0.8)
        )
        raise LackingColumns(
            f"{path} lacks the columns "
            + ", ".join(f"{column!r} ({field})" for field, column in lacking.items())
            + (f"; did you mean {', '.join(map(repr, near))}?" if near else ";")
            + f" it has {', '.join(map(repr, names)) or 'none'}"
        )
    for column in wanted:
        if names.count(column) > 1:
            raise TableError(f"{path} has {names.count(column)} columns named {column!r}")
    return [names.index(column) for column in wanted if column in names]


def _read_csv(path: str, choose: Choose) -> Cells:
    opened: Any = gzip.open if path.lower().endswith(".gz") else open
    limit = csv.field_size_limit(LONGEST_FIELD)
    try:
        with opened(path, "rt", newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file)
            names = [name.strip() for name in next(reader, [])]
            where = choose(names)
            pick = itemgetter(*where)
            rows: list[int] = []
            picked: list[Any] = []
            line = reader.line_num + 1
            for row in reader:
                if len(row) == len(names):
                    rows.append(line)
                    picked.append(pick(row))
                elif row:
                    raise TableError(
                        f"{path}, line {line}: has {len(row)} fields; the header has {len(names)}"
                    )
                line = reader.line_num + 1  # a quoted field may span lines
    except (UnicodeDecodeError, csv.Error, gzip.BadGzipFile, EOFError, zlib.error) as error:
        kind = "gzip file of CSV text" if opened is gzip.open else "CSV text file"
        raise TableError(f"{path} is not a {kind}: {error}") from error
    finally:
        csv.field_size_limit(limit)
    columns = [picked] if len(where) == 1 else list(zip(*picked, strict=True))
    return Cells(path, {names[k]: cells for k, cells in zip(where, columns, strict=False)}, rows, "line")


def _read_parquet(path: str, choose: Choose) -> Cells:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise ImportError(f"reading {path} needs pyarrow: pip install pyarrow") from None
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            found = list(file.schema_arrow.names)
            where = choose([name.strip() for name in found])
            table = file.read(columns=[found[k] for k in where])
    except pyarrow.ArrowException as error:
        raise TableError(f"{path} is not a Parquet file: {error}") from error
    # By name: the file gives its columns in its own order.
    columns = {found[k].strip(): table.column(found[k]).to_pylist() for k in where}
    return Cells(path, columns, range(1, table.num_rows + 1), "row")


def _read_pickle(path: str, choose: Choose) -> Cells:
    try:
        import pandas
    except ImportError:
        raise ImportError(f"reading {path} needs pandas: pip install pandas") from None
    try:
        frame = pandas.read_pickle(path)
    except OSError:
        raise
    except Exception as error:  # loading a pickle may raise anything
        raise TableError(f"{path} is not a pickle that can be loaded: {error!r}") from error
    if not isinstance(frame, pandas.DataFrame):
        raise TableError(f"{path} holds a {type(frame).__name__}; it must be a pandas DataFrame")
    names = [str(name).strip() for name in frame.columns]
    columns = {}
    for k in choose(names):
        cells = frame.iloc[:, k].astype(object).tolist()
        columns[names[k]] = [None if cell is pandas.NA else cell for cell in cells]
    return Cells(path, columns, range(1, len(frame) + 1), "row")
