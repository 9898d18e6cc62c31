"""What is peculiar to the cloud–edge environments; tests/test_environments.py holds the rest."""

from __future__ import annotations

import itertools
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.error import ResetNeeded

from routing_gym.cloud_edge.env import CloudEdgeBatch, MOCloudEdgeBatch
from routing_gym.cloud_edge.evaluator import BatchEvaluator, BatchTables
from routing_gym.cloud_edge.request_env import CloudEdgeRequest
from routing_gym.policy import make_policy

EVERYWHERE = [{"node": node, "window": 0, "windows": 3} for node in ("H100", "A100", "A100-250", "A10", "T4")]


def play(env: CloudEdgeBatch, router: Any, seed: int) -> tuple[list[float], dict[str, Any]]:
    """Play an episode under a router; return its rewards and metrics."""
    observation, _ = env.reset(seed=seed)
    state, start, over, rewards, info = None, True, False, [], {}
    while not over:
        action, state = router.predict(observation, state, start)
        observation, reward, _, over, info = env.step(action)
        rewards.append(reward)
        start = False
    return rewards, info["episode_metrics"]


def test_an_empty_batch_is_a_step_without_reward() -> None:
    """Whatever is said of its slots."""
    env = CloudEdgeBatch(rate_per_s=0.0, windows=5)
    observation, info = env.reset(seed=1)
    for window in range(5):
        assert observation["active"].sum() == 0
        assert (info["action_mask"].sum(axis=1) == 1).all() and (info["action_mask"][:, 0] == 1).all()
        observation, reward, _, over, info = env.step(np.full(32, 10))
        assert reward == 0.0 and not info["reward_terms"].any()
        assert over == (window == 4)
    metrics = info["episode_metrics"]
    assert metrics["arrivals"] == metrics["invalid_actions"] == metrics["nonempty_windows"] == 0
    assert metrics["windows"] == 5
    assert "objective" not in metrics and "p99_latency_s" not in metrics
    with pytest.raises(ResetNeeded):
        env.step(np.zeros(32, int))


def test_a_request_environment_in_which_nothing_arrives_is_one_step() -> None:
    env = CloudEdgeRequest(rate_per_s=0.0, windows=5)
    observation, info = env.reset(seed=1)
    assert info["action_mask"].tolist() == [1] * 11 and observation["remaining"] == 0
    observation, reward, terminated, truncated, info = env.step(3)
    assert (reward, terminated, truncated) == (0.0, False, True)
    assert info["episode_metrics"]["windows"] == 5


@pytest.mark.parametrize("environment", [CloudEdgeBatch, CloudEdgeRequest])
def test_requests_wait_while_every_node_is_down_and_are_counted(environment: Any) -> None:
    """They are dispatched first when one comes back; those that nobody ever takes stay undispatched."""
    env = environment(requests=4, windows=5, max_requests=8, outages=EVERYWHERE, rtt_sigma=0.0)
    _, info = env.reset(seed=1)
    over = False
    while not over:
        action = np.zeros(8, int) if environment is CloudEdgeBatch else 0
        *_, over, info = env.step(action)
    log, metrics = env.assignment_log(), info["episode_metrics"]
    assert metrics["arrivals"] == 20 and metrics["dispatched"] == 16 and metrics["undispatched"] == 4
    assert metrics["set_aside"] == 12 and metrics["waited"] == 20
    assert metrics["invalid_actions"] == 0 and metrics["nonempty_windows"] == 2
    assert log["window"].tolist() == [3] * 8 + [4] * 8 + [-1] * 4
    assert np.isnan(log["finish"][-4:]).all() and np.isfinite(log["finish"][:-4]).all()
    assert metrics["p99_latency_s"] > 2.0 and metrics["p99_all_latency_s"] == float("inf")


