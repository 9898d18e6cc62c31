"""Reading traces of real arrivals: Azure's LLM inference format and a generic CSV."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

AZURE_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
GENERIC_COLUMNS = ("arrival_s", "prompt_tokens", "output_tokens")
MAX_TOKENS = 2**24  # counts up to here are exact in the float32 of an observation


class TraceError(ValueError):
    """A trace that cannot be used; the message names the file, the line and what is allowed."""


@dataclass(frozen=True)
class Trace:
    """Arrivals of a real system, in time order.

    Attributes:
        arrival_ms: (n,) float64, from the first row on.
        prompt_tokens: (n,) int64.
        output_tokens: (n,) int64.
    """

    arrival_ms: NDArray[np.float64]
    prompt_tokens: NDArray[np.int64]
    output_tokens: NDArray[np.int64]

    @property
    def rate_per_ms(self) -> float:
        """Mean arrival rate over the trace."""
        return (len(self.arrival_ms) - 1) / float(self.arrival_ms[-1])


def read_trace(path: str | Path) -> Trace:
    """Read a CSV of arrivals; the header tells which of the two formats it is.

    Azure's has TIMESTAMP (such as 2023-11-16 18:15:46.6805900), ContextTokens and GeneratedTokens; the
    generic one arrival_s, prompt_tokens and output_tokens. Further columns are ignored. A file is read
    again only when it has changed.

    Raises:
        TraceError: the file cannot be read, is in neither format, has fewer than two distinct times, or
            has a row that is malformed, out of order, or whose counts are missing or negative. The
            message gives the line number.
    """
    file = Path(path)
    try:
        status = file.stat()
    except OSError as error:
        raise TraceError(f"cannot read the trace {file}: {error.strerror}") from error
    return _read(os.fspath(file), status.st_mtime_ns, status.st_size)


@lru_cache(maxsize=8)
def _read(path: str, modified: int, size: int) -> Trace:
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            rows = list(_rows(path, csv.reader(file)))
    except OSError as error:
        raise TraceError(f"cannot read the trace {path}: {error.strerror}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise TraceError(f"{path} is not a CSV text file: {error}") from error
    if len(rows) < 2 or rows[-1][0] == rows[0][0]:
        raise TraceError(f"{path} has {len(rows)} arrivals; a trace needs two at different times")
    start = rows[0][0]
    # Timestamps are whole numbers of ns, so that their differences are exact.
    trace = Trace(
        np.array([(time - start) / 1_000_000 for time, _, _ in rows]),
        np.array([prompt for _, prompt, _ in rows], dtype=np.int64),
        np.array([output for _, _, output in rows], dtype=np.int64),
    )
    for array in (trace.arrival_ms, trace.prompt_tokens, trace.output_tokens):
        array.flags.writeable = False  # shared by every user of the cache
    return trace


def _rows(path: str, reader: Any) -> Iterator[tuple[float, int, int]]:
    header = [name.strip() for name in next(reader, [])]
    formats = ((AZURE_COLUMNS, _timestamp), (GENERIC_COLUMNS, _seconds))
    found = [known for known in formats if set(known[0]) <= set(header)]
    if not found:
        raise TraceError(
            f"{path}, line 1: the columns are {', '.join(header) or 'none'}; a trace has "
            f"{', '.join(AZURE_COLUMNS)} or {', '.join(GENERIC_COLUMNS)}"
        )
    columns, parse = found[0]
    where = [header.index(name) for name in columns]
    previous: float | None = None
    for row in reader:
        line = reader.line_num  # a quoted field may span lines
        if not row:
            continue
        try:
            cells = [row[index].strip() for index in where]
        except IndexError:
            raise TraceError(
                f"{path}, line {line}: has {len(row)} fields; the header has {len(header)}"
            ) from None
        try:
            time = parse(cells[0])
        except ValueError as error:
            raise TraceError(f"{path}, line {line}: {columns[0]} = {cells[0]!r}: {error}") from None
        if previous is not None and time < previous:
            raise TraceError(
                f"{path}, line {line}: {columns[0]} = {cells[0]!r} is before the line above; "
                "times must not decrease"
            )
        previous = time
        prompt, output = (_count(path, line, columns[k], cells[k]) for k in (1, 2))
        yield time, prompt, output


def _timestamp(text: str) -> int:
    """Return a timestamp as a whole number of ns: a float would be off by microseconds."""
    seconds, _, fraction = text.partition(".")
    try:
        moment = datetime.strptime(seconds, "%Y-%m-%d %H:%M:%S")
    except ValueError:
        raise ValueError("must look like 2023-11-16 18:15:46.6805900") from None
    if fraction and not (fraction.isascii() and fraction.isdigit() and len(fraction) <= 9):
        raise ValueError("the fraction of a second must be up to nine digits")
    whole = moment.toordinal() * 86_400 + moment.hour * 3600 + moment.minute * 60 + moment.second
    return whole * 1_000_000_000 + int(fraction.ljust(9, "0"))


def _seconds(text: str) -> float:
    """Return a number of seconds as ns."""
    try:
        value = float(text)
    except ValueError:
        raise ValueError("must be a number of seconds") from None
    if not np.isfinite(value) or value < 0:
        raise ValueError("must be finite and not negative")
    return value * 1_000_000_000


def _count(path: str, line: int, name: str, text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        raise TraceError(
            f"{path}, line {line}: {name} = {text!r}: must be a whole number of tokens"
        ) from None
    if not 0 <= value <= MAX_TOKENS:
        raise TraceError(f"{path}, line {line}: {name} = {value}: must be between 0 and {MAX_TOKENS}")
    return value
