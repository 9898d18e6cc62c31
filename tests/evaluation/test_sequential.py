"""A router of single requests that drives whole batches sees and does what it would in `CloudEdgeRequest`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing_baselines.cloud_edge.documented import CloudOnly, EdgeOnly, LeastLoaded, RoundRobin
from routing_baselines.cloud_edge.uniroute import UniRoute
from routing_gym.cloud_edge.evaluator import BatchTables, new_work, term_bounds
from routing_gym.evaluation.sequential import Sequential
from routing_gym.policy import Policy
from tests.cloud_edge.observations import Observation, batches, make_observation, make_request, row, stack

SHAPES = st.sampled_from([(), (0,), (1,), (4,), (2, 2)])


class Scripted(Policy):
    """Names destinations from a list, request after request, and keeps what it is given."""

    family: ClassVar[str] = "cloud_edge"
    role: ClassVar[Literal["router", "yardstick"]] = "yardstick"
    max_rows: ClassVar[int] = 7

    def __init__(self, choices: Sequence[int] = ()) -> None:
        self.choices = choices
        self.seen: list[Observation] = []
        self.starts: list[list[bool]] = []
        self.masks: list[np.ndarray] = []
        self.told: list[Any] = []

    def initial_state(self, seeds: Sequence[int]) -> Any:
        return np.zeros(len(seeds), np.int64)

    def predict(
        self,
        observation: Mapping[str, Any],
        state: Any = None,
        episode_start: Any = None,
        deterministic: bool = True,
        action_masks: Any = None,
    ) -> tuple[np.ndarray, Any]:
        self.seen.append(dict(observation))
        self.starts.append(episode_start.tolist())
        self.masks.append(action_masks)
        state = np.where(episode_start, 0, state)
        return np.array([self.choices[k % len(self.choices)] for k in state]), state + 1

    def configure(self, configs: Sequence[Any]) -> None:
        self.told += configs

    def attach(self, envs: Any) -> None:
        self.told.append(envs)


class EarliestFinish(Policy):
    """Where the request is done first, by what is shown of it; its state counts its requests."""

    family: ClassVar[str] = "cloud_edge"

    def predict(
        self,
        observation: Mapping[str, Any],
        state: Any = None,
        episode_start: Any = None,
        deterministic: bool = True,
        action_masks: Any = None,
    ) -> tuple[np.ndarray, Any]:
        done = observation["provisional_load_s"] + observation["infer_s"] + observation["transfer_s"]
        return np.where(observation["legal"] > 0, done, np.inf).argmin(axis=-1), state


# A batch worked by hand: three requests in five slots, two destinations.

INFER = [[1.0, 4.0], [2.0, 8.0], [6.0, 3.0]]
BATCH = make_observation(
    3,
    2,
    5,
    input_tokens=[10, 20, 30],
    predicted_output_tokens=[50, 90, 90],
    infer_s=INFER,
    transfer_s=[0.5, 0.25],
    cost=[[1, 2], [3, 3], [5, 9]],
    quality=[[0.5, 1.0], [0.25, 0.25], [0.0, 0.75]],
    backlog_s=[3.0, 0.0],
    speedup=[4.0, 2.0],
    outstanding=[2, 0],
    weights=[0.1, 0.2, 0.3, 0.4],
)


def test_a_batch_is_walked_longest_first_and_ties_in_order_of_arrival() -> None:
    policy = Scripted([1, 1, 0])
    actions, _ = Sequential(policy).predict(BATCH)
    assert actions.tolist() == [0, 1, 1, 0, 0]
    shown = {name: [seen[name][0].tolist() for seen in policy.seen] for name in policy.seen[0]}
    assert shown["predicted_output_tokens"] == [[90], [90], [50]]
    assert shown["input_tokens"] == [[20], [30], [10]]
    assert shown["infer_s"] == [INFER[1], INFER[2], INFER[0]]
    assert shown["cost"] == [[3, 3], [5, 9], [1, 2]]
    assert shown["remaining"] == [[3], [2], [1]]
    assert shown["backlog_s"] == [[3, 0]] * 3
    assert shown["outstanding"] == [[2, 0], [2, 1], [2, 2]]
    # At 1: nothing; 8 alone; max(8, (8 + 3)/2).
    assert shown["provisional_load_s"] == [[3, 0], [3, 8], [3, 8]]
    # Quality: sums of 0 .75 .25 and .5 .75 1; cost: 9 to 14; energy: all alike; time: lo is
    # max(1.5, 2.5, 3.25), hi max(6 + .5, 8 + .25): at 0 max(6, 9/4), at 1 max(8, 15/2).
    assert shown["term_range"] == [pytest.approx([1.25, 5, 0, 5])] * 3
    assert policy.seen[0]["weights"].tolist() == BATCH["weights"][None].tolist()


def test_work_that_is_shared_out_over_the_speedup_can_outlast_the_longest_request() -> None:
    policy = Scripted([1])
    Sequential(policy).predict(BATCH)
    # 8; max(8, 11/2); (then 15/2 would still be below 8.) With a speed-up of 1.25: 8, 8.8.
    assert [seen["provisional_load_s"][0, 1] for seen in policy.seen] == [0, 8, 8]
    policy.seen.clear()
    Sequential(policy).predict({**BATCH, "speedup": np.array([4, 1.25], np.float32)})
    assert [seen["provisional_load_s"][0, 1] for seen in policy.seen] == [0, 8, pytest.approx(8.8)]


def test_an_illegal_choice_is_passed_on_and_its_load_goes_to_the_next_legal_destination() -> None:
    legal = [[1, 1, 0, 1], [1, 0, 0, 1], [1, 0, 1, 1]]
    batch = make_observation(3, 4, legal=legal, predicted_output_tokens=[3, 2, 1], infer_s=[1, 2, 4, 8])
    policy = Scripted([2, 1, 1])
    actions, _ = Sequential(policy).predict(batch)
    assert actions.tolist() == [2, 1, 1]
    assert [seen["outstanding"][0].tolist() for seen in policy.seen[1:]] == [[0, 0, 0, 1], [0, 0, 0, 2]]
    assert policy.seen[2]["provisional_load_s"][0].tolist() == [0, 0, 0, 8]
    assert [mask.tolist() for mask in policy.masks] == [[[bool(d) for d in each]] for each in legal]
    policy = Scripted([2])  # beyond the last comes the first
    two = make_observation(2, 3, legal=[1, 1, 0])
    assert Sequential(policy).predict(two)[0].tolist() == [2, 2]
    assert policy.seen[1]["outstanding"][0].tolist() == [1, 0, 0]


# Against a plain walk of one batch


def plain_walk(batch: Observation, choices: Sequence[int]) -> tuple[list[int], list[Observation]]:
    """Return the actions and what is shown, request by request, choices being named in turn."""
    tables, width = BatchTables.from_observation(batch), len(batch["backlog_s"])
    count = len(tables.infer)
    bounds = term_bounds(tables)
    order = sorted(range(count), key=lambda r: (-batch["predicted_output_tokens"][r], r))
    actions, shown = [0] * len(batch["active"]), []
    on: list[list[float]] = [[] for _ in range(width)]
    for position, r in enumerate(order):
        load = [
            tables.backlog[d] + (new_work(max(on[d]), sum(on[d]), tables.speedup[d]) if on[d] else 0.0)
            for d in range(width)
        ]
        fields: dict[str, Any] = {
            name: batch[name].reshape(-1, width)[r]
            for name in ("quality", "cluster_error", "cost", "energy", "infer_s", "transfer_s", "legal")
        }
        fields |= {name: batch[name][r : r + 1] for name in ("input_tokens", "predicted_output_tokens")}
        fields |= {
            name: batch[name] for name in ("backlog_s", "speedup", "is_cloud", "token_price", "weights")
        }
        fields["outstanding"] = batch["outstanding"] + np.array([len(each) for each in on], np.float32)
        fields["provisional_load_s"] = load
        fields["remaining"] = [count - position]
        fields["term_range"] = [hi - lo for lo, hi in bounds]
        fields["term_range"][0] *= count
        shown.append({name: np.array(each, np.float32) for name, each in fields.items()})
        actions[r] = d = choices[position % len(choices)]
        while not tables.legal[r, d]:
            d = (d + 1) % width
        on[d].append(tables.infer[r, d])
    return actions, shown


@given(batches(st.just(())), st.lists(st.integers(0, 4), min_size=1, max_size=5))
def test_what_is_shown_is_that_of_a_plain_walk(drawn: Any, choices: list[int]) -> None:
    batch, _ = drawn
    width = len(batch["backlog_s"])
    policy = Scripted([choice % width for choice in choices])
    actions, _ = Sequential(policy).predict(batch)
    expected, shown = plain_walk(batch, policy.choices)
    assert actions.tolist() == expected
    assert len(policy.seen) == len(shown)
    for seen, plain in zip(policy.seen, shown, strict=True):
        assert seen.keys() == plain.keys() == make_request(width).keys()
        for name, values in plain.items():
            assert seen[name].dtype == np.float32
            assert seen[name].shape == (1, *values.shape)
            np.testing.assert_allclose(seen[name][0], values, rtol=1e-6, err_msg=name)


# Rows


@pytest.mark.parametrize("kind", [RoundRobin, LeastLoaded, CloudOnly, EdgeOnly, EarliestFinish])
@given(drawn=batches(SHAPES))
def test_rows_are_routed_as_they_are_alone(kind: Any, drawn: Any) -> None:
    """Whatever the lengths of the batches beside them, window after window; nothing given is changed."""
    batch, shape = drawn
    before = {name: each.copy() for name, each in batch.items()}
    router = Sequential(kind())
    state = router.initial_state(range(int(np.prod(shape))))
    alone = {index: router.initial_state([0]) for index in np.ndindex(shape)}
    for start in (True, None, False):
        kept = repr(state)
        actions, following = router.predict(batch, state, start)
        assert actions.dtype == np.int64
        assert actions.shape == batch["active"].shape
        assert (actions[batch["active"] == 0] == 0).all()
        for index in np.ndindex(shape):
            single, alone[index] = router.predict(row(batch, index), alone[index], start)
            assert single.tolist() == actions[index].tolist()
        assert repr(state) == kept
        state = following
    assert all(before[name].tobytes() == each.tobytes() for name, each in batch.items())


@given(batches(SHAPES))
def test_a_router_whose_choices_do_not_depend_on_each_other_does_as_on_the_batch(drawn: Any) -> None:
    batch, _ = drawn
    assert Sequential(UniRoute()).predict(batch)[0].tolist() == UniRoute().predict(batch)[0].tolist()


def test_a_cursor_counts_a_row_s_own_requests() -> None:
    windows = [[3, 0, 1], [1, 2, 0], [0, 1, 4]]
    router = Sequential(RoundRobin())
    state = router.initial_state(range(3))
    for counts, cursors in zip(windows, [[3, 0, 1], [4, 2, 1], [4, 3, 5]], strict=True):
        _, state = router.predict(stack([make_observation(count, 3, 4) for count in counts]), state)
        assert state[0].tolist() == cursors
        assert state[0].dtype == np.int64


def test_an_episode_that_begins_with_an_empty_window_starts_with_its_first_request() -> None:
    router = Sequential(RoundRobin())
    some, none = make_observation(2, 3), make_observation(0, 3, 2)
    _, state = router.predict(stack([some, some, some]), router.initial_state(range(3)), True)
    starts = [np.array([True, True, False]), False, False, None]
    windows = [[some, none, none], [some, none, some], [none, some, some], [some, some, some]]
    cursors = [[2, 2, 2], [4, 2, 4], [4, 2, 6], [6, 4, 8]]
    for start, window, expected in zip(starts, windows, cursors, strict=True):
        _, state = router.predict(stack(window), state, start)
        assert state[0].tolist() == expected


def test_only_a_first_request_starts_an_episode() -> None:
    policy = Scripted([0])
    Sequential(policy).predict(stack([make_observation(count, 2, 3) for count in (1, 3, 0)]), None, True)
    assert policy.starts == [[True, True], [False], [False]]


# States and what is passed on


class Keeper(RoundRobin):
    """Round robin with its cursor in a bag."""

    def __init__(self, pack: Any, unpack: Any) -> None:
        self.pack, self.unpack = pack, unpack

    def initial_state(self, seeds: Sequence[int]) -> Any:
        return self.pack(super().initial_state(seeds))

    def predict(self, observation: Any, state: Any = None, *rest: Any) -> tuple[Any, Any]:
        actions, cursor = super().predict(observation, self.unpack(state), *rest)
        return actions, self.pack(cursor)


@pytest.mark.parametrize(
    ("pack", "unpack"),
    [
        (lambda k: (k, None), lambda state: state[0]),
        (lambda k: {"k": k, "more": ({}, k[:, None] * np.ones(3))}, lambda state: state["more"][1][:, 2]),
    ],
)
def test_states_may_be_nested(pack: Any, unpack: Any) -> None:
    plain, router = Sequential(RoundRobin()), Sequential(Keeper(pack, unpack))
    state, nested = plain.initial_state(range(3)), router.initial_state(range(3))
    batch = stack([make_observation(count, 3, 4) for count in (2, 0, 4)])
    for start in (True, False, [False, False, True], False):
        expected, state = plain.predict(batch, state, start)
        actions, nested = router.predict(batch, nested, start)
        assert actions.tolist() == expected.tolist()
        assert unpack(nested[0]).tolist() == state[0].tolist()


@pytest.mark.parametrize("state", [3, [np.zeros(1)], "abc", (np.zeros(1), 3)])
def test_a_state_without_rows_is_refused(state: Any) -> None:
    router = Sequential(Keeper(lambda k: state, lambda state: None))
    with pytest.raises(TypeError, match=r"state is of type (int|list|str): it must be None"):
        router.predict(make_observation(1, 2))


def test_a_state_that_appears_from_nowhere_is_refused() -> None:
    class Late(RoundRobin):
        def initial_state(self, seeds: Sequence[int]) -> Any:
            return None

    with pytest.raises(TypeError, match="of type NoneType or ndarray: it must be None"):
        Sequential(Late()).predict(make_observation(1, 2))


def test_it_declares_what_the_policy_is_and_passes_on_what_it_is_told() -> None:
    policy = Scripted()
    router = Sequential(policy)
    assert (router.family, router.role, router.acts_on, router.max_rows) == (
        "cloud_edge",
        "yardstick",
        "batch",
        7,
    )
    assert Scripted.acts_on == "request"
    router.configure(["a config", "another"])
    router.attach("environments")
    assert policy.told == ["a config", "another", "environments"]
    assert router.initial_state([4, 5])[0].tolist() == [0, 0]


# The environments


class Recording(Policy):
    """A router, and all that it was shown of one episode."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.seen: list[Observation] = []
        self.chosen: list[int] = []

    def initial_state(self, seeds: Sequence[int]) -> Any:
        return self.policy.initial_state(seeds)

    def predict(self, observation: Any, *rest: Any) -> tuple[Any, Any]:
        actions, state = self.policy.predict(observation, *rest)
        self.seen.append({name: each.reshape(-1) for name, each in observation.items()})
        self.chosen.append(int(np.reshape(actions, -1)[0]))
        return actions, state


