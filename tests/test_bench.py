"""`routing-gym bench`: every row is measured beside CartPole, and a floor is judged by it. No speeds here."""

from __future__ import annotations

import io
import itertools
import math
import os
import platform
from collections.abc import Callable
from importlib.metadata import entry_points, version
from typing import Any

import pytest
from rich.console import Console

from routing_baselines.bench import DOCUMENTED, exploration_conditions
from routing_baselines.bench import benchmarks as baselines_benchmarks
from routing_gym import bench
from routing_gym.bench import REFERENCE, REFERENCE_RATE, Benchmark, benchmarks, run_benchmarks
from routing_gym.evaluation.runner import VALIDATION_SEEDS


def constant(rate: float) -> Callable[[float], float]:
    return lambda seconds: rate


def printed(seconds: float = 0.01, repeats: int = 1) -> str:
    out = io.StringIO()
    run_benchmarks(Console(file=out, width=200), seconds, repeats)
    return out.getvalue()


def row_of(text: str, name: str) -> list[str]:
    """Return the cells of the row of a benchmark."""
    [line] = [line for line in text.splitlines() if line.startswith(f"│ {name} ")]
    return [cell.strip() for cell in line.strip("│").split("│")]


@pytest.fixture
def listed(monkeypatch: pytest.MonkeyPatch) -> list[Benchmark]:
    """The benchmarks that are run, none of other packages."""
    rows = [Benchmark(REFERENCE, "steps/s", constant(100_000.0))]
    monkeypatch.setattr(bench, "benchmarks", lambda: rows)
    monkeypatch.setattr(bench, "entry_points", lambda group: [])
    return rows


# Floors


@pytest.mark.parametrize(
    ("unit", "floor", "relative", "value", "reference", "verdict"),
    [
        # A multiple of CartPole's own rate: it shrinks with a slower machine, and grows with a faster one.
        ("decisions/s", 15.0, True, 3e6, REFERENCE_RATE, "ok"),
        ("decisions/s", 15.0, True, 2.99e6, REFERENCE_RATE, "below"),
        ("decisions/s", 15.0, True, 1.5e6, REFERENCE_RATE / 2, "ok"),
        ("decisions/s", 15.0, True, 1.49e6, REFERENCE_RATE / 2, "below"),
        ("decisions/s", 15.0, True, 5.9e6, REFERENCE_RATE * 2, "below"),
        ("steps/s", 1.0, True, 123.0, 123.0, "ok"),
        ("steps/s", 1.0, True, 122.0, 123.0, "below"),
        ("steps/s", 2.0, True, 245.0, 123.0, "below"),
        # A duration: less is better, and a slower machine may take longer.
        ("s", 10.0, False, 10.0, REFERENCE_RATE, "ok"),
        ("s", 10.0, False, 10.1, REFERENCE_RATE, "below"),
        ("s", 10.0, False, 19.9, REFERENCE_RATE / 2, "ok"),
        ("s", 10.0, False, 20.1, REFERENCE_RATE / 2, "below"),
        ("s", 10.0, False, 5.1, REFERENCE_RATE * 2, "below"),
        ("s", None, False, 1e9, REFERENCE_RATE, ""),
        # A shortfall in percent is the same on every machine.
        ("%", 0.1, False, 0.1, REFERENCE_RATE / 2, "ok"),
        ("%", 0.1, False, 0.11, REFERENCE_RATE / 2, "below"),
    ],
)
def test_a_floor_is_scaled_to_the_machine(
    unit: str,
    floor: float | None,
    relative: bool,
    value: float,
    reference: float,
    verdict: str,
    listed: list[Benchmark],
) -> None:
    listed[0] = Benchmark(REFERENCE, "steps/s", constant(reference))
    listed.append(Benchmark("it", unit, constant(value), floor, relative))
    assert row_of(printed(), "it")[-1] == verdict


def test_floors_and_the_reference_are_the_designs() -> None:
    floors = {
        row.name: (row.unit, row.floor, row.relative) for row in (*benchmarks(), *baselines_benchmarks())
    }
    assert REFERENCE_RATE == 200_000
    assert floors["routing_gym/InferenceCluster-v0 through gym.make"] == ("steps/s", 1.0, True)
    assert floors["routing_gym/InferenceCluster-v0, 1024 rows"] == ("decisions/s", 15.0, True)
    assert floors["routing_gym/CloudEdgeBatch-v0, 256 rows, batches of 32"] == ("windows/s", 0.1, True)
    assert floors["routing_gym/CloudEdgeRequest-v0, 1024 rows, batches of 32"] == ("decisions/s", 5.0, True)
    assert floors["import routing_gym"] == ("s", 0.6, False)
    assert floors["cema decision, R = 30, M = 11"] == ("s", 0.003, False)
    assert floors["cema decision, R = 30, M = 88"] == ("s", 0.004, False)
    for case in ("R = 30, M = 11", "R = 128, M = 11, backlog, speed-up 3"):
        assert floors[f"local_search decision, {case}"] == ("s", 0.0015, False)
        assert floors[f"local_search above the proven optimum, {case}"] == ("%", 0.1, False)
    exploration = "exploration study, 24 × 24 episodes × 4 routers, one process"
    assert floors[exploration] == ("s", 10.0, False)


# What is measured, and how often


