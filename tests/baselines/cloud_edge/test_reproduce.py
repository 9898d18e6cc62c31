"""`routing-gym reproduce`: the source's experiments on small tables, and their tables."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner, Result

from routing_baselines.cloud_edge.reproduction import commands as reproduce
from routing_baselines.cloud_edge.reproduction import experiments
from routing_baselines.cloud_edge.reproduction.published import read_played
from routing_gym.evaluation import compare
from routing_gym.evaluation.report import Sheet
from routing_gym.evaluation.results import read_episodes, read_plan
from tests.baselines.cloud_edge.made_up_runs import played
from tests.baselines.cloud_edge.outcome_tables import write_embeddings, write_table

# What depends on the machine.
TIMED = ("decision_ms_median", "milliseconds", "proof_ms")


def test_table_v_is_of_the_first_five_and_of_all() -> None:
    made = played(9)
    tables, _ = experiments.table_v([made])
    five, every, _ = tables
    assert five.title.startswith("Table V, the first 5 batches") and every.title.startswith(
        "Table V, 9 batches"
    )
    for table, count in ((five, 5), (every, 9)):
        ours = table.rows["cema",]["energy_j"].ours
        assert ours == pytest.approx(made.of("cema", "energy_j")[:count].mean())
    assert (len(five.sheets()), len(every.sheets())) == (1, 2)


def test_perfect_prediction_is_held_against_others_of_the_same_batches() -> None:
    conditions = [
        played(3, requests=count, prediction=prediction)
        for count in (10, 30, 50)
        for prediction in ("perfect", "store")
    ]
    texts = [found.text for found in experiments.tables_vi_vii(conditions)[1]]
    held = [text for text in texts if "from prediction store to perfect" in text]
    assert [text.split(":")[0] for text in held] == [f"R = {count}, M = 11" for count in (10, 30, 50)]


@pytest.mark.parametrize("width", [30, 40, 80, 140, 400])
def test_a_printed_table_cuts_no_number(width: int) -> None:
    rows = [[f"router {k}", *(f"{k * 1000 + c}.123" for c in range(12))] for k in range(3)]
    sheet = Sheet(
        "A title", ("router", *(f"column {c} paper" for c in range(12))), rows, [False, False, True]
    )
    text = io.StringIO()
    reproduce._print(Console(file=text, width=width), sheet, 1)
    lines = text.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    for row in rows:
        found = [line.split(row[0])[1].split() for line in lines if line.startswith(row[0])]
        assert [cell for cells in found for cell in cells] == row[1:]
    assert len([line for line in lines if line.startswith("router 0")]) == 1 or width < 200


Run = Callable[..., Result]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tables")
    for kind in ("routerbench", "gsm8k"):
        write_table(folder / f"{kind}.csv", kind)
    write_embeddings(folder / "embeddings.npz")
    return folder


@pytest.fixture
def run(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    pytest.importorskip("highspy", reason="gaps need the extra `optimal`")
    # A comparison's own plots have their own tests, and take their time.
    monkeypatch.setattr("routing_gym.evaluation.plots.write_plots", lambda *arguments: [])

    def typed(command: str, table: str, *arguments: object) -> Result:
        given = [command, str(data / table), "--out", str(tmp_path / "out"), *map(str, arguments)]
        return CliRunner().invoke(reproduce.app, given)

    return typed


def published_data(folder: Path) -> Any:
    """Return what a command wrote, without times."""

    def untimed(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: untimed(item) for key, item in value.items() if key not in (*TIMED, "text")}
        return [untimed(item) for item in value] if isinstance(value, list) else value

    return untimed(json.loads((folder / reproduce.DATA).read_text()))


def test_table_v(run: Run, tmp_path: Path) -> None:
    result = run("table-v", "routerbench.csv", "--batches", 2)
    assert result.exit_code == 0, result.output
    out = tmp_path / "out"
    plan = read_plan(out)["run"]
    assert [condition["labels"]["prediction"] for condition in plan["conditions"]] == ["perfect", "mean"]
    assert plan["seeds"] == [30000, 30001]
    config = plan["conditions"][0]["config"]
    assert (config["requests"], config["windows"], config["workload"]["prediction"]) == (30, 1, "perfect")
    exact, mean = read_played(out)
    rows = {(row["condition"], row["router"], row["seed"]): row for row in read_episodes(out)}
    assert exact.of("greedy", "energy_j").tolist() == [
        rows[exact.name, "greedy", seed]["energy_j"] for seed in plan["seeds"]
    ]
    # What routers see is what is paid.
    for router in ("cema", "optimal"):
        paid = exact.of(router, "bound") + exact.of(router, "gap")
        np.testing.assert_allclose(exact.of(router, "objective"), paid, rtol=1e-5)
    # Static routers do not care what is known, so that these are the same batches.
    np.testing.assert_array_equal(exact.of("round_robin", "energy_j"), mean.of("round_robin", "energy_j"))
    page = (out / reproduce.MARKDOWN).read_text()
    for text in (page, result.output):
        for title in (
            "Table V, the first 2 batches, prediction perfect",
            "Table V, 2 batches, prediction mean",
        ):
            assert title in text
    assert "from prediction mean to perfect" in page
    table = published_data(out)["tables"][0]
    row = table["rows"][0]
    assert (table["title"], row["router"]) == ("Table V, the first 2 batches, prediction perfect", "cema")
    assert row["figures"]["completion_s"]["published"] == 0.456
    assert row["figures"]["completion_s"]["ours"] == pytest.approx(exact.of("cema", "completion_s").mean())


def test_tables_vi_vii_with_stand_ins(run: Run, tmp_path: Path) -> None:
    result = run("tables-vi-vii", "gsm8k.csv", "--runs", 2)
    assert result.exit_code == 0, result.output
    main, sizes = published_data(tmp_path / "out")["tables"]
    assert main["title"] == "Table VI, 30 requests, 2 runs, prediction mean, with stand-ins"
    last = main["rows"][-1]
    assert (last["data"], last["router"]) == ("MMLU", "uniroute")
    assert last["figures"]["energy_j"] == {"published": 16087.0, "ours": None, "low": None, "high": None}
    found = {(row["data"], row["R"], row["router"]): row["figures"] for row in sizes["rows"]}
    assert found["GSM8K", "50", "cema"]["source_objective"]["published"] == 0.3506
    assert found["GSM8K", "10", "cema"]["cost_usd"]["ours"] == 0.0
    assert "qwen2.5-14b answers as qwen2.5-7b" in (tmp_path / "out" / reproduce.MARKDOWN).read_text()


def test_figure_7_from_a_store(run: Run, data: Path, tmp_path: Path) -> None:
    pytest.importorskip("faiss", reason="a store needs the extra `quality`")
    pytest.importorskip("matplotlib")
    files = ["--embeddings", data / "embeddings.npz"]
    result = run("figure-7", "routerbench.csv", *files, "--batches", 2, "--prediction", "store")
    assert result.exit_code == 0, result.output
    (table,) = published_data(tmp_path / "out")["tables"]
    assert list(dict.fromkeys(row["M"] for row in table["rows"])) == ["11", "22", "44", "88"]
    stated = {
        (row["M"], row["router"]): row["figures"]["source_objective"]["published"] for row in table["rows"]
    }
    assert {key: value for key, value in stated.items() if value} == {
        ("11", "cema"): 0.164,
        ("88", "cema"): 0.106,
        ("11", "uniroute"): 0.214,
        ("88", "uniroute"): 0.376,
    }
    assert (tmp_path / "out" / "figure_7_store.png").stat().st_size > 10_000


def test_an_interrupted_run_goes_on(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = ("table-v", "routerbench.csv", "--batches", 2, "--prediction", "perfect")
    assert run(*given).exit_code == 0
    whole = published_data(tmp_path / "out")
    real = compare.run_jobs

    def stops(*arguments: Any, **how: Any) -> Any:
        for _, result in zip(range(5), real(*arguments, **how), strict=False):
            yield result
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(compare, "run_jobs", stops)
        result = run(*given, "--overwrite")
    assert (result.exit_code, len(read_episodes(tmp_path / "out"))) == (130, 5)
    assert "--resume goes on" in result.stderr
    result = run(*given, "--resume")
    assert result.exit_code == 0, result.output
    assert published_data(tmp_path / "out") == whole


def test_a_store_needs_embeddings(run: Run) -> None:
    result = run("table-v", "routerbench.csv", "--prediction", "store")
    assert "embeddings = None" in str(result.exception)
