"""Tables of recorded outcomes: one row per prompt, a score, a length and a cost per model."""

from __future__ import annotations

import csv
import gzip
import os
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from routing_gym.common.trace import MAX_TOKENS
from routing_gym.quality.columns import Columns
from routing_gym.quality.reading import CSV, PARQUET, Cells, TableError, read_cells

BYTES_PER_TOKEN = 4  # DESIGN 4

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class OutcomeTable:
    """What n prompts scored on K models, how long the answers were and what they cost.

    Attributes:
        source: the path that it was read from.
        ids: (n,), unique.
        prompts: (n,) texts; None where the text is not known.
        groups: (n,) tasks; "" where none is known.
        models: K names.
        prompt_tokens: (n,) float64, whole, at least 1; NaN where not recorded.
        scores: (n, K) float64 in [0, 1]; NaN where not recorded.
        completion_tokens: (n, K) float64, whole, at least 1; NaN where not recorded.
        costs: (n, K) float64, USD; NaN where not recorded.
        prompt_rows: (p,) int64, this table's rows in the order of the file of prompts; None without one.
        notes: what reading had to assume, a sentence each.
        estimated: fields of `Columns.named` whose tokens are estimated, such as "prompt_tokens".
    """

    source: str
    ids: tuple[str, ...]
    prompts: tuple[str | None, ...]
    groups: tuple[str, ...]
    models: tuple[str, ...]
    prompt_tokens: Floats
    scores: Floats
    completion_tokens: Floats
    costs: Floats
    prompt_rows: NDArray[np.int64] | None = None
    notes: tuple[str, ...] = ()
    estimated: frozenset[str] = frozenset()

    def take(self, rows: Sequence[int] | NDArray[np.int64]) -> OutcomeTable:
        """Return the table of some rows, in their order; its `prompt_rows` are None."""
        where = np.asarray(rows, dtype=np.int64)
        return OutcomeTable(
            self.source,
            tuple(self.ids[row] for row in where),
            tuple(self.prompts[row] for row in where),
            tuple(self.groups[row] for row in where),
            self.models,
            self.prompt_tokens[where],
            self.scores[where],
            self.completion_tokens[where],
            self.costs[where],
            notes=self.notes,
            estimated=self.estimated,
        )

    def index(self, models: Sequence[str]) -> NDArray[np.int64]:
        """Return the columns of some models.

        Raises:
            TableError: the table lacks some of them; the message lists these and what there is.
        """
        lacking = [name for name in dict.fromkeys(models) if name not in self.models]
        if lacking:
            raise TableError(
                f"{self.source} has no outcomes of {', '.join(lacking)}; it has those of "
                f"{', '.join(self.models)}"
            )
        return np.array([self.models.index(name) for name in models], dtype=np.int64)


def read_table(
    path: str | Path, columns: Columns, prompts: str | Path | None = None, *, allow_pickle: bool = False
) -> OutcomeTable:
    """Read a table of outcomes: CSV (also .csv.gz), Parquet, or a pickled pandas DataFrame.

    A file is read again only when it has changed. Further columns are ignored.

    Args:
        path: the table.
        columns: which of its columns holds what.
        prompts: a second file with the column `columns.id` and a column of prompt text, `columns.prompt` or
            "prompt". Its texts go before those of the table.
        allow_pickle: whether a pickle may be loaded. Loading one runs whatever code its author put into it.

    With `columns.estimate_tokens`, token columns that the table lacks are estimated: the tokens of a prompt
    are a quarter of its bytes (DESIGN 4), and at most what leaves a token to each answer at the cost recorded
    for it; the tokens of an answer are what its cost pays for beyond the prompt. `notes` says so.

    Raises:
        TableError: a file cannot be read, is a pickle that is not allowed, lacks a column, has no rows, or
            has a cell that is empty where that is not allowed, no number where one is due, or out of range,
            or an id twice. The message names the file, the line (in a CSV) or the row (in others, from 1),
            the column and the value.
        ImportError: the format needs a package that is not installed.
    """
    return _read(
        _version(path),
        columns.model_dump_json(),
        None if prompts is None else _version(prompts),
        allow_pickle,
    )


def _version(path: str | Path) -> tuple[str, int, int]:
    try:
        status = os.stat(path)
    except OSError as error:
        raise TableError(f"cannot read the table {path}: {error.strerror}") from error
    return os.fspath(path), status.st_mtime_ns, status.st_size


