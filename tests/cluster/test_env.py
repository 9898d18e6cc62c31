"""What is peculiar to the cluster's single environment; tests/test_environments.py holds the rest."""

from __future__ import annotations

import math
import re
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.error import ResetNeeded

from routing_gym.cluster.env import InferenceCluster, MOInferenceCluster
from routing_gym.rewards import CLUSTER_WEIGHTINGS

SHORT = {"warmup_s": 0.0, "measured_s": 0.25, "rate_per_s": 300.0}


def play(env: InferenceCluster, seed: int) -> list[tuple[Any, ...]]:
    """Play an episode at random, invalid actions included; return its steps."""
    env.reset(seed=seed)
    env.action_space.seed(seed)
    steps = [env.step(env.action_space.sample())]
    while not steps[-1][3]:
        steps.append(env.step(env.action_space.sample()))
    return steps


@pytest.mark.parametrize("arguments", [{"rate_per_s": 0.0}, {"events": "all fail"}])
def test_an_episode_without_a_decision_is_one_step(arguments: dict[str, Any]) -> None:
    """Nothing arrives, or nobody can take what does."""
    if arguments.get("events"):
        arguments = {"events": [{"time_s": 0.0, "kind": "failure", "replica": i} for i in range(3)]}
    env = InferenceCluster(**(SHORT | arguments), reward="slo")
    observation, info = env.reset(seed=1)
    assert observation["request"].tolist() == [0, 0, 0]
    assert info["action_mask"].tolist() == [1, 1, 1]
    assert env.action_masks().tolist() == [True] * 3
    for action in (-1, 3):
        with pytest.raises(ValueError, match="from 0 to 2"):
            env.step(action)
    observation, reward, terminated, truncated, info = env.step(1)
    assert (terminated, truncated) == (False, True)
    metrics = info["episode_metrics"]
    assert metrics["arrivals"] == metrics["shed"] == -reward == len(env.request_log())
    assert (metrics["arrivals"] > 0) == ("events" in arguments)
    assert metrics["invalid_actions"] == 0
    with pytest.raises(ResetNeeded):
        env.step(1)


def test_the_closing_observation() -> None:
    """Zero request, a mask of ones, and the state at the cutoff."""
    env = InferenceCluster(**SHORT, queue_capacity=1, admission=True)
    for seed in range(5):
        observation, *_, info = play(env, seed)[-1]
        assert observation["request"].tolist() == [0, 0, 0]
        assert info["action_mask"].tolist() == [1, 1, 1, 1]
        log = env.request_log()
        left = log[np.isnan(log["completion"]) & ~log["shed"]]
        assert observation["outstanding"].sum() == len(left) > 0
        assert observation["oldest_age"].max() == pytest.approx(250.0 - left["arrival"].min(), rel=1e-6)
        assert (observation["since_completion"] < 250.0).any()


def test_the_log_grows_with_arrivals() -> None:
    """It holds the requests that have arrived, the pending one last and without a replica."""
    env = InferenceCluster(**SHORT)
    env.reset(seed=3)
    for k in range(20):
        log = env.request_log()
        assert len(log) == k + 1
        assert log["replica"][-1] == log["last_replica"][-1] == -1
        assert math.isnan(log["start"][-1]) and math.isnan(log["completion"][-1])
        env.step(k % 3)
    assert env.request_log()["replica"][:20].tolist() == [k % 3 for k in range(20)]


def test_the_log_tells_where_a_request_was() -> None:
    """While it is re-routed it has no replica, only a last one."""
    env = InferenceCluster(**SHORT, events=[{"time_s": 0.125, "kind": "failure", "replica": 1}])
    env.reset(seed=1)
    over, awaiting = False, []
    while not over:
        log = env.request_log()
        moved = (log["reroutes"] > 0) & (log["replica"] == -1) & ~log["shed"]
        awaiting.append(moved.sum())
        assert (log["last_replica"][moved] == 1).all()
        *_, over, _ = env.step(1)  # which goes to replica 2 after the failure
    waited = max(awaiting)
    assert waited > 2
    first = awaiting.index(waited)
    assert awaiting[first : first + waited] == [*range(waited, 0, -1)]
    log = env.request_log()
    assert set(log["last_replica"][log["reroutes"] > 0].tolist()) == {2}
    assert not (log["replica"] == -1).any()


