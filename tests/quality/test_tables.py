"""Outcome tables: every format reads the same, round trips are exact, and bad cells are named."""

from __future__ import annotations

import csv
import gzip
import json
import os
import re
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from routing_gym.quality.columns import Columns, load_columns
from routing_gym.quality.tables import OutcomeTable, TableError, read_table, write_table

DATA = Path(__file__).resolve().parents[2].parent / "shared" / "data"
SUBSET = DATA / "routerbench_subset" / "routerbench_0shot_subset.csv.gz"
PROMPTS = DATA / "routerbench_subset" / "prompts_mmlu_gsm8k.csv.gz"
GSM8K = DATA / "gsm8k_open_llms" / "gsm8k_test_open_llms.csv.gz"
with_data = pytest.mark.skipif(not DATA.is_dir(), reason="../shared/data is not here")
# The same folder serves all examples: each one writes its own file.
ONE_FOLDER = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)

COLUMNS = {
    "id": "key",
    "prompt": "question",
    "group": "task",
    "prompt_tokens": "length",
    "score": "{model}",
    "completion_tokens": "{model}|tokens",
    "cost": "{model}|usd",
    "models": {"a": "vendor/a", "b": "b-7b.v1"},
}
ROWS: list[dict[str, Any]] = [
    {"key": "q1", "question": "How many?", "task": "math", "length": 3, "vendor/a": 1.0,
     "vendor/a|tokens": 12, "vendor/a|usd": 0.001, "b-7b.v1": 0.25, "b-7b.v1|tokens": 7, "b-7b.v1|usd": 0.0,
     "note": "x"},
    {"key": "q2", "question": 'Two\nlines, "quoted"', "task": "math", "length": 5, "vendor/a": 0.0,
     "vendor/a|tokens": 1, "vendor/a|usd": 1e-07, "b-7b.v1": 1.0, "b-7b.v1|tokens": 3, "b-7b.v1|usd": 2.5,
     "note": "y"},
    {"key": "q3", "question": "¿Qué?", "task": "chat", "length": 1, "vendor/a": 0.1, "vendor/a|tokens": 400,
     "vendor/a|usd": 0.3, "b-7b.v1": 0.75, "b-7b.v1|tokens": 2, "b-7b.v1|usd": 0.04, "note": "z"},
]  # fmt: skip


def columns(**changes: Any) -> Columns:
    return load_columns({**COLUMNS, **changes})


def write_csv(path: Path, rows: list[dict[str, Any]]) -> None:
    opened: Any = gzip.open if path.suffix == ".gz" else open
    with opened(path, "wt", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def write_parquet(path: Path, rows: list[dict[str, Any]]) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.Table.from_pylist(rows), path)


def write_pickle(path: Path, rows: list[dict[str, Any]]) -> None:
    pytest.importorskip("pandas").DataFrame(rows).to_pickle(path)


Write = Callable[[Path, list[dict[str, Any]]], None]
FORMATS: Mapping[str, Write] = {
    "t.csv": write_csv,
    "t.csv.gz": write_csv,
    "T.CSV": write_csv,
    "t.parquet": write_parquet,
    "t.pkl": write_pickle,
    "t.pkl.gz": write_pickle,
    "t.pickle": write_pickle,
}
ONE_OF_EACH = ["t.csv", "t.parquet", "t.pkl"]


def made(folder: Path, rows: list[dict[str, Any]], name: str = "t.csv") -> Path:
    FORMATS[name](folder / name, rows)
    return folder / name


def changed(row: int, **cells: Any) -> list[dict[str, Any]]:
    rows = [dict(row) for row in ROWS]
    rows[row].update(cells)
    return rows


def same(left: OutcomeTable, right: OutcomeTable, without: tuple[str, ...] = ("source", "notes")) -> bool:
    for field in fields(left):
        if field.name not in without:
            a, b = getattr(left, field.name), getattr(right, field.name)
            if isinstance(a, np.ndarray):
                if a.dtype != b.dtype or not np.array_equal(a, b, equal_nan=True):
                    return False
            elif a != b:
                return False
    return True


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_reads_the_same(tmp_path: Path, name: str) -> None:
    path = made(tmp_path, ROWS, name)
    table = read_table(path, columns(), allow_pickle=True)
    assert table.source == str(path)
    assert table.ids == ("q1", "q2", "q3")
    assert table.prompts == tuple(row["question"] for row in ROWS)
    assert table.groups == ("math", "math", "chat")
    assert table.models == ("a", "b")
    assert table.prompt_tokens.tolist() == [3, 5, 1]
    assert table.scores.tolist() == [[1, 0.25], [0, 1], [0.1, 0.75]]
    assert table.completion_tokens.tolist() == [[12, 7], [1, 3], [400, 2]]
    assert table.costs.tolist() == [[0.001, 0], [1e-7, 2.5], [0.3, 0.04]]
    assert table.prompt_rows is None
    assert table.notes == ()
    for array in (table.prompt_tokens, table.scores, table.completion_tokens, table.costs):
        assert array.dtype == np.float64
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_ids_as_numbers_booleans_as_scores_and_categories(tmp_path: Path, name: str) -> None:
    rows = [{"key": k, "ok": k == 7, "task": "math"} for k in (7, 8)]
    table = read_table(
        made(tmp_path, rows, name),
        load_columns({"id": "key", "group": "task", "models": {"a": {"score": "ok"}}}),
        allow_pickle=True,
    )
    assert table.ids == ("7", "8")
    assert table.groups == ("math", "math")
    assert table.scores.tolist() == [[1], [0]]
    assert np.isnan(table.prompt_tokens).all() and np.isnan(table.completion_tokens).all()
    assert table.prompts == (None, None)
    assert table.notes == ("Prompts without text: 2 of 2.", "Prompts without a token count: 2 of 2.")


