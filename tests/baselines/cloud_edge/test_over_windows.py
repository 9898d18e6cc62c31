"""What routers are worth over many windows, where backlog is carried over."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest

from routing_gym.cloud_edge.config import CloudEdgeConfig
from routing_gym.cloud_edge.evaluator import BatchEvaluator, BatchTables
from routing_gym.evaluation.runner import Condition, Router, make_jobs, run_jobs
from routing_gym.evaluation.sequential import Sequential
from routing_gym.evaluation.statistics import paired_difference
from routing_gym.policy import list_policies, make_policy

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


def test_no_router_is_below_the_optimum_on_the_tables_it_was_given() -> None:
    """Not one of them, with the same backlog; and on these batches the optimum is always proven."""
    pytest.importorskip("highspy", reason="needs the extra `optimal`")
    names = list_policies("cloud_edge")
    made = {name: make_policy(name) for name in names}
    policies = {name: Sequential(p) if p.acts_on == "request" else p for name, p in made.items()}
    assert len(names) >= 10
    env = gym.make("routing_gym/CloudEdgeBatch-v0", config="testbed-6node", requests=10, windows=4)
    for seed in range(5):
        observation, _ = env.reset(seed=seed)
        for _ in range(4):
            tables = BatchTables.from_observation(observation)
            evaluator, found = BatchEvaluator(tables), {}
            for name, policy in policies.items():
                actions, _ = policy.predict(observation)
                found[name] = float(evaluator.objective(actions[: len(tables.infer)]))
            [told] = policies["cloud_edge/optimal"].diagnostics()
            assert told["status"] == "optimal"
            assert found["cloud_edge/optimal"] == pytest.approx(told["bound"], abs=1e-9)
            assert min(found.values()) >= found["cloud_edge/optimal"] - 1e-9
            observation, *_ = env.step(policies["cloud_edge/round_robin"].predict(observation)[0])