def test_edge_only_requests_stay_at_the_edge() -> None:
    """Whatever is chosen; a choice in the cloud goes to the next destination that is allowed."""
    env = CloudEdgeBatch(requests=20, windows=20, edge_only_share=0.5)
    _, info = env.reset(seed=1)
    cloud = np.array([d.is_cloud for d in env.config.destinations])
    over = False
    while not over:
        *_, over, info = env.step(np.zeros(32, int))  # gpt-4
    log = env.assignment_log()
    assert 0.4 < log["edge_only"].mean() < 0.6
    assert not cloud[log["destination"][log["edge_only"]]].any()
    assert (log["destination"][log["edge_only"]] == np.flatnonzero(~cloud)[0]).all()
    assert (log["destination"][~log["edge_only"]] == 0).all()
    assert (log["invalid"] == log["edge_only"]).all()
    assert info["episode_metrics"]["invalid_actions"] == log["edge_only"].sum()


def test_a_down_destination_drains() -> None:
    """It is illegal while its node is down, and its backlog shrinks by a window's length each time."""
    env = CloudEdgeBatch(
        "testbed-6node", requests=12, windows=6, outages=[{"node": "A100", "window": 1, "windows": 4}]
    )
    observation, info = env.reset(seed=1)
    backlog = []
    for _ in range(6):
        backlog.append(float(observation["backlog_s"][0]))
        first = info["action_mask"][:12, 0]
        assert first.tolist() == ([1] * 12 if len(backlog) in (1, 6) else [0] * 12)
        observation, *_, info = env.step(np.where(len(backlog) == 1, 0, 1) * np.ones(32, int))
    assert backlog[0] == 0 and backlog[1] > 1.0
    for before, after in itertools.pairwise(backlog[1:]):
        # It may fall to 0 sooner, when what was predicted to take longer has completed.
        assert after == pytest.approx(max(0.0, before - 1.0), abs=1e-5) or after == 0.0


def test_least_loaded_equals_round_robin_until_there_is_backlog() -> None:
    """On one-window episodes, as in the source's Table V; not where requests are still outstanding."""
    fresh = CloudEdgeBatch(requests=30, windows=1)
    for seed in range(5):
        logs = []
        for name in ("round_robin", "least_loaded"):
            play(fresh, make_policy(f"cloud_edge/{name}"), seed)
            logs.append(fresh.assignment_log())
        assert logs[0].tobytes() == logs[1].tobytes()
    carried = CloudEdgeBatch("testbed-6node", requests=20, windows=5)
    chosen = []
    for name in ("round_robin", "least_loaded"):
        play(carried, make_policy(f"cloud_edge/{name}"), 1)
        chosen.append(carried.assignment_log()["destination"].tolist())
    assert chosen[0][:20] == chosen[1][:20] and chosen[0] != chosen[1]


@pytest.mark.parametrize("paid", ["actual", "predicted"])
def test_reward_is_what_happened_or_what_was_predicted(paid: str) -> None:
    """The episode is the same, the pay is not; predicted pay is J on the tables that a router is shown."""
    env = CloudEdgeBatch(requests=10, windows=8, reward_on=paid, catalogue={"speedup": 2.0})
    observation, _ = env.reset(seed=4)
    rewards, shown, over, info = [], [], False, {}
    while not over:
        action = np.arange(32) % 11
        tables = BatchTables.from_observation(observation)
        shown.append(float(BatchEvaluator(tables).objective(action[:10])))
        observation, reward, _, over, info = env.step(action)
        rewards.append(-reward)
    metrics = info["episode_metrics"]
    assert metrics["objective"] == pytest.approx(np.mean(rewards))
    assert metrics["objective_predicted"] == pytest.approx(np.mean(shown), rel=1e-5)
    if paid == "predicted":
        assert rewards == pytest.approx(shown, rel=1e-5)
    else:
        assert not np.allclose(rewards, shown, rtol=0.01)


def test_weights_weigh_the_terms() -> None:
    """The reward is ω · terms; with a single weight J is that term."""
    for k in range(4):
        weights = [0.0] * 4
        weights[k] = 1.0
        env = CloudEdgeBatch(requests=6, windows=3, weights=weights)
        env.reset(seed=2)
        _, reward, *_, info = env.step(np.zeros(32, int))
        assert reward == info["reward_terms"][k] and reward <= 0.0


