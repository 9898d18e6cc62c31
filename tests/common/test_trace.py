"""Reading traces: both formats to the last digit, and errors that name line, field and value."""

from __future__ import annotations

import csv
import io
import os
import re
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from routing_gym.common.trace import TraceError, read_trace

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens"
GENERIC = "arrival_s,prompt_tokens,output_tokens"
# The same folder serves all examples: each one writes its own file.
ONE_FOLDER = settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])


def write(folder: Path, text: str | bytes, name: str = "trace.csv") -> Path:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_azure_s_format(tmp_path: Path) -> None:
    trace = read_trace(
        write(
            tmp_path,
            f"{AZURE}\n"
            "2023-11-16 18:15:46.6805900,374,44\n"
            "2023-11-16 18:15:46.6805901,396,109\n"
            "2023-11-16 18:15:50.9951690,879,55\n"
            "2023-11-17 00:00:00,91,16\n",
        )
    )
    # 18:15:46.68059 to midnight are 5 h 44 min 13.31941 s.
    assert trace.arrival_ms.tolist() == [0, 0.0001, 4314.579, 20_653_319.41]
    assert trace.prompt_tokens.tolist() == [374, 396, 879, 91]
    assert trace.output_tokens.tolist() == [44, 109, 55, 16]
    assert trace.rate_per_ms == 3 / 20_653_319.41
    assert (trace.arrival_ms.dtype, trace.prompt_tokens.dtype) == (np.float64, np.int64)


def test_the_generic_format(tmp_path: Path) -> None:
    trace = read_trace(write(tmp_path, f"{GENERIC}\n2.5,10,1\n2.5,0,0\n1e1,16777216,3\n"))
    assert trace.arrival_ms.tolist() == [0, 0, 7500]
    assert trace.prompt_tokens.tolist() == [10, 0, 2**24]
    assert trace.output_tokens.tolist() == [1, 0, 3]


ticks = st.lists(st.integers(0, 2 * 86_400 * 10**7), min_size=2, max_size=30).map(sorted)


@ONE_FOLDER
@given(ticks, st.integers(0, 700_000))
def test_seven_digits_are_exact_to_100_ns(tmp_path: Path, times: list[int], day: int) -> None:
    if times[0] == times[-1]:
        times[-1] += 1
    epoch = np.datetime64("0100-01-01T00:00:00", "s")
    lines = [AZURE]
    for time in times:
        seconds, fraction = divmod(time, 10**7)
        moment = str(epoch + np.timedelta64(day * 86_400 + seconds, "s")).replace("T", " ")
        lines.append(f"{moment}.{fraction:07},1,2")
    arrival = read_trace(write(tmp_path, "\n".join(lines), f"{hash((day, *times))}.csv")).arrival_ms
    assert arrival.tolist() == [float(Fraction(time - times[0], 10**4)) for time in times]


@ONE_FOLDER
@given(ticks)
def test_decimal_seconds_are_as_exact_as_a_float_can_be(tmp_path: Path, times: list[int]) -> None:
    if times[0] == times[-1]:
        times[-1] += 1
    lines = [GENERIC, *(f"{Decimal(time).scaleb(-7)},1,2" for time in times)]
    arrival = read_trace(write(tmp_path, "\n".join(lines), f"{hash(tuple(times))}.csv")).arrival_ms
    assert arrival == pytest.approx([(time - times[0]) / 1e4 for time in times], rel=1e-12, abs=1e-7)


@ONE_FOLDER
@given(
    st.sampled_from(["\n", "\r\n"]),
    st.booleans(),
    st.booleans(),
    st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
    st.permutations([0, 1, 2, 3, 4]),
    st.booleans(),
    st.lists(st.tuples(st.integers(0, 99), st.integers(0, 9), st.integers(0, 9)), min_size=2, max_size=6),
)
def test_how_the_file_is_written_does_not_matter(
    tmp_path: Path,
    newline: str,
    final_newline: bool,
    mark: bool,
    quoting: int,
    order: list[int],
    blank: bool,
    rows: list[tuple[int, int, int]],
) -> None:
    """Line ends, a missing last one, a byte order mark, quotes, other columns and their order, gaps."""
    rows = sorted(rows)
    rows[-1] = (100, *rows[-1][1:])
    columns = [*GENERIC.split(","), "tenant", "note, with comma"]
    text = io.StringIO()
    writer = csv.writer(text, quoting=quoting, lineterminator=newline)
    writer.writerow([columns[k] for k in order])
    for row in rows:
        cells = [*map(str, row), "a", "b, c"]
        writer.writerow([cells[k] for k in order])
        if blank:
            text.write(newline)
    content = text.getvalue() if final_newline else text.getvalue().rstrip()
    data = content.encode("utf-8-sig" if mark else "utf-8")
    trace = read_trace(write(tmp_path, data, f"{hash(data)}.csv"))
    assert trace.arrival_ms.tolist() == [(row[0] - rows[0][0]) * 1000 for row in rows]
    assert trace.prompt_tokens.tolist() == [row[1] for row in rows]
    assert trace.output_tokens.tolist() == [row[2] for row in rows]