def test_admission_rejects() -> None:
    """Action N sheds the pending request, and is never masked; without admission there is no action N."""
    env = InferenceCluster(**SHORT, admission=True, reward="slo")
    env.reset(seed=1)
    assert env.action_space == gym.spaces.Discrete(4)
    total, over, info = 0.0, False, {}
    while not over:
        _, reward, _, over, info = env.step(3)
        total += reward
        assert info["action_mask"][3] == 1
    metrics = info["episode_metrics"]
    assert metrics["rejected"] == metrics["shed"] == metrics["arrivals"] == -total > 50
    assert metrics["invalid_actions"] == 0
    assert InferenceCluster(**SHORT).action_space == gym.spaces.Discrete(3)


@pytest.mark.parametrize("reward", [*CLUSTER_WEIGHTINGS, (0.25, -3.0, 1.5, 0.125, -0.5)])
def test_reward_weights_the_terms(reward: Any) -> None:
    """Under each name's weights (DESIGN 3), or those given."""
    weights = {
        "on_time": (1, 0, 0, 0, 0),
        "slo": (1, -1, -1, 0, 0),
        "latency": (0, 0, -10, -1 / 30.0, 0),
        "weighted": (1, -1, -1, 0, -1 / 1000),
    }.get(reward if isinstance(reward, str) else "", reward)
    env = InferenceCluster(**SHORT, queue_capacity=2, deadline_ms=30.0, reward=reward)
    steps = play(env, 2)
    terms = np.array([info["reward_terms"] for *_, info in steps])
    assert (terms.sum(axis=0) > 0).all()
    np.testing.assert_allclose([step[1] for step in steps], terms @ np.array(weights), rtol=1e-12, atol=1e-12)


def test_reward_terms_add_up_to_the_metrics() -> None:
    """Without a warm-up, over the whole episode, as do the counts of the metrics."""
    env = MOInferenceCluster(**SHORT, queue_capacity=2)
    for seed in range(10):
        steps = play(env, seed)
        on_time, late, shed, latency, integral = np.sum([step[1] for step in steps], axis=0)
        metrics = steps[-1][-1]["episode_metrics"]
        assert (on_time, late, shed) == (metrics["on_time"], metrics["late"], metrics["shed"])
        assert metrics["arrivals"] == metrics["completed"] + metrics["shed"] + metrics["unfinished"]
        assert latency == pytest.approx(metrics["mean_latency_ms"] * metrics["completed"])
        # Little's law, apart from what is left at the end and the way to the first boundary.
        assert integral >= latency - 0.5 * metrics["completed"]


def test_observation_router_shows_its_own_records_only() -> None:
    """The same values as under `full`, less what only replicas know."""
    full, own = InferenceCluster(**SHORT), InferenceCluster(**SHORT, observation="router")
    reported = {"waiting", "in_flight", "in_flight_age", "signal_age"}
    assert set(full.observation_space) - set(own.observation_space) == reported
    for ours, theirs in zip(play(own, 4), play(full, 4), strict=True):
        assert ours[0].keys() == own.observation_space.spaces.keys()
        for name, values in ours[0].items():
            np.testing.assert_array_equal(values, theirs[0][name])


def test_hidden_predictions_show_the_workloads_median() -> None:
    """Which is a whole number within the workload's bounds, whatever the distribution's parameter."""
    for median, shown in ((60.3, 60.0), (3.0, 4.0), (900.0, 512.0)):
        env = InferenceCluster(**SHORT, prediction_sigma=None, output_tokens={"median": median})
        steps = play(env, 1)
        predicted = env.request_log()["predicted"]
        assert set(predicted.tolist()) == {shown}
        assert all(env.observation_space.contains(step[0]) for step in steps)
        assert len(set(env.request_log()["output"].tolist())) > (10 if median == 60.3 else 0)