def test_vector_rewards_do_not_depend_on_the_weights() -> None:
    terms = []
    for weights in ([0.25] * 4, [0.7, 0.1, 0.1, 0.1]):
        env = MOCloudEdgeBatch(requests=6, windows=3, weights=weights)
        env.reset(seed=2)
        terms.append(env.step(np.zeros(32, int))[1])
    assert (terms[0] == terms[1]).all() and (terms[0] <= 0).all()


def test_objective_stays_within_0_and_1_without_backlog() -> None:
    env = CloudEdgeBatch(requests=20, windows=1)
    env.action_space.seed(1)
    for seed in range(30):
        env.reset(seed=seed)
        _, reward, *_ = env.step(env.action_space.sample())
        assert -1.0 <= reward <= 0.0


def test_arrivals_beyond_a_batch_wait_first_in_line() -> None:
    env = CloudEdgeBatch(requests=5, windows=6, max_requests=4)
    _, info = env.reset(seed=1)
    over = False
    while not over:
        *_, over, info = env.step(np.zeros(4, int))
    log, metrics = env.assignment_log(), info["episode_metrics"]
    assert log["window"].tolist() == [k // 4 for k in range(24)] + [-1] * 6
    assert metrics["undispatched"] == 6 and metrics["set_aside"] == 0
    assert metrics["waited"] == sum(k // 4 > k // 5 for k in range(24)) + 6


def test_the_log_adds_up() -> None:
    """Finish is made of its parts, and the batch's terms are sums and means over the log."""
    env = CloudEdgeBatch("testbed-6node", requests=12, windows=10)
    _, metrics = play(env, make_policy("cloud_edge/round_robin"), 3)
    log = env.assignment_log()
    for prefix in ("", "predicted_"):
        parts = sum(log[f"{prefix}{name}"] for name in ("infer", "transfer", "queue"))
        np.testing.assert_allclose(parts, log[f"{prefix}finish"], rtol=1e-12)
    windows = [log[log["window"] == k] for k in range(10)]
    assert metrics["energy_j"] == pytest.approx(np.mean([w["energy"].sum() for w in windows]))
    assert metrics["cost_usd"] == pytest.approx(np.mean([w["cost"].sum() for w in windows]))
    assert metrics["completion_s"] == pytest.approx(np.mean([w["finish"].max() for w in windows]))
    assert metrics["quality_loss"] == pytest.approx(np.mean([1 - w["quality"].mean() for w in windows]))
    latency = log["dispatch"] - log["arrival"] + log["finish"]
    assert metrics["mean_latency_s"] == pytest.approx(latency.mean())
    shares = np.bincount(log["destination"], minlength=6) / len(log)
    np.testing.assert_allclose(metrics["destination_shares"], shares)
    assert metrics["cloud_share"] == pytest.approx(shares[0] + shares[5])


def test_a_state_of_another_shape_is_refused() -> None:
    small, large = CloudEdgeBatch(max_requests=4), CloudEdgeBatch(max_requests=8)
    small.reset(seed=1)
    large.reset(seed=1)
    with pytest.raises(ValueError, match="max_requests = 4; this environment has 8"):
        large.set_state(small.get_state())


def test_actions_are_named_where_they_are_wrong() -> None:
    env = CloudEdgeBatch(max_requests=4)
    env.reset(seed=1)
    for action, told in (
        ([0, 0, 0], r"must be 4 whole numbers from 0 to 10"),
        ([0, 11, 0, 0], r"action\[1\] = 11: must be from 0 to 10"),
        ([0, 0, 0, -1], r"action\[3\] = -1: must be from 0 to 10"),
        ([0.0] * 4, r"whole numbers"),
    ):
        with pytest.raises(ValueError, match=told):
            env.step(np.array(action))


def test_gym_make_takes_names_and_overrides() -> None:
    env = gym.make("routing_gym/CloudEdgeBatch-v0", config="testbed-6node", replicate=2, max_requests=16)
    assert env.action_space == gym.spaces.MultiDiscrete([12] * 16)
    request = gym.make("routing_gym/CloudEdgeRequest-v0", config="testbed-6node")
    assert request.action_space == gym.spaces.Discrete(6)