GOOD = "2023-11-16 18:15:46.5,10,20"
BAD_AZURE = [
    ("2023-11-16 18:15:47,-3,1", r"line 4: ContextTokens = -3: must be between 0 and 16777216"),
    ("2023-11-16 18:15:47,16777217,1", r"line 4: ContextTokens = 16777217: must be between 0 and 16777216"),
    ("2023-11-16 18:15:47,3,-1", r"line 4: GeneratedTokens = -1: must be between 0 and"),
    ("2023-11-16 18:15:47,,1", r"line 4: ContextTokens = '': must be a whole number of tokens"),
    ("2023-11-16 18:15:47,3, ", r"line 4: GeneratedTokens = '': must be a whole number of tokens"),
    ("2023-11-16 18:15:47,3.5,1", r"line 4: ContextTokens = '3\.5': must be a whole number of tokens"),
    ("2023-11-16 18:15:47,3,many", r"line 4: GeneratedTokens = 'many': must be a whole number of tokens"),
    ("2023-11-16 18:15:47,3", r"line 4: has 2 fields; the header has 3"),
    ("2023-11-16", r"line 4: has 1 fields; the header has 3"),
    (
        "2023-11-16 18:15:46.4999999,1,1",
        r"line 4: TIMESTAMP = '2023-11-16 18:15:46\.4999999' is before the line abo",
    ),
    (
        "16.11.2023 18:15,1,1",
        r"line 4: TIMESTAMP = '16\.11\.2023 18:15': must look like 2023-11-16 18:15:46\.68059",
    ),
    ("2023-11-16 18:15:61,1,1", r"line 4: TIMESTAMP = '2023-11-16 18:15:61': "),
    ("2023-11-31 18:15:47,1,1", r"line 4: TIMESTAMP = '2023-11-31 18:15:47': must look like"),
    (
        "2023-11-16 18:15:47.x,1,1",
        r"line 4: TIMESTAMP = .*: the fraction of a second must be up to nine digits",
    ),
    (
        "2023-11-16 18:15:47.-1,1,1",
        r"line 4: TIMESTAMP = .*: the fraction of a second must be up to nine digits",
    ),
    ("2023-11-16 18:15:47.0123456789,1,1", r"line 4: TIMESTAMP = .*must be up to nine digits"),
    (",1,1", r"line 4: TIMESTAMP = '': must look like"),
]
BAD_GENERIC = [
    ("-1,1,1", r"line 4: arrival_s = '-1': must be finite and not negative"),
    ("nan,1,1", r"line 4: arrival_s = 'nan': must be finite and not negative"),
    ("inf,1,1", r"line 4: arrival_s = 'inf': must be finite and not negative"),
    ("soon,1,1", r"line 4: arrival_s = 'soon': must be a number of seconds"),
    (",1,1", r"line 4: arrival_s = '': must be a number of seconds"),
    ("4.999,1,1", r"line 4: arrival_s = '4\.999' is before the line above; times must not decrease"),
    ("6,x,1", r"line 4: prompt_tokens = 'x': must be a whole number of tokens"),
    ("6,1,-1", r"line 4: output_tokens = -1: must be between 0 and 16777216"),
]


@pytest.mark.parametrize(
    ("header", "good", "bad", "told"),
    [(AZURE, GOOD, *case) for case in BAD_AZURE] + [(GENERIC, "5,10,20", *case) for case in BAD_GENERIC],
)
def test_a_bad_row_is_named_by_line_field_and_value(
    tmp_path: Path, header: str, good: str, bad: str, told: str
) -> None:
    path = write(tmp_path, "\n".join([header, good, good, bad, good]))
    with pytest.raises(TraceError, match=rf"^{re.escape(str(path))}, {told}"):
        read_trace(path)


def test_lines_are_counted_as_an_editor_does(tmp_path: Path) -> None:
    path = write(tmp_path, f'{GENERIC},note\n1,1,1,\n\n2,1,1,"two\nlines"\n3,x,1,\n')
    with pytest.raises(TraceError, match=r"line 6: prompt_tokens = 'x'"):
        read_trace(path)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "",
            "the columns are none; a trace has TIMESTAMP, ContextTokens, GeneratedTokens or arrival_s, ",
        ),
        (
            "time,in,out\n1,2,3\n",
            "line 1: the columns are time, in, out; a trace has TIMESTAMP, ContextTokens, ",
        ),
        (
            "TIMESTAMP,ContextTokens,output_tokens\n1,2,3\n",
            "line 1: the columns are TIMESTAMP, ContextTokens, outp",
        ),
        ("1,2,3\n2,2,3\n", "line 1: the columns are 1, 2, 3; a trace has"),
        (f"{GENERIC}\n", "has 0 arrivals; a trace needs two at different times"),
        (f"{GENERIC}\n1,2,3\n", "has 1 arrivals; a trace needs two at different times"),
        (f"{GENERIC}\n1,2,3\n1,2,3\n", "has 2 arrivals; a trace needs two at different times"),
        (b"\xff\xfe\x00\x01", "is not a CSV text file"),
        (f"{GENERIC}\n1,2,3\n".encode() + b"\xff,1,2\n", "is not a CSV text file"),
    ],
)
def test_what_is_no_trace_is_refused(tmp_path: Path, text: str | bytes, told: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(TraceError, match=f"{re.escape(str(path))}.*{re.escape(told)}"):
        read_trace(path)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"cannot read the trace .*gone\.csv: No such file or directory"):
        read_trace(tmp_path / "gone.csv")
    with pytest.raises(TraceError, match=r"cannot read the trace .*: Is a directory"):
        read_trace(tmp_path)


def test_a_file_is_read_again_when_it_has_changed(tmp_path: Path) -> None:
    path = write(tmp_path, f"{GENERIC}\n0,1,1\n1,1,1\n")
    first = read_trace(path)
    assert read_trace(str(path)) is first
    write(tmp_path, f"{GENERIC}\n0,1,1\n2,1,1\n")
    os.utime(path, ns=(1, path.stat().st_mtime_ns + 1))
    assert read_trace(path).arrival_ms.tolist() == [0, 2000]


def test_a_trace_cannot_be_changed_by_one_of_its_users(tmp_path: Path) -> None:
    trace = read_trace(write(tmp_path, f"{GENERIC}\n0,1,1\n1,1,1\n"))
    for array in (trace.arrival_ms, trace.prompt_tokens, trace.output_tokens):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1
