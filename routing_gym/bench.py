"""`routing-gym bench`: how fast everything installed is on this machine (DESIGN 7).

A benchmark is a callable that takes the seconds one measurement may last and returns its rate. Other
packages add theirs through the entry-point group `routing_gym.benchmarks`: a function that returns a list of
`Benchmark`.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import entry_points
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium.utils.performance import benchmark_init, benchmark_step
from gymnasium.vector import AutoresetMode
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

CLUSTER, BATCH, REQUEST = (
    f"routing_gym/{name}-v0" for name in ("InferenceCluster", "CloudEdgeBatch", "CloudEdgeRequest")
)


class VectorRun(NamedTuple):
    """How a vector environment is measured.

    `decisions` is how many steps an episode has on average; `floor` a multiple of CartPole's steps/s.
    """

    env_id: str
    rows: int
    decisions: int
    unit: str
    floor: float
    arguments: Mapping[str, Any]
    note: str = ""


FULL = {"requests": 32, "max_requests": 32}  # R_max = 32, M = 11
VECTOR_RUNS = (
    VectorRun(CLUSTER, 1024, 2700, "decisions/s", 15.0, {}),  # 180/s for 15 s
    VectorRun(BATCH, 256, 60, "windows/s", 0.1, FULL, ", batches of 32"),
    VectorRun(REQUEST, 1024, 60 * 32, "decisions/s", 5.0, FULL, ", batches of 32"),
)
RATES = ("steps/s", *dict.fromkeys(run.unit for run in VECTOR_RUNS))


@dataclass(frozen=True)
class Benchmark:
    """Something to measure.

    Attributes:
        name: what is measured.
        unit: of the rate; `s` marks a duration and `%` a shortfall, of which less is better.
        measure: takes seconds, returns the rate (or duration) over about that long.
        floor: what the design asks for: a multiple of CartPole's rate, seconds on a machine where CartPole
            makes 200,000 steps/s, or percent.
        relative: whether the floor is such a multiple.
        once: whether it is measured once, as it is slow and repeats nothing.
    """

    name: str
    unit: str
    measure: Callable[[float], float]
    floor: float | None = None
    relative: bool = False
    once: bool = False


REFERENCE = "CartPole-v1 through gym.make"
REFERENCE_RATE = 200_000.0


def benchmarks() -> list[Benchmark]:
    """Return the environments' own benchmarks."""
    singles = [
        Benchmark(f"{env_id} through gym.make", "steps/s", partial(_steps, env_id))
        for env_id in (CLUSTER, BATCH, REQUEST)
    ]
    # The cluster's floor is the only one that the design gives a single environment.
    singles[0] = replace(singles[0], floor=1.0, relative=True)
    vectors = [
        Benchmark(
            f"{run.env_id}, {run.rows} rows{run.note}",
            run.unit,
            partial(_vector_decisions, run),
            floor=run.floor,
            relative=True,
        )
        for run in VECTOR_RUNS
    ]
    return [
        Benchmark(REFERENCE, "steps/s", partial(_steps, "CartPole-v1")),
        *singles,
        *vectors,
        Benchmark(
            "gym.make and reset, kernel compiled",
            "envs/s",
            lambda seconds: benchmark_init(lambda: gym.make(CLUSTER), int(max(1, seconds)), 0),
        ),
        Benchmark("import routing_gym", "s", _import_time, floor=0.6),
        *(
            Benchmark(
                f"first reset of {env_id}, {state}", "s", partial(_first_reset, env_id, cold), once=cold
            )
            for env_id in (CLUSTER, BATCH)
            for cold, state in ((True, "kernel compiled (cold)"), (False, "kernel cached (warm)"))
        ),
    ]


def decision_time(router: Any, observations: Sequence[Any], seconds: float) -> float:
    """Return the median time of a router's decisions on observations, each asked as often, s."""
    router.predict(observations[0])  # compiles
    times, start = list[float](), time.perf_counter()
    while time.perf_counter() - start < seconds or not times:
        for observation in observations:
            begun = time.perf_counter()
            router.predict(observation)
            times.append(time.perf_counter() - begun)
    return median(times)


def _steps(env_id: str, seconds: float) -> float:
    """Return steps/s with random actions, resets included, as Gymnasium measures it."""
    env = gym.make(env_id)
    _play_once(env)  # compiles
    # Whole seconds only: Gymnasium asks for an int, and compares a float just as well.
    rate = benchmark_step(env, seconds, seed=0)  # type: ignore[arg-type]
    env.close()
    return rate


def _play_once(env: gym.Env[Any, Any]) -> None:
    """Play an episode to its end, at which the last pieces are compiled."""
    env.reset(seed=0)
    over = False
    while not over:
        _, _, terminated, truncated, _ = env.step(env.action_space.sample())
        over = terminated or truncated


