"""`credit = decision` pays outcomes ahead: against a plain look at the queues, the log, and by hand."""

from __future__ import annotations

import math
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from routing_gym.cluster.config import ClusterConfig
from routing_gym.cluster.env import InferenceCluster, MOInferenceCluster
from routing_gym.cluster.state import ClusterState
from tests.cluster.test_engine import random_arguments

NONE = -1


def foreseen(env: InferenceCluster) -> list[float]:
    """Return on time, late and latency of what is outstanding, from the queues as they stand."""
    state = ClusterState(1, env.config.replicas)
    state.restore(env.get_state()["arrays"])
    config, now = env.config, int(state.rows[0]["tick"])
    latencies = []
    for replica in state.replicas[0]:
        free = now
        if replica["in_flight"] != NONE:
            free = int(replica["finish"])
            latencies.append(free * config.time_step_ms - state.requests[0, replica["in_flight"]]["arrival"])
        waiting = replica["head"]
        while waiting != NONE:
            request = state.requests[0, waiting]
            service = request["demand"] * replica["service_ms"] / config.reference_ms * replica["slow"]
            free += math.ceil(service * request["jitter"] / config.time_step_ms)
            latencies.append(free * config.time_step_ms - request["arrival"])
            waiting = request["next"]
    on_time = sum(latency <= config.deadline_ms for latency in latencies)
    return [float(on_time), float(len(latencies) - on_time), float(np.sum(latencies))]


def test_is_what_completion_pays_and_the_change_of_what_can_be_foreseen() -> None:
    """At every decision of random conditions, events included; nothing but the terms changes."""
    taken_back = ahead = 0
    for seed in range(12):
        arguments = random_arguments(np.random.default_rng(seed))
        early = MOInferenceCluster(**arguments, credit="decision")
        late = MOInferenceCluster(**arguments)
        choices = np.random.default_rng(seed).integers(0, early.action_space.n, 64).tolist()
        seen, _ = early.reset(seed=seed)
        late.reset(seed=seed)
        totals, over, k = np.zeros((2, 5)), False, 0
        while not over:
            seen, paid, _, over, _ = early.step(choices[k % 64])
            other, usual, *_ = late.step(choices[k % 64])
            assert all(np.array_equal(seen[name], other[name]) for name in seen)
            assert early.reward_space.contains(paid)
            totals += np.array([paid, usual])
            k += 1
            np.testing.assert_allclose((totals[0] - totals[1])[[0, 1, 3]], foreseen(early), atol=1e-6)
            assert totals[0][[2, 4]].tolist() == totals[1][[2, 4]].tolist()
            taken_back += int(paid[[0, 1, 3]].min() < 0)
            ahead += int(totals[0, 0] > totals[1, 0])
    assert taken_back > 10
    assert ahead > 300


@pytest.mark.parametrize("scenario", ["steady", "burst"])
def test_pays_each_decision_its_own_request(scenario: str) -> None:
    """Where no replica ever changes, decision k pays 1 if and only if request k is on time in the log."""
    env = InferenceCluster(scenario=scenario, rate_per_s=180.0, queue_capacity=500, credit="decision")
    _, info = env.reset(seed=3)
    rng, paid, over = np.random.default_rng(0), [], False
    while not over:
        _, reward, _, over, info = env.step(int(rng.choice(np.flatnonzero(info["action_mask"]))))
        paid.append(reward)
    log = env.request_log()
    known = ~np.isnan(log["completion"])
    assert len(paid) == len(log)
    on_time = log["completion"] - log["arrival"] <= env.config.deadline_ms
    assert np.array_equal(np.array(paid)[known], on_time[known].astype(float))
    assert 200 < on_time.sum() < known.sum()


def test_rows_of_a_vector_environment_are_single_environments() -> None:
    """Also over an autoreset: nothing of an episode is left to the next."""
    envs = gym.make_vec(
        "routing_gym/InferenceCluster-v0",
        num_envs=2,
        credit="decision",
        scenario="straggler",
        measured_s=8.0,
        autoreset_mode=AutoresetMode.SAME_STEP,
    )
    envs.reset(seed=5)
    single = InferenceCluster(credit="decision", scenario="straggler", measured_s=8.0)
    single.reset(seed=6)
    ended = 0
    for k in range(6000):
        action = k % 3
        _, rewards, _, over, _ = envs.step(np.array([action, action]))
        _, reward, _, done, _ = single.step(action)
        assert (rewards[1], over[1]) == (reward, done)
        if done:
            ended += 1
            single.reset()
    assert ended >= 2


def test_reward_space_tells_whether_terms_can_be_negative() -> None:
    """Of single and vector environments."""
    kwargs: dict[str, Any] = {"num_envs": 2}
    for credit, lowest in (("completion", 0.0), ("decision", -np.inf)):
        assert MOInferenceCluster(credit=credit).reward_space.low.max() == lowest
        envs = gym.make_vec("routing_gym/mo-InferenceCluster-v0", credit=credit, **kwargs)
        assert envs.unwrapped.reward_space.low.max() == lowest


def test_names_what_is_allowed() -> None:
    """A wrong value is refused."""
    with pytest.raises(ValueError, match=r"credit.*'completion' or 'decision'"):
        ClusterConfig.create(credit="dispatch")
