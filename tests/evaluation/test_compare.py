"""A comparison from start to finish, and one that is interrupted and taken up again."""

from __future__ import annotations

import csv
import io
import itertools
import json
import re
import statistics
from collections.abc import Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from routing_gym.cluster.config import ClusterConfig
from routing_gym.evaluation import compare as module
from routing_gym.evaluation.compare import compare
from routing_gym.evaluation.results import ResultsError, read_plan, strict_json
from routing_gym.evaluation.runner import Condition, Job, Result, Router, run_jobs
from tests.evaluation.runs import condition, hide_matplotlib, install, read_bytes, router, table_cells

ROUTERS = list(map(router, ["round_robin", "least_queue", "deadline_aware", "clairvoyant", "bound"]))
FAILURE = [
    {"time_s": 0.2, "kind": "failure", "replica": 0},
    {"time_s": 0.4, "kind": "recovery", "replica": 0},
]
PLACES = [
    condition("busy", rate_per_s=300.0),
    condition("failure, small queues", rate_per_s=250.0, events=FAILURE, queue_capacity=6),
]
SEEDS = [30_000, 30_001, 30_002, 30_003]
FILES = ("episodes.csv", "summary.json")


def run(path: Path, **how: Any) -> tuple[dict[str, Any], str]:
    """Compare, and return the summary and what was printed."""
    out = io.StringIO()
    how = {"routers": ROUTERS, "conditions": PLACES, "seeds": SEEDS, **how}
    summary = compare("cluster", out=path, console=Console(file=out, width=200), **how)
    return summary, out.getvalue()


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any], str]:
    """A comparison with plots that nothing interrupted: its folder, its summary, what it printed."""
    path = tmp_path_factory.mktemp("results") / "new" / "folder"
    return (path, *run(path, reference="least_queue"))