def _vector_decisions(run: VectorRun, seconds: float) -> float:
    """Return decisions/s with random valid actions and full observations, resets included.

    Rows that start together end at about the same time. What is timed is therefore as many steps as an
    episode has decisions on average, from the middle of one episode to the middle of the next: one reset and
    one episode's metrics per row.
    """
    rng = np.random.default_rng(0)
    mode = AutoresetMode.SAME_STEP
    envs = gym.make_vec(run.env_id, num_envs=run.rows, autoreset_mode=mode, **run.arguments)
    _, info = envs.reset(seed=0)

    def play(steps: int) -> None:
        nonlocal info
        for _ in range(steps):
            mask = info["action_mask"]
            chances = rng.random(mask.shape, dtype=np.float32)
            _, _, _, _, info = envs.step((chances * mask).argmax(axis=-1))

    play(run.decisions // 2)
    episodes, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        play(run.decisions)
        episodes += run.rows
    return episodes * run.decisions / (time.perf_counter() - start)


def _import_time(_: float) -> float:
    """Return how long a fresh process takes for `import routing_gym`, beyond starting Python."""
    code = "import time; s = time.perf_counter(); import routing_gym; print(time.perf_counter() - s)"
    return float(
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    )


def _first_reset(env_id: str, cold: bool, _: float) -> float:
    """Return how long a fresh process takes to compile (or load) the kernel and reset."""
    code = (
        "import gymnasium as gym, routing_gym, time; s = time.perf_counter(); "
        f"gym.make({env_id!r}).reset(seed=0); print(time.perf_counter() - s)"
    )
    with tempfile.TemporaryDirectory() as folder:
        environ = {**os.environ, "NUMBA_CACHE_DIR": folder} if cold else dict(os.environ)
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environ
        )
    return float(done.stdout)


def run_benchmarks(console: Console, seconds: float, repeats: int) -> None:
    """Measure everything that is installed and print a table.

    Repeats go round all rows in turn, so that a busy moment of a shared machine does not fall on one row
    alone; medians are shown, and each rate as a multiple of CartPole's in the same run.

    Args:
        console: where to print.
        seconds: for each measurement.
        repeats: measurements per row.
    """
    listed = benchmarks()
    for entry in entry_points(group="routing_gym.benchmarks"):
        listed += entry.load()()
    found: dict[str, list[float]] = {row.name: [] for row in listed}
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("bench", total=sum(1 if row.once else repeats for row in listed))
        for turn in range(repeats):
            for row in listed:
                if turn == 0 or not row.once:
                    progress.update(task, description=row.name)
                    found[row.name].append(row.measure(seconds))
                    progress.advance(task)
    medians = {name: median(values) for name, values in found.items()}
    reference = medians[REFERENCE]
    table = Table(title="Speed on this machine", title_justify="left")
    for header in ("what", "median", "unit", "spread", "× CartPole", "floor", ""):
        table.add_column(header, justify="left" if header in ("what", "unit") else "right")
    for row in listed:
        value, values = medians[row.name], found[row.name]
        table.add_row(
            row.name,
            _number(value),
            row.unit,
            f"{_number(min(values))}–{_number(max(values))}",
            f"{value / reference:.2f}" if row.unit in RATES else "",
            _shown_floor(row, reference),
            _verdict(row, value, reference),
        )
    console.print(table)
    console.print(
        f"Medians of {repeats}. Floors in seconds are of a machine on which CartPole "
        f"makes {REFERENCE_RATE:,.0f} steps/s, here {reference:,.0f}, and are scaled to that."
    )
    versions = ", ".join(
        f"{name} {importlib.metadata.version(name)}"
        for name in ("routing-gym", "gymnasium", "numpy", "numba")
    )
    console.print(f"{versions}, Python {platform.python_version()}; {_processor()}, {os.cpu_count()} CPUs.")


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _floor(row: Benchmark, reference: float) -> float | None:
    """Return a row's floor on this machine: durations are scaled by CartPole's rate, as rates are."""
    if row.floor is None or row.unit == "%":
        return row.floor
    return row.floor * reference if row.relative else row.floor * REFERENCE_RATE / reference


def _shown_floor(row: Benchmark, reference: float) -> str:
    floor = _floor(row, reference)
    if floor is None:
        return ""
    return f"{row.floor:g} × CartPole" if row.relative else _number(floor)


def _verdict(row: Benchmark, value: float, reference: float) -> str:
    """Tell whether a row reaches its floor."""
    floor = _floor(row, reference)
    if floor is None:
        return ""
    return "ok" if (value >= floor if row.relative else value <= floor) else "below"


def _processor() -> str:
    """Return the processor's name where the system tells it."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
