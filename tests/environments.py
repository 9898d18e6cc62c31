"""What the tests of all environments share: the ids, short episodes of each family, rules of action."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

import routing_gym


def _cluster_weights(env: gym.Env) -> np.ndarray:
    return np.array(env.unwrapped.config.reward_weights)


class Family(NamedTuple):
    """The specifics of a family.

    Attributes:
        short: arguments of episodes of about a hundred decisions in which much happens.
        overload: arguments of episodes that drive the observations to their bounds.
        weights: the weights of an environment's reward terms.
    """

    short: Mapping[str, Any] = MappingProxyType({})
    overload: Mapping[str, Any] = MappingProxyType({})
    weights: Callable[[gym.Env], np.ndarray] = _cluster_weights


FAMILIES = {
    "InferenceCluster": Family(
        short={
            "warmup_s": 0.0625,
            "measured_s": 0.25,
            "rate_per_s": 320.0,
            "queue_capacity": 3,
            "signal_interval_ms": 4.0,
            "reward": "weighted",
            "events": [
                {"time_s": 0.125, "kind": "failure", "replica": 1},
                {"time_s": 0.1875, "kind": "slowdown", "replica": 0, "factor": 2.5},
                {"time_s": 0.25, "kind": "recovery", "replica": 1},
            ],
        },
        overload={
            "replicas": 4,
            "warmup_s": 0.0,
            "measured_s": 4.0,
            "rate_per_s": 500.0,
            "queue_capacity": 40,
            "events": [
                {"time_s": 0.5, "kind": "failure", "replica": 1},
                {"time_s": 0.75, "kind": "slowdown", "replica": 0, "factor": 40.0},
                {"time_s": 1.0, "kind": "recovery", "replica": 1},
                {"time_s": 2.0, "kind": "failure", "replica": 3},
            ],
        },
    ),
}


def _cloud_edge_weights(env: gym.Env) -> np.ndarray:
    return np.array(env.unwrapped.config.weights)


CLOUD_EDGE = Family(
    short={
        "windows": 60,
        "rate_per_s": 3.0,
        "max_requests": 4,
        "weights": [0.4, 0.2, 0.1, 0.3],
        "catalogue": {"speedup": 2.0},
        "edge_only_share": 0.2,
        "outages": [{"node": "A10", "window": 10, "windows": 8}, {"node": "T4", "window": 15, "windows": 6}],
        "outage_probability": 0.05,
    },
    overload={
        "windows": 40,
        "rate_per_s": 30.0,
        "max_requests": 8,
        "catalogue": {"speedup": 1.0},
        "rtt_sigma": 0.5,
        "outage_probability": 0.3,
    },
    weights=_cloud_edge_weights,
)
FAMILIES |= {
    "CloudEdgeBatch": CLOUD_EDGE,
    "CloudEdgeRequest": CLOUD_EDGE._replace(short={**CLOUD_EDGE.short, "rate_per_s": 1.6}),
}


def _registered() -> list[str]:
    routing_gym.register_environments()
    return sorted(name for name in gym.registry if name.startswith("routing_gym/"))


IDS = _registered()
SCALAR_IDS = [name for name in IDS if "/mo-" not in name]
VECTOR_REWARD_IDS = [name for name in IDS if "/mo-" in name]


def family(env_id: str) -> Family:
    """Return the specifics of an id's family; a family that has none is tested as it comes."""
    name = env_id.partition("/")[2].removeprefix("mo-").partition("-v")[0]
    return FAMILIES.get(name, Family())


def make_short(env_id: str, **arguments: Any) -> Any:
    """Return an unwrapped environment of short episodes."""
    return gym.make(env_id, disable_env_checker=True, **family(env_id).short, **arguments).unwrapped


def make_short_vector(env_id: str, num_envs: int, **arguments: Any) -> Any:
    """Return the vector environment of `make_short`."""
    return gym.make_vec(env_id, num_envs=num_envs, **family(env_id).short, **arguments)


def valid_action(mask: np.ndarray, k: int) -> Any:
    """Return the k-th valid action, counted around; of a mask with a leading axis, one for each entry."""
    if mask.ndim > 1:
        return np.array([valid_action(row, k + i) for i, row in enumerate(mask)])
    valid = np.flatnonzero(mask)
    return int(valid[k % len(valid)])


def valid_actions(masks: np.ndarray, k: int) -> np.ndarray:
    """Return `valid_action` of each row of a vector environment: rows share k, as single ones would."""
    return np.array([valid_action(mask, k) for mask in masks])


def episode(env: gym.Env, seed: int | None = None, shift: int = 0) -> Iterator[tuple[Any, ...]]:
    """Play an episode by `valid_action` and yield what reset and each step return."""
    observation, info = env.reset(seed=seed)
    yield observation, info
    k, over = shift, False
    while not over:
        outcome = env.step(valid_action(info["action_mask"], k))
        yield outcome
        info, over, k = outcome[4], outcome[2] or outcome[3], k + 1


def assert_same(a: Any, b: Any, where: str = "") -> None:
    """Assert that two nested structures hold the same keys and the same numbers, exactly.

    Types may differ where only containers batch differently: integers and equal floats are the same.
    """
    if isinstance(a, dict) or isinstance(b, dict):
        assert isinstance(a, dict) and isinstance(b, dict), where
        assert a.keys() == b.keys(), f"{where}: {sorted(a.keys() ^ b.keys())} in one only"
        for key in a:
            assert_same(a[key], b[key], f"{where}.{key}")
    elif isinstance(a, (list, tuple)):
        assert len(a) == len(b), where
        for k, (x, y) in enumerate(zip(a, b, strict=True)):
            assert_same(x, y, f"{where}[{k}]")
    elif isinstance(a, np.ndarray) and a.dtype == object:
        assert_same(list(a), list(b), where)
    elif a is None or b is None:
        assert a is b, where
    else:
        np.testing.assert_array_equal(a, b, err_msg=where, strict=False)


def log(env: Any) -> np.ndarray:
    """Return an environment's log of requests."""
    return env.request_log() if hasattr(env, "request_log") else env.assignment_log()
