"""What routers are worth over many windows, where backlog is carried over."""

from __future__ import annotations

import numpy as np
import pytest

from routing_gym.cloud_edge.config import CloudEdgeConfig
from routing_gym.evaluation.runner import Condition, Router, make_jobs, run_jobs
from routing_gym.evaluation.statistics import paired_difference

SEEDS = range(30_000, 30_008)


@pytest.mark.slow
@pytest.mark.parametrize("rate", [10.0, 30.0])
def test_pricing_backlog_beats_the_optimum_of_each_window(rate: float) -> None:
    """On testbed-6node service outlasts the window: mean J over 60 windows, by a paired interval."""
    pytest.importorskip("highspy", reason="needs the extra `optimal`")
    config = CloudEdgeConfig.create("testbed-6node", rate_per_s=rate, max_requests=64)
    routers = [Router(name, f"cloud_edge/{name}") for name in ("priced_search", "optimal")]
    found: dict[str, dict[int, float]] = {router.label: {} for router in routers}
    for result in run_jobs(make_jobs(routers, [Condition("", config)], SEEDS)):
        assert result.metrics["windows"] == 60 and result.metrics["invalid_actions"] == 0
        found[result.job.router.label][result.job.seed] = result.metrics["objective"]
    priced, optimal = (np.array([found[router.label][seed] for seed in SEEDS]) for router in routers)
    difference = paired_difference(priced, optimal)
    assert difference is not None and difference.excludes_zero and difference.high < 0
    assert priced.mean() < 0.9 * optimal.mean()