@lru_cache(maxsize=8)
def _read(
    table: tuple[str, int, int], columns_json: str, prompts: tuple[str, int, int] | None, allow_pickle: bool
) -> OutcomeTable:
    columns = Columns.model_validate_json(columns_json)
    named = columns.named()
    allow = columns.missing == "allow"
    optional = {"prompt"} if prompts is not None or allow else set()
    if columns.estimate_tokens:
        optional |= {field for field in named if field.endswith("_tokens")}
    cells = read_cells(table[0], named, optional, allow_pickle=allow_pickle)

    count = len(cells.rows)
    ids = cells.ids(columns.id) if columns.id else tuple(str(row + 1) for row in range(count))
    texts, prompt_rows = _prompts(cells, columns, ids, prompts and prompts[0], allow_pickle)
    notes: list[str] = []
    estimated: list[str] = []
    prompt_tokens = _tokens(cells, columns.prompt_tokens, 1, allow)
    answers = list(columns.models.values())
    scores = np.column_stack(
        [cells.numbers(model.score, 0, 1, "a number from 0 to 1", missing=allow) for model in answers]
    )
    costs = np.column_stack([_costs(cells, model.cost, allow) for model in answers])
    completion_tokens = np.column_stack(
        [_tokens(cells, model.completion_tokens, 0, allow) for model in answers]
    )
    if columns.estimate_tokens:
        estimated = _estimate(columns, cells, texts, prompt_tokens, completion_tokens, costs, notes)
    blank = completion_tokens == 0
    if blank.any():
        notes.append(f"Completion tokens recorded as 0 and taken as 1: {int(blank.sum()):,}.")
        completion_tokens[blank] = 1
    notes += _not_recorded(columns, texts, prompt_tokens, scores, completion_tokens, costs)
    groups = cells.texts(columns.group, missing=allow) if columns.group else [""] * count
    read = OutcomeTable(
        table[0],
        ids,
        tuple(texts),
        tuple(group or "" for group in groups),
        tuple(columns.models),
        prompt_tokens,
        scores,
        completion_tokens,
        costs,
        prompt_rows,
        tuple(notes),
        frozenset(estimated),
    )
    for field in fields(read):
        array = getattr(read, field.name)
        if isinstance(array, np.ndarray):
            array.flags.writeable = False  # shared by every user of the cache
    return read


def _tokens(cells: Cells, column: str | None, low: int, allow: bool) -> Floats:
    if column is None or column not in cells.columns:
        return np.full(len(cells.rows), np.nan)
    allowed = f"a whole number of tokens from {low} to {MAX_TOKENS}"
    return cells.numbers(column, low, MAX_TOKENS, allowed, whole=True, missing=allow)


def _costs(cells: Cells, column: str | None, allow: bool) -> Floats:
    if column is None:
        return np.full(len(cells.rows), np.nan)
    most = float(np.finfo(np.float64).max)
    return cells.numbers(column, 0, most, "a finite number of USD, not negative", missing=allow)


def _prompts(
    cells: Cells, columns: Columns, ids: tuple[str, ...], path: str | None, allow_pickle: bool
) -> tuple[list[str | None], NDArray[np.int64] | None]:
    allow = columns.missing == "allow"
    texts: list[str | None] = [None] * len(ids)
    if columns.prompt is not None and columns.prompt in cells.columns:
        texts = cells.texts(columns.prompt, missing=allow or path is not None)
    if path is None:
        return texts, None
    if columns.id is None:
        raise TableError(f"{path}: its prompts are found by id; `columns` must name the column `id`")
    column = columns.prompt or "prompt"
    given = read_cells(path, {"id": columns.id, "prompt": column}, allow_pickle=allow_pickle)
    row_of = {name: row for row, name in enumerate(ids)}
    rows = []
    for k, (name, text) in enumerate(zip(given.ids(columns.id), given.texts(column), strict=True)):
        if name not in row_of:
            given.refuse(k, columns.id, f"is no id of {cells.path}")
        rows.append(row_of[name])
        texts[rows[-1]] = text
    if not allow and None in texts:
        cells.refuse(texts.index(None), columns.id, f"has no prompt in {path}")
    return texts, np.array(rows, dtype=np.int64)


