"""What every registered router of the cluster owes its users, those of other packages included."""

from __future__ import annotations

from functools import cache
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from hypothesis import given, settings
from hypothesis import strategies as st

import routing_gym
from routing_gym.cluster.config import ClusterConfig
from routing_gym.cluster.env import InferenceCluster
from routing_gym.cluster.observation import REPORTED_FIELDS
from routing_gym.cluster.vector_env import InferenceClusterVector
from routing_gym.policy import Policy, Yardstick, policy_class
from tests.baselines.states import Observation, fits, observations, row

NAMES = routing_gym.list_policies("cluster")
POLICIES = [name for name in NAMES if issubclass(policy_class(name), Policy)]
ROUTERS = [(name, {}) for name in POLICIES if policy_class(name).role == "router"]
BOUNDS = [name for name in NAMES if issubclass(policy_class(name), Yardstick)]
STATELESS = [name for name, _ in ROUTERS if routing_gym.make_policy(name).initial_state([0]) is None]
VARIANTS = [*ROUTERS, ("cluster/deadline_aware", {"admission": True})]
SHAPES = st.sampled_from([(), (0,), (1,), (5,), (2, 3), (2, 1, 2)])
FEWER = settings(max_examples=20)

# Three seconds' worth of everything: a replica that fails, queues that fill up, requests that are shed.
CONDITION = {
    "rate_per_s": 330,
    "queue_capacity": 3,
    "warmup_s": 0.2,
    "measured_s": 1.0,
    "events": [
        {"time_s": 0.3, "kind": "failure", "replica": 0},
        {"time_s": 0.4, "kind": "slowdown", "replica": 2, "factor": 2.0},
        {"time_s": 0.9, "kind": "recovery", "replica": 0},
    ],
}
ROWS, SEED = 3, 40
routers = pytest.mark.parametrize(("name", "params"), VARIANTS, ids=[f"{n}{p or ''}" for n, p in VARIANTS])


def rows_of(shape: tuple[int, ...]) -> int:
    return int(np.prod(shape))


@pytest.mark.parametrize("name", NAMES)
def test_a_router_declares_what_it_is(name: str) -> None:
    cls = policy_class(name)
    assert cls.family == "cluster"
    assert cls.role in ("router", "yardstick")
    assert cls.__doc__
    if issubclass(cls, Policy):
        assert cls.acts_on == "request"
    else:
        assert cls.role == "yardstick"
    assert isinstance(routing_gym.make_policy(name), cls)


@routers
@FEWER
@given(drawn=observations(SHAPES))
def test_a_batch_is_routed_as_its_rows_are(name: str, params: dict[str, Any], drawn: Any) -> None:
    """Bit for bit, over any leading axes, decision after decision."""
    batch, shape = drawn
    router = routing_gym.make_policy(name, **params)
    state = router.initial_state(range(rows_of(shape)))
    alone = {index: router.initial_state([k]) for k, index in enumerate(np.ndindex(shape))}
    for _ in range(3):
        actions, state = router.predict(batch, state)
        assert np.shape(actions) == shape
        assert actions.dtype == np.int64
        for index in np.ndindex(shape):
            action, alone[index] = router.predict(row(batch, index), alone[index])
            assert np.shape(action) == ()
            assert action.dtype == np.int64
            assert action == actions[index]


def allowed(actions: np.ndarray, eligible: np.ndarray, params: dict[str, Any]) -> bool:
    """Whether each action is an eligible replica, or rejects where that is possible."""
    mask = np.concatenate(
        [eligible, np.full((*eligible.shape[:-1], 1), bool(params.get("admission")))], axis=-1
    )
    return bool(np.take_along_axis(mask, actions[..., None], axis=-1).all())


@routers
@FEWER
@given(drawn=observations(SHAPES))
def test_only_eligible_replicas_are_named(name: str, params: dict[str, Any], drawn: Any) -> None:
    """And where none is, as in a closing observation, any valid action."""
    batch, shape = drawn
    router = routing_gym.make_policy(name, **params)
    state = router.initial_state(range(rows_of(shape)))
    for _ in range(4):
        actions, state = router.predict(batch, state)
        assert allowed(actions, fits(batch), params)


@routers
@FEWER
@given(drawn=observations(SHAPES), seed=st.integers(0, 2**32), admission=st.booleans())
def test_masks_are_honoured(
    name: str, params: dict[str, Any], drawn: Any, seed: int, admission: bool
) -> None:
    """They go before `eligible`; they may be bool or int8, of N or of N + 1 actions."""
    batch, shape = drawn
    rng = np.random.default_rng(seed)
    mask = rng.random((*shape, batch["eligible"].shape[-1])) < 0.5
    mask[..., rng.integers(mask.shape[-1])] = True
    wide = np.concatenate([mask, np.ones((*shape, 1), bool)], axis=-1)
    router = routing_gym.make_policy(name, **params)
    state = router.initial_state(range(rows_of(shape)))
    shown = wide if admission else mask
    actions, _ = router.predict(batch, state, action_masks=shown)
    assert allowed(actions, mask, params)
    again, _ = router.predict(batch, state, action_masks=shown.astype(np.int8))
    assert again.tolist() == actions.tolist()
    same, _ = router.predict({**batch, "eligible": mask.astype(np.float32)}, state)
    assert same.tolist() == actions.tolist()