def test_pandas_columns_with_its_own_kinds_of_nothing(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    frame = pandas.DataFrame(
        {
            "task": pandas.Categorical(["x", None, "y"]),
            "s": pandas.array([0.5, None, 1], dtype="Float64"),
            "n": pandas.array([4, None, 2], dtype="Int64"),
        }
    )
    given = load_columns(
        {"group": "task", "prompt_tokens": "n", "models": {"a": {"score": "s"}}, "missing": "allow"}
    )
    frame.to_pickle(tmp_path / "t.pkl")
    frame.to_parquet(tmp_path / "t.parquet")
    for name in ("t.pkl", "t.parquet"):
        table = read_table(tmp_path / name, given, allow_pickle=True)
        assert table.groups == ("x", "", "y")
        assert np.array_equal(table.scores[:, 0], [0.5, np.nan, 1], equal_nan=True)
        assert np.array_equal(table.prompt_tokens, [4, np.nan, 2], equal_nan=True)


def test_without_an_id_column_rows_are_numbered(tmp_path: Path) -> None:
    assert read_table(made(tmp_path, ROWS), columns(id=None)).ids == ("1", "2", "3")


SCORE, COST, TOKENS = "vendor/a", "b-7b.v1|usd", "vendor/a|tokens"
BAD = [
    (SCORE, float("nan"), "must be a number from 0 to 1 (`missing: allow`"),
    (SCORE, 1.5, "must be a number from 0 to 1"),
    (SCORE, -0.25, "must be a number from 0 to 1"),
    (SCORE, float("inf"), "must be a number from 0 to 1"),
    (COST, -1e-9, "must be a finite number of USD, not negative"),
    (COST, float("inf"), "must be a finite number of USD, not negative"),
    (COST, float("nan"), "must be a finite number of USD, not negative (`missing: allow`"),
    (TOKENS, -1, "must be a whole number of tokens from 0 to 16777216"),
    (TOKENS, 2.5, "must be a whole number of tokens from 0 to 16777216"),
    (TOKENS, 2**24 + 1, "must be a whole number of tokens from 0 to 16777216"),
    ("length", 0, "must be a whole number of tokens from 1 to 16777216"),
    ("length", 1.5, "must be a whole number of tokens from 1 to 16777216"),
    ("key", "q1", "is the id of FIRST too; ids are unique"),
]


@pytest.mark.parametrize("name", ONE_OF_EACH)
@pytest.mark.parametrize(("column", "value", "told"), BAD)
def test_a_bad_cell_is_named_by_file_row_column_and_value(
    tmp_path: Path, name: str, column: str, value: Any, told: str
) -> None:
    rows = changed(2, **{column: value})
    if isinstance(value, float):  # a Parquet column has one type
        rows = [{**row, column: float(row[column])} for row in rows]
    path = made(tmp_path, rows, name)
    # The second row of the CSV spans lines 3 and 4.
    where, first = ("line 5", "line 2") if name == "t.csv" else ("row 3", "row 1")
    shown = repr(str(value)) if name == "t.csv" else repr(value)
    message = f"{path}, {where}: {column} = {shown}: {told.replace('FIRST', first)}"
    with pytest.raises(TableError, match=f"^{re.escape(message)}"):
        read_table(path, columns(), allow_pickle=True)


@pytest.mark.parametrize(
    ("column", "value", "told"),
    [
        (SCORE, "good", "= 'good': must be a number from 0 to 1"),
        (SCORE, "", "= '': must be a number from 0 to 1 (`missing: allow`"),
        (SCORE, "0_1", "= '0_1': must be a number from 0 to 1"),
        (TOKENS, "1_0", "= '1_0': must be a whole number of tokens"),
        ("question", " \n", "= ' \\n': must not be empty"),
        ("key", " ", "= ' ': must not be empty"),
        (SCORE, " ", "= ' ': must be a number from 0 to 1 (`missing: allow`"),
        (TOKENS, "many", "= 'many': must be a whole number of tokens"),
        (COST, "$1", "= '$1': must be a finite number of USD"),
        (COST, "nan", "= 'nan': must be a finite number of USD"),
        ("key", "", "= '': must not be empty"),
        ("question", "", "= '': must not be empty"),
        ("task", "", "= '': must not be empty"),
    ],
)
def test_a_bad_cell_of_text(tmp_path: Path, column: str, value: str, told: str) -> None:
    path = made(tmp_path, changed(1, **{column: value}))
    with pytest.raises(TableError, match=re.escape(f"{path}, line 3: {column} {told}")):
        read_table(path, columns())


@pytest.mark.parametrize(
    ("column", "value", "told"),
    [
        ("question", ["a", "b", "c"], "must be text or a whole number"),
        ("key", 1.5, "must be text or a whole number"),
        ("task", True, "must be text or a whole number"),
        (SCORE, [1], "must be a number from 0 to 1"),
        (SCORE, "x" * 500, "must be a number from 0 to 1"),
    ],
    ids=["list", "fraction", "boolean", "list of numbers", "long"],
)
def test_a_bad_object_in_a_pickle(tmp_path: Path, column: str, value: Any, told: str) -> None:
    path = made(tmp_path, changed(1, **{column: value}), "t.pkl")
    with pytest.raises(TableError, match=rf"row 2: {re.escape(column)} = .{{1,80}}: {told}"):
        read_table(path, columns(), allow_pickle=True)


def test_empty_cells_where_they_are_allowed(tmp_path: Path) -> None:
    rows = changed(1, **{SCORE: "", COST: "nan", TOKENS: "0", "length": " ", "question": "", "task": ""})
    table = read_table(made(tmp_path, rows), columns(missing="allow"))
    assert np.array_equal(table.scores, [[1, 0.25], [np.nan, 1], [0.1, 0.75]], equal_nan=True)
    assert np.array_equal(table.costs, [[0.001, 0], [1e-7, np.nan], [0.3, 0.04]], equal_nan=True)
    assert np.array_equal(table.prompt_tokens, [3, np.nan, 1], equal_nan=True)
    assert table.completion_tokens.tolist() == [[12, 7], [1, 3], [400, 2]]
    assert table.prompts[1] is None
    assert table.groups == ("math", "", "chat")
    assert table.notes == (
        "Completion tokens recorded as 0 and taken as 1: 1.",
        "Prompts without text: 1 of 3.",
        "Prompts without a token count: 1 of 3.",
        "Scores not recorded, of 3 prompts: 1 of a.",
        "Costs not recorded, of 3 prompts: 1 of b.",
    )
    blank = changed(1, question=" \t", task=" ")
    table = read_table(made(tmp_path, blank), columns(missing="allow"))
    assert (table.prompts[1], table.groups[1]) == (None, "")
    # An id is never optional, and what is there is checked all the same.
    for column, value in (("key", ""), (SCORE, "2"), (COST, "-1"), (TOKENS, "0.5")):
        with pytest.raises(TableError, match=re.escape(f"line 3: {column} = '{value}'")):
            read_table(made(tmp_path, changed(1, **{column: value})), columns(missing="allow"))


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_columns_that_a_file_lacks(tmp_path: Path, name: str) -> None:
    path = made(tmp_path, ROWS, name)
    with pytest.raises(TableError) as raised:
        read_table(path, columns(prompt="qestion", models={"a": "vendor/a", "c": "c-13b"}), allow_pickle=True)
    assert str(raised.value) == (
        f"{path} lacks the columns 'qestion' (prompt), 'c-13b' (models.c.score), "
        "'c-13b|tokens' (models.c.completion_tokens), 'c-13b|usd' (models.c.cost); did you mean 'question'? "
        "it has 'key', 'question', 'task', 'length', 'vendor/a', "
        "'vendor/a|tokens', 'vendor/a|usd', 'b-7b.v1', 'b-7b.v1|tokens', 'b-7b.v1|usd', 'note'"
    )


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "t.csv lacks the columns 's' (models.a.score); it has none"),
        ("s\n", "t.csv has a header but no rows"),
        ("s,n\n1,2\n1,2,3\n", "t.csv, line 3: has 3 fields; the header has 2"),
        ('s,n\n1,"x\ny"\n\n1\n', "t.csv, line 5: has 1 fields; the header has 2"),
        ("s,n,s\n1,2,3\n", "t.csv has 2 columns named 's'"),
        ("s;n\n1;2\n", "t.csv is separated by ';'; must be by commas"),
        ("s\tn\n1\t2\n", "t.csv is separated by '\\t'; must be by commas"),
        ("a;b,n\n1,2\n", "t.csv lacks the columns 's' (models.a.score); it has 'a;b', 'n'"),
        (b"s\n\xff\n", "t.csv is not a CSV text file"),
    ],
)
def test_what_is_no_table_is_refused(tmp_path: Path, text: str | bytes, told: str) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    given = load_columns({"models": {"a": {"score": "s"}}})
    with pytest.raises(TableError, match=re.escape(told)):
        read_table(path, given)


