"""The examples run, with a small budget, and what they print is what the evaluation runner finds."""

from __future__ import annotations

import os
import re
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from routing_gym.cluster.config import ClusterConfig
from routing_gym.evaluation.runner import DEVELOPMENT_SEEDS, Condition, Router, make_jobs, run_jobs

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
CONDITIONS: dict[str, dict[str, Any]] = {
    "steady, 180/s": {"scenario": "steady", "rate_per_s": 180},
    "straggler, 180/s": {"scenario": "straggler", "rate_per_s": 180},
    "steady, 250/s": {"scenario": "steady", "rate_per_s": 250},
}
HEADER = "arrival_s,prompt_tokens,output_tokens"
Play = Callable[..., str]


@pytest.fixture
def play(tmp_path: Path) -> Play:
    """Return what runs an example in an empty folder, with warnings as errors, and returns what it prints."""

    def run(stem: str, *arguments: Any, status: int = 0) -> str:
        done = subprocess.run(
            [sys.executable, "-W", "error", str(EXAMPLES / f"{stem}.py"), *map(str, arguments)],
            capture_output=True,
            text=True,
            timeout=900,
            cwd=tmp_path,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        assert done.returncode == status, f"{done.stdout}\n{done.stderr}"
        assert status or not done.stderr, done.stderr
        return done.stderr if status else done.stdout

    return run


def table(printed: str, head: str) -> dict[str, dict[str, float]]:
    """Return the rows, by name and column, of the table whose first column is headed so."""
    at = re.search(rf"^{re.escape(head)}  ", printed, re.MULTILINE).start()  # type: ignore[union-attr]
    lines = printed[at:].partition("\n\n")[0].splitlines()
    _, *columns = re.split(r"  +", lines[0])
    rows = (re.split(r"  +", line) for line in lines[1:])
    return {name: dict(zip(columns, map(float, cells), strict=True)) for name, *cells in rows}


def attainment(name: str, seeds: Sequence[int] = DEVELOPMENT_SEEDS, **condition: Any) -> float:
    """Return what the runner finds, in percent."""
    jobs = make_jobs(
        [Router(name, f"cluster/{name}")], [Condition("one", ClusterConfig.create(**condition))], seeds
    )
    return 100 * statistics.fmean(result.metrics["attainment"] for result in run_jobs(jobs))


def check_training(printed: str, trained: str) -> None:
    """The fixed router has the runner's numbers, and training has got above round robin."""
    rows = table(printed, "% on time")
    assert rows.keys() == CONDITIONS.keys()
    for name, condition in CONDITIONS.items():
        expected = attainment("deadline_aware", **condition)
        assert rows[name]["deadline_aware"] == pytest.approx(expected, abs=0.0051)
    blind = statistics.fmean(attainment("round_robin", **condition) for condition in CONDITIONS.values())
    assert statistics.fmean(row[trained] for row in rows.values()) > blind


def test_every_example_is_tested() -> None:
    stems = {path.stem for path in EXAMPLES.glob("*.py")}
    assert "custom_reward" in stems
    assert {stem for stem in stems if f"test_{stem}" not in globals()} == set()


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["PPO", "MaskablePPO"])
def test_sb3_train(algorithm: str, play: Play, tmp_path: Path) -> None:
    pytest.importorskip("sb3_contrib", reason="needs the extra `agents`")
    import sb3_contrib
    import stable_baselines3

    printed = play("sb3_train", "--algorithm", algorithm, "--steps", 100_000, "--out", "router.zip")
    check_training(printed, algorithm)
    steps = int(re.search(r": (\d+) steps", printed)[1])  # type: ignore[index]
    cls: Any = getattr(sb3_contrib if algorithm == "MaskablePPO" else stable_baselines3, algorithm)
    assert cls.load(tmp_path / "router.zip", device="cpu").num_timesteps == steps >= 100_000


@pytest.mark.slow
def test_cleanrl_ppo(play: Play) -> None:
    pytest.importorskip("torch", reason="needs the extra `agents`")
    # Few rows, so that episodes end within the budget, and what follows a cut-off is learned from.
    printed = play("cleanrl_ppo", "--steps", 100_000, "--rows", 16)
    check_training(printed, "this router")
    *_, last = re.findall(r"^ +([\d,]+) steps, .*/s, (.*)$", printed, re.MULTILINE)
    assert last[0] == "100,352", "98 rollouts of 16 × 64"
    assert last[1].endswith("% on time in training"), "episodes ended"