def test_rows_take_turns_and_a_slow_one_is_measured_once(listed: list[Benchmark]) -> None:
    calls: list[str] = []

    def telling(name: str) -> Callable[[float], float]:
        def measure(seconds: float) -> float:
            assert seconds == 0.25
            calls.append(name)
            return 1.0 + len(calls)

        return measure

    listed[:] = [
        Benchmark(REFERENCE, "steps/s", telling("reference")),
        Benchmark("slow", "s", telling("slow"), once=True),
        Benchmark("quick", "steps/s", telling("quick")),
    ]
    printed(seconds=0.25, repeats=3)
    assert calls == ["reference", "slow", "quick", "reference", "quick", "reference", "quick"]


def test_a_row_shows_median_spread_and_multiple_of_cartpole(listed: list[Benchmark]) -> None:
    rates = itertools.chain([50_000.0, 1_000_000.0, 400_000.0])
    listed.append(Benchmark("it", "steps/s", lambda seconds: next(rates), floor=4.0, relative=True))
    listed.append(Benchmark("how long", "s", constant(0.1234), floor=0.6))
    text = printed(repeats=3)
    assert row_of(text, "it") == [
        "it",
        "400,000",
        "steps/s",
        "50,000–1,000,000",
        "4.00",
        "4 × CartPole",
        "ok",
    ]
    assert row_of(text, "how long") == ["how long", "0.123", "s", "0.123–0.123", "", "1.2", "ok"]
    assert row_of(text, REFERENCE)[1:] == ["100,000", "steps/s", "100,000–100,000", "1.00", "", ""]
    assert "Medians of 3." in text
    assert "CartPole makes 200,000 steps/s, here 100,000, and are scaled to that." in text


def test_versions_and_machine_are_named(listed: list[Benchmark]) -> None:
    last = printed().splitlines()[-1]
    for package in ("routing-gym", "gymnasium", "numpy", "numba"):
        assert f"{package} {version(package)}" in last
    assert f"Python {platform.python_version()}" in last
    assert f"{os.cpu_count()} CPUs" in last
    assert bench._processor() in last and bench._processor()


def test_other_packages_add_their_rows(monkeypatch: pytest.MonkeyPatch, listed: list[Benchmark]) -> None:
    class Entry:
        def load(self) -> Callable[[], list[Benchmark]]:
            return lambda: [Benchmark("theirs", "steps/s", constant(5.0))]

    groups: dict[str, list[Any]] = {"routing_gym.benchmarks": [Entry()]}
    monkeypatch.setattr(bench, "entry_points", lambda group: groups.get(group, []))
    assert row_of(printed(), "theirs")[1] == "5"


def test_the_fixed_routers_bring_theirs() -> None:
    names = {entry.name: entry.load() for entry in entry_points(group="routing_gym.benchmarks")}
    assert names["baselines"] is baselines_benchmarks


def test_the_exploration_study_is_the_issues() -> None:
    conditions = exploration_conditions()
    found = {(c.config.rate_per_s, c.config.heterogeneity, c.config.scenario) for c in conditions}
    scenarios = ("steady", "burst", "straggler", "failure")
    assert found == set(itertools.product((100, 180, 250), (0.5, 1.0), scenarios))
    assert len({condition.name for condition in conditions}) == len(conditions) == 24
    assert len(VALIDATION_SEEDS) == 24
    assert DOCUMENTED == ("round_robin", "least_queue", "latency_aware", "adaptive")


def test_the_study_measures_all_of_its_episodes(monkeypatch: pytest.MonkeyPatch) -> None:
    played: list[int] = []

    def play(jobs: list[Any]) -> list[Any]:
        played.append(len(jobs))
        return jobs

    monkeypatch.setattr("routing_baselines.bench.run_jobs", play)
    [row] = [row for row in baselines_benchmarks() if row.name.startswith("exploration")]
    assert row.measure(1.0) >= 0
    assert played == [24 * 24 * 4]


# The measurements themselves


@pytest.mark.parametrize("row", benchmarks()[:4], ids=lambda row: row.name)
def test_a_measurement_is_a_positive_number(row: Benchmark) -> None:
    rate = row.measure(0.02)
    assert math.isfinite(rate) and rate > 0


@pytest.mark.parametrize("run", bench.VECTOR_RUNS, ids=lambda run: run.env_id)
def test_a_vector_environments_rate_is_a_positive_number(run: bench.VectorRun) -> None:
    rate = bench._vector_decisions(run._replace(rows=8, decisions=50), 0.02)
    assert math.isfinite(rate) and rate > 0


def test_importing_takes_time_in_a_process_of_its_own() -> None:
    [row] = [row for row in benchmarks() if row.name == "import routing_gym"]
    assert 0 < row.measure(0.01) < 60


@pytest.mark.slow
def test_everything_installed_is_measured_beside_cartpole() -> None:
    text = printed(seconds=0.05)
    listed = benchmarks()
    for entry in entry_points(group="routing_gym.benchmarks"):
        listed += entry.load()()
    assert listed[0].name == REFERENCE
    for row in listed:
        _, median, unit, _, multiple, _, verdict = row_of(text, row.name)
        assert float(median.replace(",", "")) > 0 and unit == row.unit
        assert bool(multiple) == (row.unit in ("steps/s", "decisions/s", "windows/s"))
        assert verdict in (("ok", "below") if row.floor is not None else ("",))
    assert f"numba {version('numba')}" in text
    for env_id in (bench.CLUSTER, bench.BATCH):
        cold = row_of(text, f"first reset of {env_id}, kernel compiled (cold)")[1]
        warm = row_of(text, f"first reset of {env_id}, kernel cached (warm)")[1]
        assert float(warm) < float(cold), "a warm start loads what a cold one compiled"