@routers
@FEWER
@given(drawn=observations(SHAPES))
def test_routing_changes_neither_the_observation_nor_the_state_it_is_given(
    name: str, params: dict[str, Any], drawn: Any
) -> None:
    batch, shape = drawn
    router = routing_gym.make_policy(name, **params)
    _, state = router.predict(batch, router.initial_state(range(rows_of(shape))))
    before = {key: value.copy() for key, value in batch.items()}
    kept = None if state is None else np.array(state)
    first, _ = router.predict(batch, state)
    second, _ = router.predict(batch, state)
    assert first.tolist() == second.tolist()
    assert all(before[key].tobytes() == value.tobytes() for key, value in batch.items())
    assert kept is None or kept.tolist() == np.array(state).tolist()


@routers
@FEWER
@given(drawn=observations(SHAPES))
def test_the_router_s_own_records_are_enough(name: str, params: dict[str, Any], drawn: Any) -> None:
    """A proxy in front of real servers shows no more: `observation="router"`."""
    batch, shape = drawn
    own = {key: value for key, value in batch.items() if key not in (*REPORTED_FIELDS, "signal_age")}
    router = routing_gym.make_policy(name, **params)
    state = router.initial_state(range(rows_of(shape)))
    assert router.predict(own, state)[0].tolist() == router.predict(batch, state)[0].tolist()


@pytest.mark.parametrize("name", STATELESS)
def test_ties_go_to_the_lowest_index(name: str) -> None:
    """Nothing tells the replicas apart before the first request."""
    router = routing_gym.make_policy(name)
    observation, _ = InferenceCluster().reset(seed=1)
    assert router.predict(observation)[0] == 0
    assert router.predict(observation, action_masks=np.array([0, 1, 1], np.int8))[0] == 1


# Playing


@cache
def vector_run(name: str, admission: bool) -> tuple[np.ndarray, list[dict[str, Any]]]:
    """Play ROWS episodes at once; return the actions (steps, rows) and each row's metrics."""
    config = ClusterConfig.create(CONDITION, admission=admission)
    envs = InferenceClusterVector(ROWS, config, autoreset_mode=AutoresetMode.DISABLED, hold_finished=True)
    router = routing_gym.make_policy(name)
    router.configure(envs.configs)
    if router.role == "yardstick":
        router.attach(envs)
    observation, info = envs.reset(seed=SEED)
    state = router.initial_state(range(ROWS))
    start, finished, taken = np.ones(ROWS, bool), np.zeros(ROWS, bool), []
    while not finished.all():
        actions, state = router.predict(observation, state, start)
        assert actions.shape == (ROWS,)
        assert (np.take_along_axis(info["action_mask"], actions[:, None], axis=1) == 1).all()
        taken.append(np.where(finished, -1, actions))
        observation, _, _, finished, info = envs.step(actions)
        start = np.zeros(ROWS, bool)
    return np.array(taken), [envs.episode_metrics(k) for k in range(ROWS)]


@pytest.mark.parametrize("admission", [False, True])
@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_plays_many_environments(name: str, admission: bool) -> None:
    taken, metrics = vector_run(name, admission)
    for each in metrics:
        assert each["invalid_actions"] == 0
        assert each["arrivals"] == each["completed"] + each["shed"] + each["unfinished"]
        assert each["on_time"] > 0
        assert admission or each["rejected"] == 0
    assert taken.max() < 3 + admission
    assert sum(each["shed"] for each in metrics) > 0, "the condition is to fill the queues"


@pytest.mark.parametrize("name", [name for name, _ in ROUTERS])
def test_a_router_in_one_environment_does_as_in_a_row_of_many(name: str) -> None:
    taken, metrics = vector_run(name, False)
    for k in range(ROWS):
        env = gym.make("routing_gym/InferenceCluster-v0", config=dict(CONDITION))
        router = routing_gym.make_policy(name)
        router.configure([env.unwrapped.config])
        state, start, done, step = router.initial_state([k]), True, False, 0
        observation: Observation
        observation, info = env.reset(seed=SEED + k)
        while not done:
            action, state = router.predict(observation, state, start, action_masks=info["action_mask"])
            assert action == taken[step, k]
            observation, _, _, done, info = env.step(action)
            start, step = False, step + 1
        assert (taken[step:, k] == -1).all()
        assert info["episode_metrics"]["on_time"] == metrics[k]["on_time"]
        # What an evaluation does that asks once more, after the end.
        assert env.action_space.contains(np.int64(router.predict(observation, state)[0]))


@pytest.mark.parametrize("name", BOUNDS)
def test_no_policy_has_more_on_time_than_a_bound(name: str) -> None:
    for admission in (False, True):
        config = ClusterConfig.create(CONDITION, admission=admission)
        envs = InferenceClusterVector(ROWS, config)
        envs.reset(seed=SEED)
        for k, episode in enumerate(envs.episodes):
            bound = routing_gym.make_policy(name).measure(episode)
            assert bound.keys() <= envs.episode_metrics(k).keys()
            for policy in POLICIES:
                metrics = vector_run(policy, admission)[1][k]
                assert metrics["arrivals"] == bound["arrivals"]
                assert metrics["on_time"] <= bound["on_time"]
                assert metrics["attainment"] <= bound["attainment"]


def test_the_clairvoyant_needs_an_environment_to_look_into() -> None:
    with pytest.raises(RuntimeError, match="configure and attach it first"):
        routing_gym.make_policy("cluster/clairvoyant").predict({})