def cells(path: Path) -> list[dict[str, str]]:
    with open(path / "episodes.csv", newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


# From start to finish


def test_a_comparison_leaves_its_files(finished: tuple[Path, dict[str, Any], str]) -> None:
    path, _, text = finished
    plots = ["attainment.png", "latency_cdf.png", "queues.png"]
    kept = ["episodes.csv", "curves.jsonl", "config.yaml", "summary.json", "summary.md", *plots]
    assert sorted(file.name for file in path.iterdir()) == sorted(kept)
    assert f"Results in {path}: episodes.csv, summary.md, config.yaml, {', '.join(plots)}" in text
    imread = pytest.importorskip("matplotlib.image", reason="needs the extra `plots`").imread
    for plot in plots:
        assert np.ptp(imread(path / plot)[..., :3]) > 0.9, f"{plot} is blank"


def test_there_is_a_row_for_each_router_condition_and_seed(
    finished: tuple[Path, dict[str, Any], str],
) -> None:
    path, _, text = finished
    keys = [(row["condition"], row["router"], int(row["seed"])) for row in cells(path)]
    names = [place.name for place in PLACES]
    assert keys == list(itertools.product(names, [one.label for one in ROUTERS], SEEDS))
    assert f"{len(keys)} of {len(keys)} episodes" in text


def test_counts_add_up_and_nobody_is_above_the_bound_in_any_row(
    finished: tuple[Path, dict[str, Any], str],
) -> None:
    rows = cells(finished[0])
    bound = {(r["condition"], r["seed"]): r for r in rows if r["router"] == "bound"}
    shed = 0
    for row in rows:
        most = bound[row["condition"], row["seed"]]
        assert row["arrivals"] == most["arrivals"]
        assert int(row["on_time"]) <= int(most["on_time"])
        if row["router"] != "bound":
            arrivals, completed = int(row["arrivals"]), int(row["completed"])
            assert arrivals == completed + int(row["shed"]) + int(row["unfinished"])
            assert completed == int(row["on_time"]) + int(row["late"])
            assert float(row["attainment"]) == int(row["on_time"]) / arrivals
            shed += int(row["shed"])
    assert shed > 0, "the condition is too easy to show anything"


def plain_interquartile_mean(values: list[Fraction]) -> Fraction:
    """Four copies of each value make each quarter a whole number of them."""
    ordered = sorted(values * 4)
    middle = ordered[len(values) : -len(values)]
    return sum(middle, Fraction()) / len(middle)


def test_the_tables_follow_from_the_episodes(finished: tuple[Path, dict[str, Any], str]) -> None:
    """Everything that the tables show, worked out again from the CSV in plain Python."""
    path, summary, _ = finished
    rows = cells(path)
    page = (path / "summary.md").read_text(encoding="utf-8").splitlines()

    def shown(title: str, router: str) -> list[str]:
        start = page.index(f"## {title}")
        lines = itertools.takewhile(bool, page[start + 2 :])
        [line] = [line for line in lines if re.match(rf"\| \*?{router}\b", line)]
        return table_cells(line)

    def column(place: str, router: str, name: str) -> list[float]:
        found = [r[name] for r in rows if (r["condition"], r["router"]) == (place, router)]
        return [float(cell) for cell in found if cell]

    places = [place.name for place in PLACES]
    for place, one in itertools.product(places, (one.label for one in ROUTERS)):
        _, attain, p50, p99, p99_all, largest, miss, shed, difference = shown(place, one)
        assert attain == f"{100 * statistics.median(column(place, one, 'attainment')):.1f}"
        mine, reference = column(place, one, "attainment"), column(place, "least_queue", "attainment")
        mean = statistics.fmean(a - b for a, b in zip(mine, reference, strict=True))
        if one == "least_queue":
            assert difference == "reference"
        else:
            numbers = re.fullmatch(r"(tie )?([+-][\d.]+) \[([+-][\d.]+), ([+-][\d.]+)\]", difference)
            assert numbers is not None, difference
            assert float(numbers[2]) == pytest.approx(100 * mean, abs=0.0501)
            assert float(numbers[3]) <= float(numbers[2]) <= float(numbers[4])
            if float(numbers[3]) * float(numbers[4]) < 0:
                assert numbers[1], "an interval that holds 0 is a tie"
        if one == "bound":
            assert [p50, p99, p99_all, largest, miss, shed] == ["—"] * 6
            continue
        assert p50 == f"{statistics.median(column(place, one, 'p50_ms')):.1f}"
        p99s = column(place, one, "p99_ms")
        assert p99 == f"{statistics.median(p99s):.0f} ({min(p99s):.0f}–{max(p99s):.0f})"
        middle = statistics.median(column(place, one, "p99_all_ms"))
        assert p99_all == ("∞" if middle == float("inf") else f"{middle:.0f}")
        assert largest == f"{100 * statistics.median(column(place, one, 'attainment_largest_5pct')):.1f}"
        assert miss == f"{100 * statistics.median(column(place, one, 'slo_miss_rate')):.1f}"
        assert shed == f"{100 * statistics.median(column(place, one, 'shed_rate')):.1f}"

    def scores(router: str) -> list[list[Fraction]]:
        return [list(map(Fraction, column(place, router, "attainment"))) for place in places]

    overall = summary["overall"]["routers"]
    assert list(overall) == [one.label for one in ROUTERS]
    theirs_by_place = scores("least_queue")
    for one in overall:
        by_place = scores(one)
        everything = [score for row in by_place for score in row]
        name, mean_, iqm, _, better = shown("All 2 conditions, attainment", one)
        assert mean_ == f"{100 * float(sum(everything) / len(everything)):.2f}"
        assert overall[one]["iqm"]["value"] == pytest.approx(float(plain_interquartile_mean(everything)))
        low, high = overall[one]["iqm"]["low"], overall[one]["iqm"]["high"]
        assert iqm == f"{100 * overall[one]['iqm']['value']:.1f} [{100 * low:.1f}, {100 * high:.1f}]"
        if one == "least_queue":
            assert better == "—"
            continue
        wins = [
            sum((a > b) + Fraction(a == b, 2) for a in ours for b in theirs) / (len(ours) * len(theirs))
            for ours, theirs in zip(by_place, theirs_by_place, strict=True)
        ]
        assert overall[one]["probability_of_improvement"] == pytest.approx(float(sum(wins) / len(wins)))
        assert better == f"{float(sum(wins) / len(wins)):.2f}"
        assert ("★" in name) == (summary["overall"]["best"] == one)


def test_the_summary_is_what_the_file_holds(finished: tuple[Path, dict[str, Any], str]) -> None:
    path, summary, _ = finished

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    text = (path / "summary.json").read_text(encoding="utf-8")
    assert json.loads(text, parse_constant=refuse) == strict_json(summary)
    assert "inf" in text, "an episode under overload has an infinite p99 over all arrivals"


def test_nothing_is_printed_unasked(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    compare("cluster", ROUTERS[:2], PLACES[:1], SEEDS[:2], tmp_path, curves=False)
    assert capfd.readouterr() == ("", "")


def test_without_matplotlib_all_but_the_plots_is_there(
    tmp_path: Path, finished: tuple[Path, dict[str, Any], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    hide_matplotlib(monkeypatch)
    _, text = run(tmp_path, reference="least_queue")
    assert 'No plots: matplotlib is missing; pip install "routing-gym[plots]"' in text
    assert f"Results in {tmp_path}: episodes.csv, summary.md, config.yaml" in text.splitlines()
    assert not list(tmp_path.glob("*.png"))
    assert read_bytes(tmp_path, *FILES, "curves.jsonl") == read_bytes(finished[0], *FILES, "curves.jsonl")


def test_what_the_plots_leave_out_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib", reason="needs the extra `plots`")
    monkeypatch.setattr("routing_gym.evaluation.plots.MOST_PANELS", 1)
    _, text = run(tmp_path, routers=ROUTERS[:1], curves=False)
    assert "Plots show the first 1 of the 2 conditions" in text


def test_a_router_that_names_ineligible_replicas_is_shown_with_their_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hide_matplotlib(monkeypatch)
    install(monkeypatch, stubborn="Stubborn", half="Half")
    summary, text = run(tmp_path, routers=[router("stubborn"), ROUTERS[1], router("half")])
    rows = cells(tmp_path)
    for place in PLACES:
        invalid = sum(
            int(row["invalid_actions"])
            for row in rows
            if (row["condition"], row["router"]) == (place.name, "stubborn")
        )
        assert invalid > 0
        assert f"stubborn ({invalid} invalid)" in text
    total = sum(int(row["invalid_actions"]) for row in rows if row["router"] == "stubborn")
    assert text.count("(") and f"stubborn ({total} invalid)" in text.rpartition("All 2 conditions")[2]
    assert "least_queue (" not in text
    assert summary["conditions"][0]["routers"]["half"]["role"] == "yardstick"


def test_the_reference_is_the_first_router_unless_another_is_named(
    tmp_path: Path, finished: tuple[Path, dict[str, Any], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    hide_matplotlib(monkeypatch)
    summary, _ = run(tmp_path, routers=ROUTERS[:2], seeds=SEEDS[:2])
    assert (summary["reference"], finished[1]["reference"]) == ("round_robin", "least_queue")


# Refused before anything is written


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"routers": []}, "no router is listed"),
        ({"conditions": []}, "no condition is listed"),
        ({"seeds": []}, "no seed is listed"),
        ({"routers": [ROUTERS[0], ROUTERS[0]]}, "router 'round_robin' is listed twice"),
        ({"conditions": [PLACES[0], condition("busy")]}, "condition 'busy' is listed twice"),
        ({"seeds": [3, 4, 3]}, "seed 3 is listed twice"),
        ({"reference": "nobody"}, "reference = 'nobody': must be one of the routers, round_robin, least"),
        ({"workers": 0}, "workers = 0: must be at least 1"),
        ({"routers": [router("adaptive", c=-1.0)]}, "c = -1.0: must not be negative"),
        ({"routers": [Router("x", "cluster/adaptiv")]}, "did you mean cluster/adaptive"),
    ],
)
def test_what_cannot_be_run_is_refused_before_anything_is_written(
    wrong: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        run(tmp_path / "out", **wrong)
    assert not (tmp_path / "out").exists()


def test_an_unknown_parameter_is_named_with_its_router(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"router 'cluster/adaptive' with d = 2: .*'d'"):
        run(tmp_path / "out", routers=[router("adaptive", d=2)])
    assert not (tmp_path / "out").exists()


# Interrupted


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("uninterrupted")
    with pytest.MonkeyPatch.context() as monkeypatch:
        hide_matplotlib(monkeypatch)
        run(path)
    return path


def interrupt_after(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the runner raise KeyboardInterrupt where it would yield its next result."""

    def interrupted(*args: Any, **kwargs: Any) -> Iterator[Result]:
        yield from itertools.islice(run_jobs(*args, **kwargs), count)
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "run_jobs", interrupted)


@pytest.mark.parametrize("count", [0, 1, 23, 40])
def test_an_interrupt_loses_no_finished_episode_and_changes_no_result(
    count: int, tmp_path: Path, uninterrupted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hide_matplotlib(monkeypatch)
    with monkeypatch.context() as context:
        interrupt_after(count, context)
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path)
    assert not (tmp_path / "summary.json").exists(), "half a run has no summary"
    if count:
        assert len(cells(tmp_path)) == count
    played: list[int] = []

    def counted(jobs: Sequence[Job], **how: Any) -> Iterator[Result]:
        played.append(len(jobs))
        return run_jobs(jobs, **how)

    monkeypatch.setattr(module, "run_jobs", counted)
    _, text = run(tmp_path, resume=True)
    assert played == [40 - count]
    assert "40 of 40 episodes" in text
    assert read_bytes(tmp_path, *FILES, "curves.jsonl") == read_bytes(uninterrupted, *FILES, "curves.jsonl")


def test_a_run_may_be_interrupted_again_and_again(
    tmp_path: Path, uninterrupted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hide_matplotlib(monkeypatch)
    for count in (7, 0, 20):
        with monkeypatch.context() as context:
            interrupt_after(count, context)
            with pytest.raises(KeyboardInterrupt):
                run(tmp_path, resume=True)
    assert len(cells(tmp_path)) == 27
    run(tmp_path, resume=True)
    assert read_bytes(tmp_path, *FILES) == read_bytes(uninterrupted, *FILES)


def test_an_interrupt_between_curves_and_row_plays_that_episode_again(
    tmp_path: Path, uninterrupted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hide_matplotlib(monkeypatch)
    with monkeypatch.context() as context:
        interrupt_after(5, context)
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path)
    rows = (tmp_path / "episodes.csv").read_bytes()
    (tmp_path / "episodes.csv").write_bytes(rows[:-60])
    run(tmp_path, resume=True)
    assert read_bytes(tmp_path, *FILES, "curves.jsonl") == read_bytes(uninterrupted, *FILES, "curves.jsonl")


def test_what_is_finished_can_be_resumed_and_is_the_same(
    tmp_path: Path, uninterrupted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hide_matplotlib(monkeypatch)
    for resume in (False, True, True):
        run(tmp_path, resume=resume)
        assert read_bytes(tmp_path, *FILES) == read_bytes(uninterrupted, *FILES)


def test_a_second_run_into_the_same_folder_is_refused_or_replaces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hide_matplotlib(monkeypatch)
    run(tmp_path, seeds=SEEDS[:2])
    before = read_bytes(tmp_path, *FILES)
    with pytest.raises(ResultsError, match="already holds a run"):
        run(tmp_path, seeds=SEEDS[:1])
    with pytest.raises(ResultsError, match=r"holds another run \(seeds differ\)"):
        run(tmp_path, seeds=SEEDS[:1], resume=True)
    assert read_bytes(tmp_path, *FILES) == before
    run(tmp_path, seeds=SEEDS[:1], overwrite=True)
    assert {row["seed"] for row in cells(tmp_path)} == {str(SEEDS[0])}


def test_the_plan_runs_it_again(
    tmp_path: Path, finished: tuple[Path, dict[str, Any], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    hide_matplotlib(monkeypatch)
    plan = read_plan(finished[0])["run"]
    run(
        tmp_path,
        routers=[Router(**entry) for entry in plan["routers"]],
        conditions=[
            Condition(entry["name"], ClusterConfig.create(entry["config"]), entry["labels"])
            for entry in plan["conditions"]
        ],
        seeds=plan["seeds"],
        reference=plan["reference"],
    )
    assert read_bytes(tmp_path, *FILES) == read_bytes(finished[0], *FILES)
