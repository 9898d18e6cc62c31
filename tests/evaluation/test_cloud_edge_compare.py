"""A comparison of batch routers from start to finish, and one that is interrupted and taken up again."""

from __future__ import annotations

import io
import itertools
import json
import re
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from routing_gym.cloud_edge.config import CloudEdgeConfig
from routing_gym.cloud_edge.metrics import WINDOW_TERMS
from routing_gym.evaluation import compare as module
from routing_gym.evaluation.compare import compare
from routing_gym.evaluation.results import PLOTS, ResultsError, read_curves, read_episodes, read_plan
from routing_gym.evaluation.runner import Condition, Job, Result, Router, run_jobs
from tests.evaluation import runs
from tests.evaluation.cloud_edge_runs import (
    SOME_ROUTERS,
    cells,
    condition,
    install,
    router,
    several,
    without_solver,
    without_times,
)

ROUTERS = [*map(router, SOME_ROUTERS)]
PLACES = [
    condition("batches, of 6"),
    several("several windows", rate_per_s=3.0, weights=[0.4, 0.3, 0.2, 0.1]),
]
SEEDS = [30_000, 30_001, 30_002]
KEYS = list(itertools.product([place.name for place in PLACES], SOME_ROUTERS, SEEDS))

Finished = tuple[Path, dict[str, Any], str]


def run(path: Path, **how: Any) -> tuple[dict[str, Any], str]:
    """Compare, and return the summary and what was printed."""
    out = io.StringIO()
    how = {"routers": ROUTERS, "conditions": PLACES, "seeds": SEEDS, "reference": "cema", **how}
    summary = compare("cloud_edge", out=path, console=Console(file=out, width=240), **how)
    return summary, out.getvalue()


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """A comparison with plots that nothing interrupted: its folder, its summary, what it printed."""
    path = tmp_path_factory.mktemp("results") / "new" / "folder"
    return (path, *run(path))


@pytest.fixture
def no_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    runs.hide_matplotlib(monkeypatch)


def assert_same_run(a: Path, b: Path) -> None:
    """Assert that two folders hold the same but for what depends on the machine."""
    rows = [[without_times(row) for row in cells(folder)] for folder in (a, b)]
    assert rows[0] == rows[1], "cells are compared as they are written"
    curves = [[without_times(line) for line in read_curves(folder)] for folder in (a, b)]
    assert curves[0] == curves[1]


# From start to finish


def test_a_comparison_leaves_its_files(finished: Finished) -> None:
    path, _, text = finished
    plots = list(PLOTS["cloud_edge"])
    kept = ["episodes.csv", "curves.jsonl", "config.yaml", "summary.json", "summary.md", *plots]
    pytest.importorskip("matplotlib", reason="needs the extra `plots`")
    assert sorted(file.name for file in path.iterdir()) == sorted(kept)
    assert f"Results in {path}: episodes.csv, summary.md, config.yaml, {', '.join(plots)}" in text


def test_there_is_a_row_and_a_line_for_each_router_condition_and_seed(finished: Finished) -> None:
    path, _, text = finished
    rows = read_episodes(path)
    assert [(row["condition"], row["router"], row["seed"]) for row in rows] == KEYS
    assert [(line["condition"], line["router"], line["seed"]) for line in read_curves(path)] == KEYS
    assert f"{len(KEYS)} of {len(KEYS)} episodes" in text
    for row in rows:
        assert row["arrivals"] == row["dispatched"] + row["undispatched"]
        assert row["catalogue"] == "routerbench-5node"
        assert row["gap"] >= -1e-9 and row["unproven_windows"] == 0


