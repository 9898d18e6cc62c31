"""What `routing-gym bench` measures of the fixed routers (DESIGN 7)."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import cache, partial
from statistics import median
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from routing_gym.bench import BATCH, Benchmark, decision_time
from routing_gym.cloud_edge.evaluator import BatchEvaluator, BatchTables
from routing_gym.cluster.config import ClusterConfig
from routing_gym.evaluation.runner import (
    DEVELOPMENT_SEEDS,
    VALIDATION_SEEDS,
    Condition,
    Router,
    make_jobs,
    run_jobs,
)
from routing_gym.policy import make_policy

DOCUMENTED = ("round_robin", "least_queue", "latency_aware", "adaptive")
Observation = Mapping[str, NDArray[Any]]

# Batches to decide, by name: arguments of the environment, and how many windows of round_robin come before.
CASES: dict[str, tuple[dict[str, Any], int]] = {
    "R = 30, M = 11": ({"requests": 30}, 0),
    "R = 30, M = 88": ({"requests": 30, "replicate": 8}, 0),
    "R = 128, M = 11, backlog, speed-up 3": (
        {"requests": 128, "max_requests": 128, "catalogue": {"speedup": 3.0}},
        3,
    ),
}
BATCHES = 10
TIME_LIMIT_S = 20.0  # for the proof of one batch


def exploration_conditions() -> list[Condition]:
    """Return the exploration study's 24 conditions; rates and heterogeneities are ours."""
    return [
        Condition(
            f"{scenario}, {rate}/s, heterogeneity {heterogeneity}",
            ClusterConfig.create(scenario=scenario, rate_per_s=rate, heterogeneity=heterogeneity),
        )
        for rate in (100, 180, 250)
        for heterogeneity in (0.5, 1.0)
        for scenario in ("steady", "burst", "straggler", "failure")
    ]


def _exploration(_: float) -> float:
    """Return the time of 24 conditions × 24 seeds × 4 routers through the runner, in one process."""
    jobs = make_jobs(
        [Router(name, f"cluster/{name}") for name in DOCUMENTED], exploration_conditions(), VALIDATION_SEEDS
    )
    start = time.perf_counter()
    episodes = sum(1 for _ in run_jobs(jobs))
    assert episodes == len(jobs)
    return time.perf_counter() - start


@cache
def batches(case: str) -> tuple[Observation, ...]:
    """Return the observations of a case's batches, one per seed."""
    arguments, played = CASES[case]
    env = gym.make(BATCH, windows=played + 1, **arguments)
    found = []
    for seed in range(DEVELOPMENT_SEEDS[0], DEVELOPMENT_SEEDS[0] + BATCHES):
        observation, _ = env.reset(seed=seed)
        router, state = make_policy("cloud_edge/round_robin"), None
        for _ in range(played):
            action, state = router.predict(observation, state)
            observation, *_ = env.step(action)
        found.append(observation)
    return tuple(found)


def _decision(make: Callable[[], Any], case: str, seconds: float) -> float:
    """Return the median time of a router's decision on a case's batches, seconds."""
    return decision_time(make(), batches(case), seconds)


@cache
def _bounds(case: str) -> tuple[float, ...]:
    """Return the proven lower bound of J of each batch of a case."""
    optimal = make_policy("cloud_edge/optimal", time_limit_s=TIME_LIMIT_S)
    found = []
    for observation in batches(case):
        optimal.predict(observation)
        found.append(optimal.diagnostics()[0]["bound"])
    return tuple(found)


def _above_optimum(make: Callable[[], Any], case: str, _: float) -> float:
    """Return how far a router's J lies above the proven bound, the median over batches, in percent."""
    router, above = make(), list[float]()
    for observation, bound in zip(batches(case), _bounds(case), strict=True):
        action, _ = router.predict(observation, np.uint64(1))
        tables = BatchTables.from_observation(observation)
        objective = float(BatchEvaluator(tables).objective(action[: len(tables.infer)]))
        above.append(100.0 * (objective / bound - 1.0))
    return median(above)


def benchmarks() -> list[Benchmark]:
    """Return this package's benchmarks."""
    rows = [
        Benchmark(
            "exploration study, 24 × 24 episodes × 4 routers, one process", "s", _exploration, floor=10.0
        )
    ]
    cema, search = partial(make_policy, "cloud_edge/cema"), partial(make_policy, "cloud_edge/local_search")
    for case, floor in (("R = 30, M = 11", 0.003), ("R = 30, M = 88", 0.004)):
        rows.append(Benchmark(f"cema decision, {case}", "s", partial(_decision, cema, case), floor))
    for case in ("R = 30, M = 11", "R = 128, M = 11, backlog, speed-up 3"):
        rows += [
            Benchmark(f"local_search decision, {case}", "s", partial(_decision, search, case), 0.0015),
            Benchmark(
                f"local_search above the proven optimum, {case}",
                "%",
                partial(_above_optimum, search, case),
                0.1,
                once=True,
            ),
        ]
    for times in (1, 10, 100):
        make = partial(make_policy, "cloud_edge/cema", generations=20 * times)
        name = f"cema above the proven optimum, {times} × the published budget, R = 30, M = 11"
        rows.append(Benchmark(name, "%", partial(_above_optimum, make, "R = 30, M = 11"), once=True))
    return rows
