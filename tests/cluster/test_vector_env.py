"""The cluster's vector environment: a config per row, and workloads that nothing but the seed decides.

That rows are single environments, in each autoreset mode, tests/common/test_vector.py shows for all families.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import routing_gym  # noqa: F401
from routing_gym.cluster.config import ClusterConfig
from routing_gym.cluster.env import InferenceCluster
from routing_gym.cluster.vector_env import InferenceClusterVector
from tests.environments import valid_action

ID = "routing_gym/InferenceCluster-v0"
SHORT = {"warmup_s": 0.06, "measured_s": 0.25}
WORKLOAD = ["arrival", "prompt", "output", "predicted", "demand", "jitter"]


def mixed_configs(trace: Path) -> list[Any]:
    """Return conditions as different as rows can be, given in each of the ways."""
    failure = {"time_s": 0.1, "kind": "failure", "replica": 2}
    return [
        {"rate_per_s": 300.0, **SHORT},
        ClusterConfig.create(load=1.5, heterogeneity=0.5, queue_capacity=2, events=[failure], **SHORT),
        {"trace": str(trace), "load": 0.9, **SHORT},
        {"base": SHORT, "event_start_s": [0.0, 0.1], "event_duration_s": [0.05, 0.1]},
        {"rate_per_s": 0.0, "prediction_sigma": None, "signal_interval_ms": 5.0, **SHORT},
        {"rate_per_s": 500.0, "time_step_ms": 2.0, "deadline_ms": 20.0, "reward": "latency", **SHORT},
    ]


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """A trace of a few seconds, with several arrivals at one time."""
    rng = np.random.default_rng(0)
    times = np.sort(np.round(rng.random(600) * 3.0, 2))
    tokens = rng.integers(1, 800, (600, 2))
    rows = [f"{time:.2f},{prompt},{output}" for time, (prompt, output) in zip(times, tokens, strict=True)]
    path = tmp_path / "trace.csv"
    path.write_text("arrival_s,prompt_tokens,output_tokens\n" + "\n".join(rows) + "\n")
    return path


@pytest.mark.parametrize("mode", ["NextStep", "SameStep", "Disabled"])
def test_each_row_has_its_own_config(trace: Path, mode: str) -> None:
    """Row i is the single environment of its config, seeded s + i, episode after episode."""
    configs = mixed_configs(trace)
    rows = len(configs)
    envs = gym.make_vec(ID, num_envs=rows, configs=configs, autoreset_mode=mode, warmup_s=0.0)
    singles = [InferenceCluster(config, warmup_s=0.0) for config in configs]
    observation, infos = envs.reset(seed=20)
    alone = [env.reset(seed=20 + row) for row, env in enumerate(singles)]
    assert [config.warmup_ms for config in envs.unwrapped.configs] == [0.0] * rows
    over, episodes = np.zeros(rows, bool), np.zeros(rows, int)
    for k in range(400):
        for row, (single, info) in enumerate(alone):
            for name, values in single.items():
                assert values.tobytes() == observation[name][row].tobytes(), (k, row, name)
            np.testing.assert_array_equal(info["action_mask"], infos["action_mask"][row])
            assert singles[row].config == envs.unwrapped.configs[row]
        actions = np.array([valid_action(mask, k + row) for row, mask in enumerate(infos["action_mask"])])
        before = over
        observation, rewards, _, over, infos = envs.step(actions)
        assert envs.observation_space.contains(observation)
        for row, env in enumerate(singles):
            if before[row] and mode == "NextStep":
                alone[row] = env.reset()
                assert (rewards[row], over[row]) == (0.0, False)
                continue
            single, reward, _, truncated, info = env.step(actions[row])
            assert (reward, truncated) == (rewards[row], over[row])
            alone[row] = single, info
            episodes[row] += truncated
            if truncated:
                known = infos["final_info"] if mode == "SameStep" else infos
                metrics = known["episode_metrics"]
                for name, value in info["episode_metrics"].items():
                    assert metrics[f"_{name}"][row]
                    np.testing.assert_array_equal(metrics[name][row], value)
                undefined = {name for name, values in metrics.items() if name[0] != "_"} - {
                    *info["episode_metrics"]
                }
                assert not any(metrics[f"_{name}"][row] for name in undefined)
                if mode != "NextStep":
                    alone[row] = env.reset()
        if mode == "Disabled" and over.any():
            observation, infos = envs.reset(options={"reset_mask": over})
            over = np.zeros(rows, bool)
        elif mode == "SameStep":
            over = np.zeros(rows, bool)
    assert (episodes >= 2).all()


def test_rows_that_do_not_fit_together() -> None:
    """Name the row, the field, the value and what is allowed."""
    for configs, message in (
        ([{}, {"replicas": 4}], r"configs\[1\].*replicas = 4: must be 3"),
        ([{}, {}, {"admission": True}], r"configs\[2\].*admission = True: must be False"),
        ([{}, {"observation": "router"}], r"configs\[1\].*observation = 'router': must be 'full'"),
    ):
        with pytest.raises(ValueError, match=message):
            InferenceClusterVector(len(configs), configs=configs)
    with pytest.raises(ValueError, match="configs has 2 entries; num_envs is 3"):
        InferenceClusterVector(3, configs=[{}, {}])
    with pytest.raises(ValueError, match="rate_per_s = -1"):
        InferenceClusterVector(2, configs=[{}, {"rate_per_s": -1}])
    with pytest.raises(ValueError, match="config = 5: must be a config, a name, a path or a mapping"):
        InferenceClusterVector(2, config=5)


def test_the_space_holds_every_rows() -> None:
    """The bounds of the common space are the widest of all rows'."""
    configs = [{"queue_capacity": 4, "measured_s": 20.0}, {"queue_capacity": 9, "heterogeneity": 0.0}]
    envs = InferenceClusterVector(2, configs=configs)
    spaces = [InferenceCluster(config).observation_space for config in configs]
    for name, box in envs.single_observation_space.items():
        highest = np.maximum(spaces[0][name].high, spaces[1][name].high)
        np.testing.assert_array_equal(box.high, highest)
        np.testing.assert_array_equal(box.low, 0.0)
    assert envs.single_observation_space["waiting"].high.tolist() == [9.0] * 3
    assert envs.observation_space["waiting"].shape == (2, 3)