def test_the_tables_follow_from_the_files(finished: Finished) -> None:
    """Everything that the tables show, worked out again from episodes and curves in plain Python."""
    path, summary, _ = finished
    rows, curves = read_episodes(path), read_curves(path)
    page = (path / "summary.md").read_text(encoding="utf-8").splitlines()

    def shown(title: str, router: str) -> list[str]:
        start = page.index(f"## {title}")
        lines = itertools.takewhile(bool, page[start + 2 :])
        [line] = [line for line in lines if re.match(rf"\| \*?{router}\b", line)]
        return runs.table_cells(line)

    def of(records: list[dict[str, Any]], place: str, router: str) -> list[dict[str, Any]]:
        return [one for one in records if (one["condition"], one["router"]) == (place, router)]

    def batches(place: str, router: str) -> list[list[float]]:
        """Return the four raw terms of every batch, by seed and window."""
        return [
            [line[term][k] for term in WINDOW_TERMS]
            for line in of(curves, place, router)
            for k, count in enumerate(line["requests"])
            if count
        ]

    for place, one in itertools.product(PLACES, SOME_ROUTERS):
        mine = of(rows, place.name, one)
        _, j, source, q, c, e, t, gap, latency, p99, decision, slowest, difference = shown(place.name, one)
        for cell, metric, scale, decimals in (
            (j, "objective", 1, 4),
            (q, "quality_loss", 1, 3),
            (c, "cost_usd", 1000, 2),
            (e, "energy_j", 1, 1),
            (t, "completion_s", 1, 3),
            (latency, "mean_latency_s", 1, 2),
            (p99, "p99_latency_s", 1, 2),
        ):
            mean = statistics.fmean(row[metric] for row in mine)
            assert float(cell) == pytest.approx(scale * mean, abs=0.51 * 10.0**-decimals), metric
        everybody = {label: batches(place.name, label) for label in SOME_ROUTERS}
        values = []
        for k, terms in enumerate(everybody[one]):
            ranges = [
                (min(b[k][i] for b in everybody.values()), max(b[k][i] for b in everybody.values()))
                for i in range(4)
            ]
            values.append(
                sum(
                    weight * (term - low) / (high - low) if high > low else 0.0
                    for term, (low, high), weight in zip(terms, ranges, place.config.weights, strict=True)
                )
            )
        assert float(source) == pytest.approx(statistics.fmean(values), abs=0.00051)
        above = sum(row["gap"] * row["nonempty_windows"] for row in mine)
        assert float(gap) == pytest.approx(
            100 * above / sum(row["bound"] * row["nonempty_windows"] for row in mine), abs=0.0051
        )
        times = sorted(ms for line in of(curves, place.name, one) for ms in line["decision_ms"] if ms > 0)
        assert float(decision) == pytest.approx(statistics.median(times), abs=0.0051)
        assert float(slowest) == pytest.approx(times[-1], abs=0.0051), "p99 of fewer than 100"
        reference = {row["seed"]: row["objective"] for row in of(rows, place.name, "cema")}
        mean = statistics.fmean(row["objective"] - reference[row["seed"]] for row in mine)
        if one == "cema":
            assert difference == "reference"
        else:
            assert float(difference.removeprefix("tie ").split()[0]) == pytest.approx(mean, abs=0.00006)
    assert summary["overall"]["routers"]["optimal"]["role"] == "yardstick"
    lowest = min(
        SOME_ROUTERS[:3], key=lambda one: sum(row["objective"] for row in rows if row["router"] == one)
    )
    assert summary["overall"]["best"] in (lowest, None)
    assert lowest in (summary["overall"]["best"], *summary["overall"]["tied"])


def test_episodes_are_means_of_their_windows(finished: Finished) -> None:
    path, _, _ = finished
    for row, line in zip(read_episodes(path), read_curves(path), strict=True):
        filled = [k for k, count in enumerate(line["requests"]) if count]
        assert len(filled) == row["nonempty_windows"]
        for name in ("objective", "objective_predicted", *WINDOW_TERMS, "bound"):
            assert row[name] == pytest.approx(statistics.fmean(line[name][k] for k in filled))
        times = [line["decision_ms"][k] for k in filled]
        assert row["decision_ms_median"] == pytest.approx(statistics.median(times), abs=1e-4)
        assert row["gap"] == pytest.approx(row["objective_predicted"] - row["bound"], abs=1e-5)


def test_a_run_with_more_processes_is_the_same_but_for_times(
    tmp_path: Path, finished: Finished, no_plots: None
) -> None:
    run(tmp_path, workers=2)
    assert_same_run(tmp_path, finished[0])
    again, first = (json.loads((path / "summary.json").read_text()) for path in (tmp_path, finished[0]))
    assert again["overall"] == first["overall"]
    assert [c["tied"] for c in again["conditions"]] == [c["tied"] for c in first["conditions"]]