@pytest.mark.slow
def test_rllib_ppo(play: Play) -> None:
    pytest.importorskip("ray", reason="needs the extra `scale`")
    check_training(play("rllib_ppo", "--steps", 20_000), "RLlib PPO")


@pytest.mark.slow
def test_custom_reward(play: Play) -> None:
    printed = play("custom_reward", "--steps", 5000)
    routers = table(printed.replace("\nbest", "\n\nbest"), "mean return")
    condition = CONDITIONS["straggler, 180/s"]
    for name, row in routers.items():
        # Two episodes of about 2700 decisions.
        assert row["% on time"] == pytest.approx(attainment(name, [10_000, 10_001], **condition), abs=0.0051)

    terms = [float(term) for term in re.findall(r"\w (\d+\.\d)", printed.partition("mo- twin, ")[2])]
    on_time, late, shed, latency, outstanding = terms
    assert on_time == routers["adaptive"]["on_time"] and outstanding > 0
    weights = on_time + 0.5 * late - 5 * shed - 0.0002 * latency
    assert routers["adaptive"]["weights"] == pytest.approx(weights, abs=0.6)
    assert routers["adaptive"]["latency"] == pytest.approx(-10 * shed - latency / 50, abs=0.6)
    by_hand = float(printed.rpartition("by hand: ")[2])
    assert by_hand == routers["adaptive"]["weights"]

    best = re.search(r"^best +(.+)$", printed, re.MULTILINE)[1].split()  # type: ignore[index]
    columns = ["on_time", "latency", "weights", "squared"]
    assert best == [max(routers, key=lambda name: routers[name][column]) for column in columns]
    assert len(set(best)) > 1, "what is best depends on what is paid"


@pytest.mark.slow
def test_replay_trace(play: Play, tmp_path: Path) -> None:
    made_up = table(play("replay_trace", "--seeds", 2), "router")
    assert all(0 < row["% on time"] < 100 and row["largest 5 %"] <= 100 for row in made_up.values())
    assert made_up["deadline_aware"]["% on time"] > made_up["round_robin"]["% on time"]

    # Equal requests, far apart: an idle replica serves each at once, in 8, 11 or 16 ms times the jitter.
    trace = tmp_path / "even.csv"
    rows = [f"{k / 10:.1f},100,50" for k in range(400)]
    trace.write_text("\n".join([HEADER, *rows]))
    given: tuple[Any, ...] = (trace, "--load", 0.05, "--seeds", 1, "--routers", "round_robin")
    even = table(play("replay_trace", *given), "router")
    (row,) = even.values()
    assert row["% on time"] == row["largest 5 %"] == 100 and row["% shed"] == 0
    assert 0.9 * 11 <= row["p50 ms"] <= 1.1 * 11 + 1 and row["p99 ms, all"] <= 1.1 * 16 + 1

    rng = np.random.default_rng(3)
    times = np.cumsum(rng.random(2000) / 40)
    rows = [f"{t:.3f},{p},{o}" for t, p, o in zip(times, *rng.integers(1, 300, (2, 2000)), strict=True)]
    trace.write_text("\n".join([HEADER, *rows]))
    assert "lasts 8.0 s at this load; an episode takes 15 s" in play("replay_trace", trace, status=1)
    given = (trace, "--full", "--seeds", 2, "--routers", "adaptive", "least_work")
    own = table(play("replay_trace", *given), "router")
    for name, row in own.items():
        expected = attainment(name, [10_000, 10_001], trace=str(trace), trace_full=True, load=0.9)
        assert row["% on time"] == pytest.approx(expected, abs=0.0051)

    trace.write_text(f"{HEADER}\n0.5,10,x\n")
    error = play("replay_trace", trace, status=1)
    assert error == f"error: {trace}, line 2: output_tokens = 'x': must be a whole number of tokens\n"


def check_recording(stem: str, play: Play, path: Path) -> None:
    """The file has as many pictures as the example says."""
    image = pytest.importorskip("PIL.Image", reason="needs the extra `render`")
    pytest.importorskip("pygame", reason="needs the extra `render`")
    printed = play(stem, "film.gif")
    with image.open(path / "film.gif") as film:
        assert printed == f"film.gif: {film.n_frames} pictures\n" and film.n_frames > 50


@pytest.mark.slow
def test_record_cloud_edge_gif(play: Play, tmp_path: Path) -> None:
    check_recording("record_cloud_edge_gif", play, tmp_path)


@pytest.mark.slow
def test_record_straggler_gif(play: Play, tmp_path: Path) -> None:
    check_recording("record_straggler_gif", play, tmp_path)