class Last(Policy):
    """Names the last destination, legal or not."""

    family: ClassVar[str] = "cloud_edge"

    def predict(self, observation: Mapping[str, Any], state: Any = None, *rest: Any) -> tuple[Any, Any]:
        *lead, width = np.shape(observation["legal"])
        return np.full(lead, width - 1), state


# Backlog is carried over, some windows are empty, and not every destination is legal.
CONDITION = {
    "catalogue": {"speedup": 1.5},
    "windows": 20,
    "rate_per_s": 3.0,
    "edge_only_share": 0.4,
    "outage_probability": 0.1,
}


def episode(name: str, policy: Policy, seed: int) -> tuple[float, Mapping[str, Any]]:
    """Play an episode; return its return and its metrics."""
    env = gym.make(f"routing_gym/{name}-v0", **CONDITION)
    observation, info = env.reset(seed=seed)
    state, start, done, total = policy.initial_state([seed]), True, False, 0.0
    while not done:
        action, state = policy.predict(observation, state, start, True, None)
        observation, reward, terminated, truncated, info = env.step(action)
        start, done, total = False, terminated or truncated, total + float(reward)
    return total, info["episode_metrics"]


@pytest.mark.parametrize("kind", [RoundRobin, LeastLoaded, CloudOnly, EdgeOnly, UniRoute, Last])
def test_it_does_as_the_router_does_among_single_requests(kind: Any) -> None:
    batch, single = Recording(kind()), Recording(kind())
    empty = invalid = 0
    for seed in range(1, 5):
        paid, metrics = episode("CloudEdgeBatch", Sequential(batch), seed)
        paid_singly, _ = episode("CloudEdgeRequest", single, seed)
        assert batch.chosen == single.chosen
        assert paid == pytest.approx(paid_singly)
        invalid += metrics["invalid_actions"]
        empty += metrics["windows"] - metrics["nonempty_windows"]
    assert empty and (invalid > 0) == (kind is Last)
    seen, other = stack(batch.seen), stack(single.seen)
    assert seen.keys() == other.keys()
    for name, values in seen.items():
        # A narrow range is the difference of numbers that are nearly equal, and were rounded.
        np.testing.assert_allclose(
            values, other[name], rtol=1e-4 if name == "term_range" else 1e-6, err_msg=name
        )
    assert seen["backlog_s"].any()
    assert seen["remaining"].min() < seen["remaining"].max()