def test_without_gaps_it_is_the_same_but_for_them(
    tmp_path: Path, finished: Finished, no_plots: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, text = run(tmp_path / "asked", gap=False)
    assert "Gaps to the optimum were not worked out." in text and "No gaps:" not in text
    assert not read_plan(tmp_path / "asked")["run"]["gap"]
    gapless = ("gap", "bound", "unproven_windows")
    for row, full in zip(cells(tmp_path / "asked"), cells(finished[0]), strict=True):
        assert [row[name] for name in gapless] == [""] * 3
        for name in row.keys() - {*gapless}:
            assert name.startswith("decision_ms") or row[name] == full[name]
    without_solver(monkeypatch)
    _, text = run(tmp_path / "missing", routers=ROUTERS[:3])
    assert "No gaps: the exact optimum needs highspy, which is not installed" in text
    assert not read_plan(tmp_path / "missing")["run"]["gap"]
    assert {row["gap"] for row in cells(tmp_path / "missing")} == {""}


def test_curves_are_kept_whether_asked_for_or_not(tmp_path: Path, no_plots: None) -> None:
    _, text = run(tmp_path, curves=False, routers=ROUTERS[:2], reference=None, gap=False)
    assert read_plan(tmp_path)["run"]["curves"]
    assert len(read_curves(tmp_path)) == 2 * len(PLACES) * len(SEEDS)
    assert "Δ to round_robin, J" in text, "the reference is the first router"


def test_a_router_that_makes_illegal_choices_is_shown_with_their_count(
    tmp_path: Path, no_plots: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, stubborn="Stubborn")
    listed = [router("stubborn"), router("uniroute")]
    _, text = run(tmp_path, routers=listed, conditions=PLACES[1:], reference=None, gap=False)
    invalid = sum(int(row["invalid_actions"]) for row in cells(tmp_path) if row["router"] == "stubborn")
    assert invalid > 0 and f"stubborn ({invalid} invalid)" in text
    assert "uniroute (" not in text


@pytest.mark.parametrize(
    ("family", "listed", "told"),
    [
        ("cloud_edge", runs.router("adaptive"), "router 'adaptive' is one of cluster, not of cloud_edge"),
        ("cluster", router("uniroute"), "router 'uniroute' is one of cloud_edge, not of cluster"),
    ],
)
def test_a_router_of_another_family_is_refused(
    family: str, listed: Router, told: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=re.escape(told)):
        compare(family, [listed], PLACES, SEEDS, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_plan_names_the_environment_and_the_solvers_version(finished: Finished) -> None:
    plan = read_plan(finished[0])
    assert plan["run"]["environment"] == "routing_gym/CloudEdgeBatch-v0"
    assert plan["run"]["roles"] == ["router", "router", "router", "yardstick"]
    assert "highspy" in plan["versions"]
    assert "highspy" not in runs.plan_of([runs.router("adaptive")], [runs.condition()], [1])["versions"]


# Taken up and run again


def interrupt_after(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the runner raise KeyboardInterrupt where it would yield its next result."""

    def interrupted(*args: Any, **kwargs: Any) -> Iterator[Result]:
        yield from itertools.islice(run_jobs(*args, **kwargs), count)
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "run_jobs", interrupted)


@pytest.mark.parametrize("count", [0, 1, 13])
def test_an_interrupt_loses_no_finished_episode_and_changes_no_result(
    count: int, tmp_path: Path, finished: Finished, no_plots: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as context:
        interrupt_after(count, context)
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path)
    assert not (tmp_path / "summary.json").exists(), "half a run has no summary"
    played: list[int] = []

    def counted(jobs: Sequence[Job], **how: Any) -> Iterator[Result]:
        played.append(len(jobs))
        return run_jobs(jobs, **how)

    monkeypatch.setattr(module, "run_jobs", counted)
    _, text = run(tmp_path, resume=True)
    assert played == [len(KEYS) - count]
    assert f"{len(KEYS)} of {len(KEYS)} episodes" in text
    assert_same_run(tmp_path, finished[0])


def test_a_yardsticks_row_without_its_curves_is_played_again(
    tmp_path: Path, finished: Finished, no_plots: None
) -> None:
    run(tmp_path)
    lines = (tmp_path / "curves.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "curves.jsonl").write_text("".join(line for line in lines if '"optimal"' not in line))
    run(tmp_path, resume=True)
    assert_same_run(tmp_path, finished[0])


def test_what_is_finished_can_be_resumed_and_keeps_even_its_times(tmp_path: Path, no_plots: None) -> None:
    run(tmp_path, seeds=SEEDS[:1])
    files = ("episodes.csv", "curves.jsonl", "summary.json")
    before = runs.read_bytes(tmp_path, *files)
    run(tmp_path, seeds=SEEDS[:1], resume=True)
    assert runs.read_bytes(tmp_path, *files) == before
    for other in ({"gap": False}, {"reference": "uniroute"}, {"seeds": SEEDS[:2]}):
        with pytest.raises(ResultsError, match="holds another run"):
            run(tmp_path, **{"seeds": SEEDS[:1], **other}, resume=True)
    assert runs.read_bytes(tmp_path, *files) == before


def test_overwriting_throws_the_plots_away_too(tmp_path: Path, no_plots: None) -> None:
    run(tmp_path, seeds=SEEDS[:1], routers=ROUTERS[2:], gap=False)
    for name in PLOTS["cloud_edge"]:
        (tmp_path / name).write_text("of the old run")
    run(tmp_path, seeds=SEEDS[1:2], routers=ROUTERS[2:], gap=False, overwrite=True)
    assert not list(tmp_path.glob("*.png"))
    assert {row["seed"] for row in cells(tmp_path)} == {str(SEEDS[1])}


def test_the_plan_runs_it_again(tmp_path: Path, finished: Finished, no_plots: None) -> None:
    plan = read_plan(finished[0])["run"]
    run(
        tmp_path,
        routers=[Router(**entry) for entry in plan["routers"]],
        conditions=[
            Condition(entry["name"], CloudEdgeConfig.create(entry["config"]), entry["labels"])
            for entry in plan["conditions"]
        ],
        seeds=plan["seeds"],
        reference=plan["reference"],
    )
    assert_same_run(tmp_path, finished[0])
    assert read_plan(tmp_path)["run"] == plan


def test_a_random_router_is_random_only_by_its_seed(tmp_path: Path, finished: Finished) -> None:
    rows = [row for row in read_episodes(finished[0]) if row["router"] == "cema"]
    assert len({row["objective"] for row in rows}) == len(rows), "seeds differ"
    assert np.all([row["decision_ms_median"] > 0 for row in rows])
