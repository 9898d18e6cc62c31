"""A whole batch at one destination, worked by hand, and what it is worth over many windows."""

from __future__ import annotations

import numpy as np
import pytest

from routing_baselines.cloud_edge.backlog import LeastBacklog
from routing_gym.cloud_edge.config import CloudEdgeConfig
from routing_gym.evaluation.runner import Condition, Router, make_jobs, run_jobs
from tests.cloud_edge.observations import make_observation

INFER = [[1.0, 2.0, 4.0], [3.0, 2.0, 1.0]]


def test_the_batch_goes_where_it_is_served_first() -> None:
    # Longest answers 3, 2, 4: with the backlogs 3, 3, 4 and then 3, 5.5, 4.
    for backlog, expected in (([0.0, 1.0, 0.0], [0, 0, 0]), ([2.0, 1.0, 0.0], [1, 1, 0])):
        batch = make_observation(2, 3, 3, infer_s=INFER, backlog_s=backlog)
        assert LeastBacklog().predict(batch)[0].tolist() == expected


def test_a_request_that_may_not_go_there_goes_to_the_next_best() -> None:
    batch = make_observation(2, 3, infer_s=INFER, backlog_s=[2.0, 0.0, 0.0], legal=[[1, 0, 1], [1, 1, 1]])
    assert LeastBacklog().predict(batch)[0].tolist() == [2, 1]


def test_nothing_but_times_counts() -> None:
    plain = make_observation(2, 3, infer_s=INFER, backlog_s=[0.0, 1.0, 0.0])
    other = make_observation(
        2, 3, infer_s=INFER, backlog_s=[0.0, 1.0, 0.0], quality=[0, 1, 1], cost=[9, 0, 0], energy=[9, 0, 0]
    )
    assert np.array_equal(LeastBacklog().predict(plain)[0], LeastBacklog().predict(other)[0])


@pytest.mark.slow
def test_it_is_far_below_a_search_where_backlog_carries_over() -> None:
    config = CloudEdgeConfig.create("testbed-6node", requests=30, windows=60)
    names = ("least_backlog", "priced_search")
    jobs = make_jobs(
        [Router(n, f"cloud_edge/{n}") for n in names], [Condition("", config)], range(30_000, 30_003)
    )
    found: dict[str, list[float]] = {name: [] for name in names}
    for result in run_jobs(jobs):
        found[result.job.router.label].append(result.metrics["objective"])
    means = {name: np.mean(values) for name, values in found.items()}
    assert means["least_backlog"] < 0.5 * means["priced_search"]