def _estimate(
    columns: Columns,
    cells: Cells,
    texts: list[str | None],
    prompt_tokens: Floats,
    completion_tokens: Floats,
    costs: Floats,
    notes: list[str],
) -> list[str]:
    """Fill in the tokens whose columns the table lacks, in place, and note that; return their fields."""
    filled = []
    models = list(columns.models.values())
    prices_in = np.array([np.nan if m.price_in_usd is None else m.price_in_usd for m in models])
    prices_out = np.array([np.nan if m.price_out_usd is None else m.price_out_usd for m in models])
    with np.errstate(divide="ignore", invalid="ignore"):
        if columns.prompt_tokens not in cells.columns:
            sizes = [np.nan if t is None else len(t.encode("utf-8", "surrogatepass")) for t in texts]
            # A whole number of tokens must not be lost to rounding: hence a hair more before the floor.
            paid = np.floor((costs * 1e6 - prices_out) / prices_in + 1e-6)
            paid[~np.isfinite(paid)] = np.inf
            quarter = np.rint(np.array(sizes) / BYTES_PER_TOKEN)
            prompt_tokens[:] = np.clip(np.minimum(quarter, paid.min(axis=1)), 1, MAX_TOKENS)
            known = np.isfinite(prompt_tokens)
            filled.append("prompt_tokens")
            less = int((paid.min(axis=1) < quarter)[known].sum())
            notes.append(
                f"Prompt tokens of {int(known.sum()):,} prompts are estimated: a quarter of the bytes"
                f"{f', in {less:,} of them less, as the recorded costs demand' if less else ''}."
            )
        estimated = []
        for k, (name, model) in enumerate(columns.models.items()):
            if model.completion_tokens in cells.columns:
                continue
            if model.cost is not None and prices_in[k] >= 0 and prices_out[k] > 0:
                left = np.rint((costs[:, k] * 1e6 - prices_in[k] * prompt_tokens) / prices_out[k])
                completion_tokens[:, k] = np.clip(left, 1, MAX_TOKENS)
                estimated.append(name)
            elif model.completion_tokens is not None:
                raise TableError(
                    f"{cells.path} lacks the column {model.completion_tokens!r} "
                    f"(models.{name}.completion_tokens); to estimate its tokens takes a cost column, "
                    "price_in_usd and a positive price_out_usd"
                )
    if estimated:
        notes.append(f"Completion tokens of {', '.join(estimated)} are estimated from the recorded costs.")
    return filled + [f"models.{name}.completion_tokens" for name in estimated]


def _not_recorded(
    columns: Columns,
    texts: list[str | None],
    prompt_tokens: Floats,
    scores: Floats,
    completion_tokens: Floats,
    costs: Floats,
) -> list[str]:
    count = len(texts)
    notes = []
    for what, lacking in (("text", texts.count(None)), ("a token count", int(np.isnan(prompt_tokens).sum()))):
        if lacking:
            notes.append(f"Prompts without {what}: {lacking:,} of {count:,}.")
    for field, values in (("score", scores), ("completion_tokens", completion_tokens), ("cost", costs)):
        by_count: dict[int, list[str]] = {}
        for (name, model), lacking in zip(
            columns.models.items(), np.isnan(values).sum(axis=0).tolist(), strict=True
        ):
            if lacking and getattr(model, field) is not None:
                by_count.setdefault(lacking, []).append(name)
        parts = [f"{lacking:,} of {', '.join(names)}" for lacking, names in sorted(by_count.items())]
        if parts:
            what = {"score": "Scores", "completion_tokens": "Completion tokens", "cost": "Costs"}[field]
            notes.append(f"{what} not recorded, of {count:,} prompts: {'; '.join(parts)}.")
    return notes


def write_table(table: OutcomeTable, path: str | Path, columns: Columns) -> None:
    """Write a table as CSV (also .csv.gz) or Parquet, so that `read_table` gives it back to the last digit.

    What `columns` names no column for is left out, and so are estimated tokens: what is in a file is taken
    for recorded, and reading it estimates them again.

    Raises:
        TableError: as `check_format`; the table lacks a model of `columns`, or a column would have to hold
            two different things.
        ImportError: Parquet needs pyarrow.
    """
    target = os.fspath(path)
    check_format(target)
    values: dict[str, list[Any]] = {
        "id": list(table.ids),
        "prompt": list(table.prompts),
        "group": [group or None for group in table.groups],
        "prompt_tokens": _whole(table.prompt_tokens),
    }
    for name, k in zip(columns.models, table.index(list(columns.models)), strict=True):
        values[f"models.{name}.score"] = _known(table.scores[:, k])
        values[f"models.{name}.completion_tokens"] = _whole(table.completion_tokens[:, k])
        values[f"models.{name}.cost"] = _known(table.costs[:, k])
    layout: dict[str, list[Any]] = {}
    for field, column in columns.named().items():
        if field in table.estimated:
            continue
        if layout.setdefault(column, values[field]) != values[field]:
            raise TableError(
                f"cannot write the table {target}: {column!r} ({field}) holds something else already"
            )
    if target.lower().endswith(PARQUET):
        _write_parquet(target, layout)
    else:
        opened: Any = gzip.open if target.lower().endswith(".gz") else open
        with opened(target, "wt", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(layout)
            writer.writerows(zip(*layout.values(), strict=True))


def check_format(path: str | Path) -> None:
    """Check that a table can be written to a file of this name.

    Raises:
        TableError: the name does not end in that of CSV or Parquet.
    """
    if not os.fspath(path).lower().endswith((*CSV, *PARQUET)):
        raise TableError(f"cannot write the table {path}: the name must end in {', '.join((*CSV, *PARQUET))}")


def _write_parquet(path: str, layout: dict[str, list[Any]]) -> None:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise ImportError(f"writing {path} needs pyarrow: pip install pyarrow") from None
    pyarrow.parquet.write_table(pyarrow.table(layout), path)


def _known(values: Floats) -> list[float | None]:
    return [None if value != value else value for value in values.tolist()]


def _whole(values: Floats) -> list[int | None]:
    return [None if value != value else int(value) for value in values.tolist()]