def workload_of(log: np.ndarray) -> bytes:
    """Return the bytes of everything that is drawn."""
    return b"".join(log[name].tobytes() for name in WORKLOAD)


def play(env: InferenceCluster, rule: str) -> bytes:
    """Play the environment's current episode out by one of three routers, and return its workload."""
    over, k = False, 0
    rng = np.random.default_rng(0)
    while not over:
        if rule == "random":
            action = int(rng.integers(env.action_space.n))
        else:
            action = 0 if rule == "first" else k % int(env.action_space.n)
        *_, over, _ = env.step(action)
        k += 1
    return workload_of(env.request_log())


@pytest.mark.parametrize("which", range(6))
def test_workloads_are_common_to_all_routers(trace: Path, which: int) -> None:
    """Byte for byte: whatever the router does, whichever the row, and in every episode."""
    config = mixed_configs(trace)[which]
    env, seed, episodes = InferenceCluster(config), 123, 3
    workloads: dict[str, list[bytes]] = {}
    for rule in ("first", "in turn", "random"):
        workloads[rule] = []
        for episode in range(episodes):
            env.reset(seed=seed if episode == 0 else None)
            workloads[rule].append(play(env, rule))
    expected = workloads["first"]
    assert workloads["in turn"] == workloads["random"] == expected
    if which != 4:  # at rate 0 they are all empty
        assert len({*expected}) == episodes
    # Anywhere in a vector environment, beside rows of other conditions and seeds.
    others = mixed_configs(trace)
    for row in (0, 3):
        configs = [*others[:row], config, *others[row:]]
        envs = InferenceClusterVector(len(configs), configs=configs, autoreset_mode="Disabled")
        seeds: list[int | None] = list(range(len(configs)))
        seeds[row] = seed
        seen: list[bytes] = []
        envs.reset(seed=seeds)
        for _ in range(3000):
            *_, over, _ = envs.step(np.full(len(configs), row % 3))
            if over[row]:
                seen.append(workload_of(envs.request_log(row)))
            if over.any():
                envs.reset(options={"reset_mask": over})
            if len(seen) == episodes:
                break
        assert seen == expected


def test_admission_and_view_leave_the_workload_alone() -> None:
    """What the router may do and see is no part of it, nor is what events do to replicas."""
    expected = play_once({})
    events = [{"time_s": 0.05, "kind": "failure", "replica": 0}]
    for arguments in (
        {"admission": True},
        {"observation": "router"},
        {"signal_interval_ms": 10.0},
        {"replicas": 5},
        {"queue_capacity": 1},
        {"events": events},
        {"reward": "slo"},
        {"deadline_ms": 20.0},
    ):
        assert play_once(arguments) == expected, arguments
    assert play_once({"rate_per_s": 301.0}) != expected


def play_once(arguments: dict[str, Any]) -> bytes:
    """Return the workload of an episode of a condition."""
    env = InferenceCluster(**(SHORT | {"rate_per_s": 300.0} | arguments))
    env.reset(seed=9)
    return play(env, "first")


def test_a_state_of_other_rows_is_refused_and_changes_nothing() -> None:
    own, other = InferenceClusterVector(3), InferenceClusterVector(2)
    own.reset(seed=1)
    other.reset(seed=1)
    with pytest.raises(ValueError, match=r"\(rows, replicas\) = \(2, 3\); this environment has \(3, 3\)"):
        own.set_state(other.get_state())
    own.step(np.zeros(3, np.int64))
