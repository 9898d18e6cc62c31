"""Distributions between two rewards: what an episode pays, and that nothing else changes."""

from __future__ import annotations

import json
import re
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from routing_gym.cluster.config import ClusterConfig
from routing_gym.cluster.distribution import ClusterDistribution
from routing_gym.common.config import ConfigError, config_hash
from routing_gym.rewards import cluster_weights

BOTH = ["on_time", "latency"]


def samples(count: int, seed: int = 0, **fields: Any) -> list[ClusterConfig]:
    distribution, rng = ClusterDistribution.create(**fields), np.random.default_rng(seed)
    return [distribution.sample(rng) for _ in range(count)]


@settings(max_examples=25)
@given(seed=st.integers(0, 2**32), replicas=st.integers(1, 9))
def test_all_else_is_sampled_as_without_them(seed: int, replicas: int) -> None:
    """Without rewards not a draw more is made than ever; with them one more, the last."""
    plain, mixed = (
        ClusterDistribution.create(replicas=replicas, rewards=rewards) for rewards in (None, BOTH)
    )
    one, other, due = (np.random.default_rng(seed) for _ in range(3))
    usual, changed = plain.sample(one), mixed.sample(other)
    assert usual.reward == "on_time"
    assert changed.replace(reward="on_time") == usual
    due.random(5)
    due.integers(len(plain.scenarios))
    due.integers(replicas)
    due.permutation(replicas)
    assert one.bit_generator.state == due.bit_generator.state
    w = due.random()
    assert other.bit_generator.state == due.bit_generator.state
    # on_time pays 1 per request; latency -10 per shed one, and -1 per deadline of latency.
    assert changed.reward == pytest.approx((1 - w, 0, -10 * w, -w / 50, 0), abs=1e-15)


def test_the_mix_is_uniform() -> None:
    w = np.sort([1 - config.reward_weights[0] for config in samples(2000, rewards=BOTH)])
    steps = np.arange(len(w) + 1) / len(w)
    distance = max(np.abs(w - steps[1:]).max(), np.abs(w - steps[:-1]).max())
    assert distance < 2 / np.sqrt(len(w))  # Kolmogorov–Smirnov, p < .001


def test_weightings_may_be_names_or_weights_at_any_deadline() -> None:
    second = [0.0, -2.0, 0.5, 0.0, -0.25]
    for config in samples(5, rewards=["latency", second], deadline_ms=80):
        w = config.reward_weights[4] / -0.25
        due = (1 - w) * np.array(cluster_weights("latency", 80)) + w * np.array(second)
        assert config.reward_weights == pytest.approx(due)
        assert config.reward_weights[3] == pytest.approx(-(1 - w) / 80)
    (same,) = {config.reward_weights for config in samples(5, rewards=["slo", "slo"])}
    assert same == (1, -1, -1, 0, 0)


def test_a_sample_and_its_distribution_survive_json() -> None:
    for config in samples(5, rewards=BOTH):
        same = ClusterConfig.create(json.loads(config.model_dump_json()))
        assert same == config
        assert repr(same) == repr(config)
    for rewards in (BOTH, ["slo", (1, 0, 0, 0, -0.5)]):
        distribution = ClusterDistribution.create(rewards=rewards)
        again = ClusterDistribution.create(json.loads(distribution.model_dump_json()))
        assert again == distribution
        assert config_hash(again) == config_hash(distribution) != config_hash(ClusterDistribution.create())


def test_an_episode_pays_its_own_mix() -> None:
    envs = gym.make_vec(
        "routing_gym/InferenceCluster-v0",
        num_envs=4,
        config="training",
        rewards=BOTH,
        warmup_s=0.0,
        measured_s=0.5,
        rate_per_s=[400, 400],
        queue_capacity=3,
        autoreset_mode="Disabled",
        hold_finished=True,
    )
    paid = set()
    for seed in (0, 100):
        _, infos = envs.reset(seed=seed)
        weights = np.array([config.reward_weights for config in envs.unwrapped.configs])
        paid |= {tuple(row) for row in weights}
        total = np.zeros((4, 5))
        for _ in range(60):
            _, rewards, _, _, infos = envs.step(infos["action_mask"].argmax(axis=1))
            np.testing.assert_allclose(rewards, (weights * infos["reward_terms"]).sum(axis=1), atol=1e-12)
            total += infos["reward_terms"]
        assert (total[:, [0, 3]] > 0).all()
    assert len(paid) == 8


@pytest.mark.parametrize(
    ("rewards", "told"),
    [
        (["on_time", "speed"], "reward = 'speed': must be one of on_time, slo, latency, weighted, or five w"),
        ([[1, 2], "slo"], "reward = [1, 2]: must be one of on_time, slo, latency, weighted, or five weights"),
        (["slo", [1, 0, 0, 0, float("nan")]], "reward = [1, 0, 0, 0, nan]: must be one of"),
        (["slo"], "rewards.1 is missing in ['slo']"),
        (["slo"] * 3, "rewards = ['slo', 'slo', 'slo']: Tuple should have at most 2 items"),
        ("latency", "rewards = 'latency': Input should be a valid tuple"),
    ],
)
def test_what_is_no_pair_of_weightings(rewards: Any, told: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(told)):
        ClusterDistribution.create(rewards=rewards)


def test_a_reward_beside_rewards_is_refused() -> None:
    told = r"reward = 'slo': the distribution draws it; name those it may draw between in `rewards`"
    for given_fields in ({"reward": "slo", "rewards": BOTH}, {"reward": "slo"}):
        with pytest.raises(ConfigError, match=told):
            ClusterDistribution.create({"base": {}, "rewards": BOTH}, **given_fields)
    fixed = ClusterDistribution.create({"base": {}, "rewards": BOTH}, reward="slo", rewards=None)
    assert fixed.sample(np.random.default_rng(0)).reward == "slo"
    assert ClusterDistribution.create(reward="slo").base.reward == "slo"
