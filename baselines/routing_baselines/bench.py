"""What `routing-gym bench` measures of the fixed routers (DESIGN 7)."""

from __future__ import annotations

import time

from routing_gym.bench import Benchmark
from routing_gym.cluster.config import ClusterConfig
from routing_gym.evaluation.runner import VALIDATION_SEEDS, Condition, Router, make_jobs, run_jobs

DOCUMENTED = ("round_robin", "least_queue", "latency_aware", "adaptive")


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


def benchmarks() -> list[Benchmark]:
    """Return this package's benchmarks."""
    return [
        Benchmark(
            "exploration study, 24 × 24 episodes × 4 routers, one process", "s", _exploration, floor=10.0
        )
    ]
