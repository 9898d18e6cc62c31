"""`credit = decision` pays each request's part at once: the same sum over a batch, and its parts by hand."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from routing_gym.cloud_edge.config import CloudEdgeConfig
from routing_gym.cloud_edge.env import MOCloudEdgeBatch
from routing_gym.cloud_edge.request_env import CloudEdgeRequest, MOCloudEdgeRequest

CONDITIONS: tuple[dict[str, Any], ...] = (
    {"config": "testbed-6node", "rate_per_s": 20.0, "windows": 12, "reward_on": "actual"},
    {"config": "testbed-6node", "rate_per_s": 20.0, "windows": 12, "reward_on": "predicted"},
    {"rate_per_s": 8.0, "windows": 12, "edge_only_share": 0.5, "weights": [0.1, 0.2, 0.3, 0.4]},
    {"rate_per_s": 1.0, "windows": 20, "outage_probability": 0.3},
    {"config": "testbed-6node", "rate_per_s": 0.0, "windows": 3},
)


@pytest.mark.parametrize("condition", CONDITIONS)
def test_a_batch_pays_the_same_in_all(condition: dict[str, Any]) -> None:
    """Nothing but the time of payment changes, and it is paid while the batch is assigned."""
    early = MOCloudEdgeRequest(**condition, credit="decision")
    late = MOCloudEdgeRequest(**condition)
    rng, over, batches, parts = np.random.default_rng(0), False, 0, 0
    observation, _ = early.reset(seed=1)
    late.reset(seed=1)
    paid = np.zeros(4)
    while not over:
        last = observation["remaining"][0] <= 1
        action = int(rng.integers(early.action_space.n))
        observation, terms, _, over, _ = early.step(action)
        other, usual, *_ = late.step(action)
        assert all(np.array_equal(observation[name], other[name]) for name in observation)
        assert early.reward_space.contains(terms)
        paid += terms
        if last:
            np.testing.assert_allclose(paid, usual, atol=1e-9)
            paid[:] = 0.0
            batches += 1
        else:
            assert (terms <= 0).all()
            parts += int((terms < 0).any())
    np.testing.assert_equal(early.episode_metrics(), late.episode_metrics())
    if condition["rate_per_s"]:
        assert batches > 3
        assert parts > 5


def test_a_request_pays_what_it_adds_above_its_best_destination() -> None:
    """Of quality loss, cost and energy as predicted, all of which the observation shows."""
    env = CloudEdgeRequest(
        "testbed-6node", rate_per_s=15.0, windows=6, reward_on="predicted", credit="decision"
    )
    seen, _ = env.reset(seed=4)
    rng, over, checked = np.random.default_rng(1), False, 0
    while not over:
        legal = np.flatnonzero(seen["legal"])
        action = int(rng.choice(legal))
        expected = [
            (values[legal].min() - values[action]) / width if width > 0 else 0.0
            for values, width in zip(
                (1.0 - seen["quality"], seen["cost"], seen["energy"]), seen["term_range"], strict=False
            )
        ]
        many = seen["remaining"][0] > 1
        seen, reward, _, over, info = env.step(action)
        if many:
            np.testing.assert_allclose(info["reward_terms"][:3], expected, rtol=1e-3, atol=1e-5)
            checked += 1
        assert reward == pytest.approx(np.dot(env.config.weights, info["reward_terms"]))
    assert checked > 40


def test_rows_of_a_vector_environment_are_single_environments() -> None:
    """Also over an autoreset: nothing of an episode is left to the next."""
    fields = {"config": "testbed-6node", "rate_per_s": 10.0, "windows": 5, "credit": "decision"}
    envs = gym.make_vec(
        "routing_gym/CloudEdgeRequest-v0", num_envs=2, autoreset_mode=AutoresetMode.SAME_STEP, **fields
    )
    envs.reset(seed=5)
    single = CloudEdgeRequest(**fields)
    single.reset(seed=6)
    ended = 0
    for k in range(400):
        _, rewards, _, over, _ = envs.step(np.array([k % 6, k % 6]))
        _, reward, _, done, _ = single.step(k % 6)
        assert (rewards[1], over[1]) == (reward, done)
        if done:
            ended += 1
            single.reset()
    assert ended >= 2


def test_reward_space_tells_whether_a_term_can_come_back() -> None:
    """Of single and vector environments."""
    for credit, highest in (("batch", 0.0), ("decision", np.inf)):
        assert MOCloudEdgeRequest(credit=credit).reward_space.high[-1] == highest
        envs = gym.make_vec("routing_gym/mo-CloudEdgeRequest-v0", num_envs=2, credit=credit)
        assert envs.unwrapped.reward_space.high[-1] == highest
        assert MOCloudEdgeBatch(credit=credit).reward_space.high[-1] == 0.0
        batches = gym.make_vec("routing_gym/mo-CloudEdgeBatch-v0", num_envs=2, credit=credit)
        assert batches.unwrapped.reward_space.high[-1] == 0.0


def test_names_what_is_allowed() -> None:
    """A wrong value is refused."""
    with pytest.raises(ValueError, match=r"credit.*'batch' or 'decision'"):
        CloudEdgeConfig.create("testbed-6node", credit="completion")