def test_how_a_csv_is_written_does_not_matter(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes('\ufeff s ,n\r\n" 1",2\r\n\r\n0.5 ,3\r\n'.encode())
    table = read_table(path, load_columns({"prompt_tokens": "n", "models": {"a": {"score": "s"}}}))
    assert table.scores.tolist() == [[1], [0.5]]
    assert table.prompt_tokens.tolist() == [2, 3]


def test_a_prompt_may_be_longer_than_the_csv_module_s_usual_limit(tmp_path: Path) -> None:
    usual = csv.field_size_limit()
    rows = changed(0, question="word " * (usual // 4))
    assert read_table(made(tmp_path, rows), columns()).prompts[0] == rows[0]["question"]
    assert csv.field_size_limit() == usual


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    for name, content, told in (
        ("t.csv.gz", b"no gzip", "is not a gzip file of CSV text: Not a gzipped file"),
        (
            "t.csv.gz",
            gzip.compress(",".join(ROWS[0]).encode())[:-9],
            "is not a gzip file of CSV text: Compressed file ended",
        ),
        ("t.xlsx", b"", "is of no known format; the name must end in one of .csv, .csv.gz, .parquet, .pkl"),
        ("t.pkl", b"no pickle", "is not a pickle that can be loaded: "),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(TableError, match=re.escape(told)):
            if name.endswith(".pkl"):
                pytest.importorskip("pandas")
            read_table(tmp_path / name, columns(), allow_pickle=True)
    with pytest.raises(TableError, match=r"cannot read the table .*gone\.csv: No such file or directory"):
        read_table(tmp_path / "gone.csv", columns())
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(TableError, match=r"cannot read the table .*folder\.csv: Is a directory"):
        read_table(tmp_path / "folder.csv", columns())


def test_a_file_that_is_no_parquet(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    (tmp_path / "t.parquet").write_bytes(b"PAR1, but no more than that")
    with pytest.raises(TableError, match=r"t\.parquet is not a Parquet file: "):
        read_table(tmp_path / "t.parquet", columns())


class Opened:
    """What runs when its pickle is loaded: it leaves a file."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("name", ["t.pkl", "t.pkl.gz", "t.pickle", "T.PKL"])
def test_a_pickle_is_loaded_only_where_that_is_allowed(tmp_path: Path, name: str) -> None:
    pandas = pytest.importorskip("pandas")
    path, trace = tmp_path / name, tmp_path / "ran"
    pandas.to_pickle(Opened(trace), path, compression="gzip" if name.endswith(".gz") else None)
    told = r"is a pickle: loading one runs whatever code.*--allow-pickle.*routing-gym quality convert"
    with pytest.raises(TableError, match=told):
        read_table(path, columns())
    assert not trace.exists()
    with pytest.raises(TableError, match="holds a NoneType; it must be a pandas DataFrame"):
        read_table(path, columns(), allow_pickle=True)
    assert trace.exists()


def test_a_pickle_that_was_read_before_is_still_refused(tmp_path: Path) -> None:
    path = made(tmp_path, ROWS, "t.pkl")
    read_table(path, columns(), allow_pickle=True)
    with pytest.raises(TableError, match="is a pickle"):
        read_table(path, columns())
    made(tmp_path, [{"key": "q1", "question": "other"}], "t.pkl")
    csv_path = made(tmp_path, ROWS)
    with pytest.raises(TableError, match="is a pickle"):
        read_table(csv_path, columns(), path)


@pytest.mark.parametrize(("name", "package"), [("t.parquet", "pyarrow"), ("t.pkl", "pandas")])
def test_a_package_that_is_missing_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, package: str
) -> None:
    (tmp_path / name).touch()
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=rf"reading .*{name} needs {package}: pip install {package}"):
        read_table(tmp_path / name, columns(), allow_pickle=True)
    if package == "pyarrow":
        table = read_table(made(tmp_path, ROWS), columns())
        with pytest.raises(ImportError, match=r"writing .* needs pyarrow: pip install pyarrow"):
            write_table(table, tmp_path / name, columns())


def test_a_file_is_read_again_when_it_has_changed(tmp_path: Path) -> None:
    path = made(tmp_path, ROWS)
    prompts = tmp_path / "p.csv"
    write_csv(prompts, [{"key": "q2", "question": "first"}])
    first = read_table(path, columns(), prompts)
    assert read_table(str(path), columns(), str(prompts)) is first
    assert read_table(path, columns(missing="allow"), prompts) is not first
    write_csv(prompts, [{"key": "q2", "question": "second"}])
    os.utime(prompts, ns=(1, prompts.stat().st_mtime_ns + 1))
    assert read_table(path, columns(), prompts).prompts[1] == "second"
    made(tmp_path, changed(0, **{SCORE: 0.5}))
    os.utime(path, ns=(1, path.stat().st_mtime_ns + 1))
    assert read_table(path, columns(), prompts).scores[0, 0] == 0.5


def without(*names: str) -> list[dict[str, Any]]:
    return [{name: cell for name, cell in row.items() if name not in names} for row in ROWS]


@pytest.mark.parametrize("name", ["t.csv", "t.parquet"])
def test_prompts_from_a_second_file(tmp_path: Path, name: str) -> None:
    (tmp_path / "second").mkdir()
    prompts = made(
        tmp_path / "second", [{"text": 1, "key": k, "question": f"Ask {k}"} for k in ("q3", "q1", "q2")], name
    )
    for table_rows in (ROWS, without("question")):
        table = read_table(made(tmp_path, table_rows, name), columns(), prompts)
        assert table.prompts == ("Ask q1", "Ask q2", "Ask q3")
        assert table.prompt_rows is not None
        assert table.prompt_rows.tolist() == [2, 0, 1]
        assert not table.prompt_rows.flags.writeable


def test_prompts_of_some_rows(tmp_path: Path) -> None:
    prompts = tmp_path / "p.csv"
    write_csv(prompts, [{"key": "q3", "prompt": "Ask 3"}])
    bare = made(tmp_path, without("question"))
    some = columns(prompt=None, missing="allow")
    table = read_table(bare, some, prompts)
    assert table.prompts == (None, None, "Ask 3")
    assert table.prompt_rows is not None
    assert table.prompt_rows.tolist() == [2]
    assert "Prompts without text: 2 of 3." in table.notes
    # A table without the column, and without the second file.
    assert read_table(bare, columns(missing="allow")).prompts == (None, None, None)
    with pytest.raises(TableError, match=re.escape("lacks the columns 'question' (prompt)")):
        read_table(bare, columns())
    told = f"{bare}, line 2: key = 'q1': has no prompt in {prompts}"
    with pytest.raises(TableError, match=re.escape(told)):
        read_table(bare, columns(prompt=None), prompts)
    # The table's own texts where the second file has none.
    write_csv(prompts, [{"key": "q3", "question": "Ask 3"}])
    assert read_table(made(tmp_path, ROWS), columns(), prompts).prompts[0] == "How many?"
    filled = read_table(made(tmp_path, changed(2, question="")), columns(), prompts)
    assert filled.prompts == ("How many?", ROWS[1]["question"], "Ask 3")


@pytest.mark.parametrize(
    ("rows", "changes", "told"),
    [
        ([("q1", "a"), ("q9", "b")], {}, "p.csv, line 3: key = 'q9': is no id of"),
        ([("q1", "a"), ("q1", "b")], {}, "p.csv, line 3: key = 'q1': is the id of line 2 too"),
        ([("q1", "")], {}, "p.csv, line 2: question = '': must not be empty"),
        (
            [("q1", "a")],
            {"prompt": "ask"},
            "p.csv lacks the columns 'ask' (prompt); it has 'key', 'question'",
        ),
        (
            [("q1", "a")],
            {"id": None},
            "p.csv: its prompts are found by id; `columns` must name the column `id`",
        ),
    ],
)
def test_prompts_that_do_not_fit(
    tmp_path: Path, rows: list[tuple[str, str]], changes: dict[str, Any], told: str
) -> None:
    prompts = tmp_path / "p.csv"
    write_csv(prompts, [{"key": key, "question": text} for key, text in rows])
    with pytest.raises(TableError, match=re.escape(told)):
        read_table(made(tmp_path, ROWS), columns(**{"missing": "allow", **changes}), prompts)


ESTIMATED = {
    "id": "key",
    "prompt": "question",
    "prompt_tokens": "length",
    "score": "{model}",
    "completion_tokens": "{model}|tokens",
    "cost": "{model}|usd",
    "estimate_tokens": True,
    "models": {
        "a": {"price_in_usd": 10.0, "price_out_usd": 30.0},
        "b": {"price_in_usd": 0.2, "price_out_usd": 0.2},
    },
}


def priced(question: str, a: float, b: float, **more: Any) -> dict[str, Any]:
    return {"question": question, "a": 1, "b": 0, "a|usd": a, "b|usd": b, **more}


def test_tokens_estimated_by_hand(tmp_path: Path) -> None:
    rows = [
        # 40 bytes (36 characters): 10 tokens; 400 − 100 = 300 = 30 · 10 and 5 − 2 = 3 = 0.2 · 15.
        priced("é" * 4 + "x" * 32, 400e-6, 5e-6),
        # 10 tokens by the text, but a's cost leaves at most (90 − 30)/10 = 6 with an answer of 1.
        priced("x" * 40, 90e-6, 5e-6),
        # b's at most 3.6/0.2 − 1 = 17 of 100 tokens, to the last; then a has (500 − 170)/30 = 11.
        priced("x" * 400, 500e-6, 3.6e-6),
        # At least a token each, whatever the cost.
        priced("x", 1e-6, 0.0),
    ]
    rows = [{"key": k, **row} for k, row in enumerate(rows)]
    table = read_table(made(tmp_path, rows), load_columns(ESTIMATED))
    assert table.prompt_tokens.tolist() == [10, 6, 17, 1]
    assert table.completion_tokens.tolist() == [[10, 15], [1, 19], [11, 1], [1, 1]]
    assert table.notes == (
        "Prompt tokens of 4 prompts are estimated: a quarter of the bytes, in 3 of them less, as the "
        "recorded costs demand.",
        "Completion tokens of a, b are estimated from the recorded costs.",
    )


def test_half_a_character_in_a_pickle_has_its_bytes_too(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    rows = [{"key": 1, **priced("\ud800" * 8, 1.0, 1.0)}]
    pandas.DataFrame(rows, dtype=object).to_pickle(tmp_path / "t.pkl")
    table = read_table(tmp_path / "t.pkl", load_columns(ESTIMATED), allow_pickle=True)
    assert table.prompt_tokens.tolist() == [6]  # 24 bytes


def test_only_columns_that_are_lacking_are_estimated(tmp_path: Path) -> None:
    rows = [
        {"key": 1, **priced("x" * 40, 400e-6, 5e-6), "length": 7, "b|tokens": 3},
        {"key": 2, **priced("x" * 40, 400e-6, 5e-6), "length": "", "b|tokens": ""},
        {"key": 3, **priced("", 400e-6, 5e-6), "length": 7, "b|tokens": 0},
    ]
    rows[2]["a|usd"] = ""
    given = load_columns({**ESTIMATED, "missing": "allow"})
    table = read_table(made(tmp_path, rows), given)
    assert np.array_equal(table.prompt_tokens, [7, np.nan, 7], equal_nan=True)
    # (400 − 70)/30 = 11; without a prompt's length or a cost there is no estimate.
    assert np.array_equal(table.completion_tokens, [[11, 3], [np.nan, np.nan], [np.nan, 1]], equal_nan=True)
    assert table.notes[0] == "Completion tokens of a are estimated from the recorded costs."
    # Without text, costs alone do not tell a prompt's length.
    for row in rows:
        del row["length"]
    table = read_table(made(tmp_path, rows), given)
    assert np.array_equal(table.prompt_tokens, [10, 10, np.nan], equal_nan=True)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"estimate_tokens": False}, r"lacks the columns 'length' \(prompt_tokens\), 'a\|tokens'"),
        (
            {"models": ["a"]},
            r"lacks the column 'a\|tokens' \(models\.a\.completion_tokens\); to estimate its",
        ),
        ({"models": {"a": {"price_in_usd": 1, "price_out_usd": 0}}}, "a positive price_out_usd"),
        ({"models": {"a": {"price_in_usd": 1, "price_out_usd": 1, "cost": None}}}, "takes a cost column"),
    ],
)
def test_what_cannot_be_estimated_is_refused(tmp_path: Path, changes: dict[str, Any], told: str) -> None:
    path = made(tmp_path, [{"key": 1, **priced("x" * 40, 400e-6, 5e-6)}])
    with pytest.raises(TableError, match=told):
        read_table(path, load_columns({**ESTIMATED, **changes}))


lengths = st.lists(
    st.tuples(st.integers(1, 2000), st.integers(1, 999), st.integers(1, 999)), min_size=1, max_size=9
)


@ONE_FOLDER
@given(lengths, st.integers(0, 5000))
def test_estimates_keep_to_the_costs(tmp_path: Path, rows: list[tuple[int, int, int]], size: int) -> None:
    """The prompt leaves each answer a token, and both together cost what was recorded, to half a token."""
    written = [
        {"key": k, **priced("x" * (size + 1), (10 * n + 30 * a) / 1e6, (0.2 * n + 0.2 * b) / 1e6)}
        for k, (n, a, b) in enumerate(rows)
    ]
    path = tmp_path / f"{hash((*rows, size))}.csv"
    write_csv(path, written)
    table = read_table(path, load_columns(ESTIMATED))
    for k, (n, a, b) in enumerate(rows):
        most = min(n + 3 * a - 3, n + b - 1)
        assert table.prompt_tokens[k] == max(1, min(round((size + 1) / 4), most))
        assert abs(table.completion_tokens[k, 0] - (n + 3 * a - table.prompt_tokens[k]) / 3) <= 0.5
        assert table.completion_tokens[k, 1] == n + b - table.prompt_tokens[k]
    path.unlink()


texts = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=8
).filter(str.strip)
known = st.one_of(st.just(float("nan")), st.integers(1, 2**24).map(float))


@st.composite
def tables(draw: st.DrawFn) -> OutcomeTable:
    ids = draw(st.lists(texts, min_size=1, max_size=5, unique=True))
    count, models = len(ids), draw(st.integers(1, 3))

    def array(values: st.SearchStrategy[float], *shape: int) -> np.ndarray:
        return np.array([draw(values) for _ in range(int(np.prod(shape)))]).reshape(shape)

    return OutcomeTable(
        "drawn",
        tuple(ids),
        tuple(draw(st.one_of(st.none(), texts)) for _ in ids),
        tuple(draw(st.one_of(st.just(""), texts)) for _ in ids),
        tuple(f"m{k}" for k in range(models)),
        array(known, count),
        array(st.one_of(st.just(float("nan")), st.floats(0, 1)), count, models),
        array(known, count, models),
        array(st.one_of(st.just(float("nan")), st.floats(0, allow_infinity=False)), count, models),
    )


@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz", "t.parquet"])
@ONE_FOLDER
@given(table=tables())
def test_what_is_written_reads_back_exactly(tmp_path: Path, name: str, table: OutcomeTable) -> None:
    if name == "t.parquet":
        pytest.importorskip("pyarrow")
    given = columns(models=list(table.models), missing="allow")
    path = tmp_path / name
    write_table(table, path, given)
    os.utime(path, ns=(1, time.monotonic_ns()))  # so that no file is taken for one before it
    assert same(read_table(path, given), table)


def test_a_pickle_converts_to_a_table_that_reads_the_same(tmp_path: Path) -> None:
    given = load_columns({**ESTIMATED, "group": "task"})
    rows = [{"key": f"q{k}", "task": "t", **priced("x" * 40 * k, 4e-3 * k, 1e-4 * k)} for k in (1, 2, 3)]
    table = read_table(made(tmp_path, rows, "t.pkl"), given, allow_pickle=True)
    for name in ("t.csv", "t.csv.gz", "t.parquet"):
        write_table(table, tmp_path / name, given)
        assert same(read_table(tmp_path / name, given), table, without=("source",))


@pytest.mark.parametrize("name", ["t.csv", "t.parquet"])
def test_estimated_tokens_stay_estimated(tmp_path: Path, name: str) -> None:
    if name == "t.parquet":
        pytest.importorskip("pyarrow")
    given = load_columns(ESTIMATED)
    rows = [{"key": f"q{k}", **priced("x" * 40 * k, 4e-3 * k, 1e-4 * k), "b|tokens": k} for k in (1, 2, 3)]
    table = read_table(made(tmp_path, rows), given)
    assert table.estimated == {"prompt_tokens", "models.a.completion_tokens"}
    assert table.take([2, 0]).estimated == table.estimated
    assert read_table(made(tmp_path, ROWS), columns(estimate_tokens=True)).estimated == set()
    (tmp_path / "new").mkdir()
    write_table(table, tmp_path / "new" / name, given)
    again = read_table(tmp_path / "new" / name, given)
    assert same(again, table, without=("source",)) and len(again.notes) == 2
    plain = load_columns({**ESTIMATED, "estimate_tokens": False})
    lacking = re.escape("lacks the columns 'length' (prompt_tokens), 'a|tokens' (models.a.completion_tokens)")
    with pytest.raises(TableError, match=lacking):
        read_table(tmp_path / "new" / name, plain)


def test_what_cannot_be_written(tmp_path: Path) -> None:
    table = read_table(made(tmp_path, ROWS), columns())
    with pytest.raises(TableError, match=r"the name must end in \.csv, \.csv\.gz, \.parquet"):
        write_table(table, tmp_path / "t.pkl", columns())
    with pytest.raises(TableError, match="has no outcomes of c; it has those of a, b"):
        write_table(table, tmp_path / "u.csv", columns(models=["a", "c"]))
    twice = columns(models={"a": {"score": "s"}, "b": {"score": "s"}})
    with pytest.raises(TableError, match=re.escape("'s' (models.b.score) holds something else already")):
        write_table(table, tmp_path / "u.csv", twice)
    assert not (tmp_path / "u.csv").exists()
    # Two models may share a column that holds the same for both.
    shared = columns(models={"a": "vendor/a", "b": "vendor/a"})
    write_table(read_table(made(tmp_path, ROWS), shared), tmp_path / "u.csv", shared)
    assert read_table(tmp_path / "u.csv", shared).scores.tolist() == [[1, 1], [0, 0], [0.1, 0.1]]


def test_rows_and_models_taken(tmp_path: Path) -> None:
    prompts = tmp_path / "p.csv"
    write_csv(prompts, [{"key": "q2", "question": "first"}])
    table = read_table(made(tmp_path, ROWS), columns(), prompts)
    taken = table.take([2, 0])
    assert same(taken, read_table(made(tmp_path, [ROWS[2], ROWS[0]]), columns()))
    assert (taken.source, taken.notes) == (table.source, table.notes)
    assert table.index(["b", "a", "b"]).tolist() == [1, 0, 1]
    assert table.index([]).tolist() == []
    with pytest.raises(
        TableError, match=re.escape(f"{table.source} has no outcomes of d, c; it has those of a, b")
    ):
        table.index(["a", "d", "c", "d"])


@with_data
def test_the_routerbench_subset() -> None:
    given = load_columns("routerbench")
    started = time.perf_counter()
    table = read_table(SUBSET, given, PROMPTS)
    assert time.perf_counter() - started < 5  # about 0.2 s on one core
    assert table.scores.shape == (7685, 11)
    assert table.prompt_rows is not None
    assert len(table.prompt_rows) == sum(text is not None for text in table.prompts) == 4812
    whole = np.isfinite(table.scores).all(axis=1)
    assert whole.sum() == 1874
    assert np.isfinite(table.scores).all(axis=0).sum() == 5
    assert table.scores[whole, table.index(["gpt-4"])[0]].mean() == pytest.approx(0.771, abs=5e-4)
    assert table.scores[whole].max(axis=1).mean() == pytest.approx(0.913, abs=5e-4)
    facts = json.loads((DATA / "routerbench_stats.json").read_text())["models"]
    for k, (name, model) in enumerate(given.models.items()):
        scores = table.scores[:, k][np.isfinite(table.scores[:, k])]
        # The subset is another sample of prompts, with other shares of tasks.
        error = 5 * scores.std() / np.sqrt(len(scores))
        assert abs(scores.mean() - facts[model.score]["quality_mean_full"]) < error, name
    # Costs are prices times tokens, which is what the estimates undo.
    prices = np.array([(m.price_in_usd, m.price_out_usd) for m in given.models.values()])
    cost = (table.prompt_tokens[:, None] * prices[:, 0] + table.completion_tokens * prices[:, 1]) / 1e6
    recorded = np.isfinite(cost)
    assert recorded.sum() == 5 * 7367 + 6 * 1767
    assert cost[recorded] == pytest.approx(table.costs[recorded], rel=1e-9)
    with gzip.open(PROMPTS, "rt", newline="", encoding="utf-8") as file:
        texts = {row["sample_id"]: row["prompt"] for row in csv.DictReader(file)}
    assert [table.ids[row] for row in table.prompt_rows] == list(texts)
    assert all(text == texts.get(name) for name, text in zip(table.ids, table.prompts, strict=True))


@with_data
def test_tokens_of_the_routerbench_subset_estimated(tmp_path: Path) -> None:
    """Its token columns taken away, as in the original: MMLU, whose prompts are there word by word."""
    given = load_columns("routerbench")
    table = read_table(SUBSET, given, PROMPTS)
    with gzip.open(SUBSET, "rt", newline="", encoding="utf-8") as file:
        rows = [{k: v for k, v in row.items() if "tokens" not in k} for row in csv.DictReader(file)]
    write_csv(tmp_path / "bare.csv", rows)
    bare = read_table(tmp_path / "bare.csv", given, PROMPTS)
    assert same(bare, table, without=("source", "notes", "prompt_tokens", "completion_tokens", "estimated"))
    mmlu = np.array([
        group.startswith("mmlu") and text is not None
        for group, text in zip(table.groups, table.prompts, strict=True)
    ])  # fmt: skip
    assert mmlu.sum() == 3322
    recorded, estimated = table.prompt_tokens[mmlu], bare.prompt_tokens[mmlu]
    assert (estimated == recorded).mean() > 0.55
    assert (np.abs(estimated - recorded) <= 0.1 * recorded).mean() > 0.8
    assert np.corrcoef(estimated, recorded)[0, 1] > 0.99
    answers = np.isfinite(table.completion_tokens[mmlu])
    wrong = np.abs(bare.completion_tokens[mmlu] - table.completion_tokens[mmlu])[answers]
    assert np.median(wrong) == 0
    assert wrong.mean() < 3.5


@with_data
def test_gsm8k() -> None:
    table = read_table(GSM8K, load_columns("gsm8k"))
    assert table.scores.shape == (1319, 11)
    assert table.notes == ()
    means = dict(zip(table.models, table.scores.mean(axis=0), strict=True))
    published = {
        "qwen2.5-7b@zs-early": 0.873,
        "llama-3.1-8b": 0.860,
        "llama-3.2-3b": 0.796,
        "llama-3.2-1b": 0.466,
    }
    for name, mean in published.items():
        assert means[name] == pytest.approx(mean, abs=5e-4)
    assert means["qwen2.5-7b"] == pytest.approx(1127 / 1319)
    assert table.ids[:2] == ("0", "1")
    assert (table.prompts[0] or "").startswith("Janet’s ducks lay 16 eggs")
    assert table.completion_tokens[0].tolist() == [181, 208, 133, 173, 349, 127, 127, 144, 151, 161, 221]