@pytest.mark.parametrize(
    "arguments",
    [
        {"config": "training", "rate_per_s": [50.0, 900.0], "load": None, "event_start_s": [0.0, 0.1]},
        {"events": [{"time_s": 0.0, "kind": "slowdown", "replica": 0, "factor": 1e300}]},
        {"events": [{"time_s": 0.01, "kind": "slowdown", "replica": 1, "factor": 6.0}], "measured_s": 4.0},
        {"heterogeneity": 1.9, "signal_interval_ms": 33.0, "prediction_sigma": 2.0},
        {"replicas": 256, "measured_s": 0.03, "queue_capacity": 1},
        {"output_tokens": {"sigma": 0.0}, "jitter": {"width": 3.0}, "demand": {"base_ms": 1e-3}},
    ],
)
def test_observations_lie_in_finite_boxes(arguments: dict[str, Any]) -> None:
    """Also under extreme conditions, and in all that a distribution samples."""
    env = InferenceCluster(**(SHORT | {"load": 1.5} | arguments))
    for box in env.observation_space.values():
        assert np.isfinite(box.low).all() and np.isfinite(box.high).all()
        assert box.dtype == np.float32
    for seed in range(5):
        observation, _ = env.reset(seed=seed)
        assert env.observation_space.contains(observation)
        for observation, *_ in play(env, seed):
            assert env.observation_space.contains(observation)


def test_a_service_beyond_all_bounds_never_ends() -> None:
    """However slow the replica: its request stays in service, it does not wrap around to an early end."""
    for factor in (1e6, 1e12, 1e18, 1e19, 1e300):
        events = [{"time_s": 0.0, "kind": "slowdown", "replica": 0, "factor": factor}]
        env = InferenceCluster(**SHORT, replicas=1, events=events)
        env.reset(seed=1)
        over = False
        while not over:
            observation, *_, over, _ = env.step(0)
        log = env.request_log()
        assert np.isnan(log["completion"]).all()
        assert np.isfinite(log["start"]).sum() == observation["in_flight"][0] == 1


def test_saving_needs_an_episode() -> None:
    """There is nothing to go back to before the first."""
    with pytest.raises(ResetNeeded, match="call reset first"):
        InferenceCluster(**SHORT).get_state()


def test_bad_arguments() -> None:
    """Name the field, the value and what is allowed."""
    for arguments, message in (
        ({"replicas": 0}, "replicas = 0: .*greater than or equal to 1"),
        ({"rate_per_s": -1.0}, "rate_per_s = -1.0: .*greater than or equal to 0"),
        ({"heterogeneity": 4.0}, r"heterogeneity = 4.0: gives replica 0 a mean service of -1 ms"),
        ({"scenario": "brust"}, r"scenario = 'brust': must be one of .*did you mean burst"),
        (
            {"events": [{"time_s": -1.0, "kind": "rate", "factor": 2.0}]},
            "time_s = -1.0: .*greater than or",
        ),
        ({"replica": 3}, r"replica is not a field \(did you mean replicas"),
        ({"render_mode": "sound"}, r"render_mode = 'sound': must be None or one of ansi, rgb_array, human"),
    ):
        with pytest.raises(ValueError, match=message):
            InferenceCluster(**arguments)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"replicas": 8}, "replicas = 8; this environment has 3"),
        ({"admission": True}, "admission = True; this environment has False"),
        ({"observation": "router"}, "observation = 'router'; this environment has 'full'"),
    ],
)
def test_a_state_of_an_environment_with_other_spaces_is_refused_and_changes_nothing(
    fields: dict[str, Any], named: str
) -> None:
    own, other = InferenceCluster(), InferenceCluster(**fields)
    own.reset(seed=1)
    other.reset(seed=1)
    before = own.request_log().tobytes()
    with pytest.raises(ValueError, match=re.escape(named)):
        own.set_state(other.get_state())
    assert own.request_log().tobytes() == before
    own.step(0)


def test_before_the_first_reset_the_log_is_empty_and_the_mask_valid() -> None:
    env = InferenceCluster()
    assert len(env.request_log()) == 0
    assert env.action_masks().all()
