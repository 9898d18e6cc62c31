"""Named weightings of the cluster's reward terms, and what the environment pays by them."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing_gym.cluster.env import InferenceCluster
from routing_gym.rewards import CLUSTER_TERMS, CLUSTER_WEIGHTINGS, cluster_weights


@pytest.mark.parametrize(
    ("name", "weights"),
    [
        ("on_time", (1, 0, 0, 0, 0)),
        ("slo", (1, -1, -1, 0, 0)),
        ("latency", (0, 0, -10, -1 / 50, 0)),
        ("weighted", (1, -1, -1, 0, -1 / 1000)),
    ],
)
def test_weightings_of_the_design(name: str, weights: tuple[float, ...]) -> None:
    assert cluster_weights(name, 50.0) == weights


def test_the_design_s_weightings_are_all() -> None:
    assert list(CLUSTER_WEIGHTINGS) == ["on_time", "slo", "latency", "weighted"]
    assert CLUSTER_TERMS == ("on_time", "late", "shed", "latency_sum", "outstanding_integral")


@given(st.floats(1, 1e4))
def test_only_latency_is_measured_in_deadlines(deadline: float) -> None:
    assert cluster_weights("latency", deadline)[3] == pytest.approx(-1 / deadline)
    for name in ("on_time", "slo", "weighted"):
        assert cluster_weights(name, deadline) == cluster_weights(name, 50.0)


def test_five_numbers_are_taken_as_they_are() -> None:
    assert cluster_weights([1, -2, 0, 0.5, 3], 50.0) == (1.0, -2.0, 0.0, 0.5, 3.0)


@pytest.mark.parametrize(
    ("reward", "told"),
    [
        ("goodput", "reward = 'goodput': must be one of on_time, slo, latency, weighted"),
        ((1.0, 2.0), "reward = (1.0, 2.0): needs 5 weights, one for each reward term"),
        ([1] * 6, "reward = [1, 1, 1, 1, 1, 1]: needs 5 weights"),
    ],
)
def test_other_rewards_are_refused(reward: Any, told: str) -> None:
    with pytest.raises(ValueError, match=re.escape(told)):
        cluster_weights(reward, 50.0)


@pytest.mark.parametrize("reward", [*CLUSTER_WEIGHTINGS, (0.5, -0.25, 2.0, 0.125, -0.0625)])
def test_the_environment_pays_weights_times_terms(reward: Any) -> None:
    env = InferenceCluster(
        reward=reward, deadline_ms=40, rate_per_s=400, queue_capacity=4, warmup_s=0, measured_s=0.5
    )
    env.reset(seed=1)
    weights, total, done = np.array(cluster_weights(reward, 40.0)), np.zeros(5), False
    while not done:
        _, paid, _, done, info = env.step(env.action_masks().argmax())
        assert type(paid) is float
        assert paid == pytest.approx(weights @ info["reward_terms"], rel=1e-12, abs=1e-12)
        total += info["reward_terms"]
    log = env.request_log()
    latency = log["completion"] - log["arrival"]
    expected = [np.sum(latency <= 40), np.sum(latency > 40), np.sum(log["shed"]), np.nansum(latency)]
    assert total[:4] == pytest.approx(expected)
    assert min(expected) > 0
