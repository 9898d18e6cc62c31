"""The source's simple policies, on batches worked by hand and against plain loops."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing_baselines.cloud_edge.documented import CloudOnly, EdgeOnly, LeastLoaded, RoundRobin
from routing_baselines.cloud_edge.sampling import Random
from routing_baselines.cloud_edge.uniroute import UniRoute
from tests.cloud_edge.observations import batches, closing_request, make_observation, make_request, pairs, row

ROUTERS = [RoundRobin, LeastLoaded, CloudOnly, EdgeOnly, UniRoute, Random]
CURSORS = [RoundRobin, CloudOnly, EdgeOnly]
SHAPES = st.sampled_from([(), (0,), (1,), (4,), (2, 3)])
routers = pytest.mark.parametrize("kind", ROUTERS, ids=lambda kind: kind.__name__)


def play(router: Any, *observations: Any, state: Any = None) -> list[list[int]]:
    """Return the router's choices, one window after the other."""
    chosen = []
    for observation in observations:
        actions, state = router.predict(observation, state)
        chosen.append(actions.tolist())
    return chosen


# Round robin


def test_round_robin_goes_round_within_a_batch_and_on_into_the_next() -> None:
    windows = [make_observation(4, 3, 6), make_observation(0, 3, 6), make_observation(2, 3, 6)]
    assert play(RoundRobin(), *windows) == [[0, 1, 2, 0, 0, 0], [0] * 6, [1, 2, 0, 0, 0, 0]]


def test_round_robin_counts_on_over_other_legal_lists() -> None:
    """E[k mod |E|]: k = 0, 1, 2, 3, 4 over E = {0,1,2}, {1,2}, {1}, {0,2}, {0,1,2}."""
    legal = [[1, 1, 1], [0, 1, 1], [0, 1, 0], [1, 0, 1], [1, 1, 1]]
    assert play(RoundRobin(), make_observation(5, 3, legal=legal)) == [[0, 2, 1, 2, 1]]


def test_the_cursor_never_wraps() -> None:
    """Wrapped at 3, a cursor of 5 would be 2, and take the first of two; it takes the second."""
    for k in (5, 8, 2**40 + 1, 2**62 + 3):
        batch = make_observation(2, 3, legal=[[1, 1, 0], [1, 1, 1]])
        actions, state = RoundRobin().predict(batch, np.int64(k))
        assert actions.tolist() == [k % 2, (k + 1) % 3]
        assert state == k + 2
        assert state.dtype == np.int64


@pytest.mark.parametrize("kind", CURSORS)
def test_cursors_are_per_row_and_start_anew_with_an_episode(kind: Any) -> None:
    router = kind()
    batch = {name: np.stack([each] * 3) for name, each in make_observation(2, 3, 4).items()}
    batch |= {"is_cloud": np.full((3, 3), kind is CloudOnly, np.float32)}
    state = router.initial_state([5, 6, 7])
    actions, state = router.predict(batch, state, np.ones(3, bool))
    assert actions.tolist() == [[0, 1, 0, 0]] * 3
    assert state.tolist() == [2, 2, 2]
    actions, state = router.predict(batch, state, np.array([False, True, False]))
    assert actions.tolist() == [[2, 0, 0, 0], [0, 1, 0, 0], [2, 0, 0, 0]]
    assert state.tolist() == [4, 2, 4]
    actions, state = router.predict(batch, state, True)
    assert actions.tolist() == [[0, 1, 0, 0]] * 3


@pytest.mark.parametrize("start", [None, False, np.array([False])])
def test_round_robin_plays_one_environment(start: Any) -> None:
    router = RoundRobin()
    state = router.initial_state([3])
    for expected in ([0, 1], [2, 0], [1, 2]):
        actions, state = router.predict(make_observation(2, 3), state, start)
        assert actions.tolist() == expected
        assert state.shape == ()


# Tiers


def test_a_tier_s_router_stays_in_it_and_leaves_it_where_nothing_there_is_legal() -> None:
    """Cloud is {0, 1}, edge {2, 3, 4}."""
    legal = [[1, 1, 1, 1, 1], [0, 1, 1, 1, 1], [0, 0, 1, 1, 0], [1, 1, 0, 0, 0], [1, 0, 1, 0, 1]]
    batch = make_observation(5, 5, 6, legal=legal, is_cloud=[1, 1, 0, 0, 0])
    # E of cloud: {0,1}, {1}, all {2,3}, {0,1}, {0}; E of edge: {2,3,4}, {2,3,4}, {2,3}, all {0,1}, {2,4}.
    assert play(CloudOnly(), batch) == [[0, 1, 2, 1, 0, 0]]
    assert play(EdgeOnly(), batch) == [[2, 3, 2, 1, 2, 0]]
    assert play(CloudOnly(), batch, state=np.int64(1)) == [[1, 1, 3, 0, 0, 0]]
    assert play(EdgeOnly(), batch, state=np.int64(1)) == [[3, 4, 3, 0, 4, 0]]


def test_without_its_tier_a_router_goes_round_all() -> None:
    batch = make_observation(4, 3, is_cloud=[0, 0, 0])
    assert play(CloudOnly(), batch) == play(RoundRobin(), batch) == play(EdgeOnly(), batch)


# Least loaded


def test_least_loaded_counts_what_it_assigns() -> None:
    batch = make_observation(5, 3, 7, outstanding=[2, 0, 1])
    # 2 0 1 -> 1; 2 1 1 -> 1, the first of a tie; 2 2 1 -> 2; 2 2 2 -> 0; 3 2 2 -> 1.
    assert play(LeastLoaded(), batch) == [[1, 1, 2, 0, 1, 0, 0]]


def test_least_loaded_sees_legal_destinations_only() -> None:
    legal = [[0, 1, 1], [1, 0, 0], [0, 1, 1], [1, 1, 1]]
    batch = make_observation(4, 3, legal=legal, outstanding=[0, 3, 2])
    # {1: 3, 2: 2} -> 2; {0} -> 0; {1: 3, 2: 3} -> 1; 1 4 3 -> 0.
    assert play(LeastLoaded(), batch) == [[2, 0, 1, 0]]


@given(st.integers(0, 12), st.integers(1, 6))
def test_least_loaded_is_round_robin_on_a_fresh_system(requests: int, destinations: int) -> None:
    """As in the source's table, where their figures agree; what is outstanding tells them apart."""
    fresh = make_observation(requests, destinations, 12)
    assert play(LeastLoaded(), fresh) == play(RoundRobin(), fresh)
    if requests and destinations > 1:
        busy = {**fresh, "outstanding": np.arange(destinations, 0, -1, dtype=np.float32)}
        assert play(LeastLoaded(), busy) != play(RoundRobin(), busy)
        assert play(RoundRobin(), busy) == play(RoundRobin(), fresh)


def test_least_loaded_has_no_state() -> None:
    assert LeastLoaded().initial_state([1, 2]) is None
    assert play(LeastLoaded(), *[make_observation(2, 3)] * 2) == [[0, 1], [0, 1]]


# Against plain loops


def expected(kind: Any, observation: Any, k: int) -> tuple[list[int], int]:
    """Return a router's choices for one batch, and its next cursor, request by request."""
    legal, count = pairs(observation, "legal"), int(observation["active"].sum())
    outstanding, cloud = observation["outstanding"].tolist(), observation["is_cloud"]
    chosen = []
    for r in range(count):
        options = [d for d in range(len(cloud)) if legal[r, d] > 0]
        if kind in (CloudOnly, EdgeOnly):
            options = [d for d in options if (cloud[d] > 0) == (kind is CloudOnly)] or options
        if kind is LeastLoaded:
            chosen.append(min(options, key=lambda d: (outstanding[d], d)))
            outstanding[chosen[-1]] += 1
        else:
            chosen.append(options[k % len(options)])
            k += 1
    return chosen + [0] * (len(legal) - count), k


@pytest.mark.parametrize("kind", [RoundRobin, LeastLoaded, CloudOnly, EdgeOnly])
@given(drawn=batches(SHAPES), cursor=st.integers(0, 99))
def test_routers_do_as_a_plain_loop(kind: Any, drawn: Any, cursor: int) -> None:
    batch, shape = drawn
    given_state = None if kind is LeastLoaded else np.full(shape, cursor)
    actions, state = kind().predict(batch, given_state)
    for index in np.ndindex(shape):
        chosen, k = expected(kind, row(batch, index), cursor)
        assert actions[index].tolist() == chosen
        assert state is None or state[index] == k


# What all of them owe


@routers
@given(drawn=batches(SHAPES))
def test_choices_are_legal_and_those_of_the_rows_alone(kind: Any, drawn: Any) -> None:
    """Bit for bit, over any leading axes, window after window; nothing given is changed."""
    batch, shape = drawn
    before = {name: each.copy() for name, each in batch.items()}
    router = kind()
    state = router.initial_state(range(int(np.prod(shape))))
    alone = {index: router.initial_state([k]) for k, index in enumerate(np.ndindex(shape))}
    for _ in range(3):
        kept = None if state is None else state.copy()
        actions, following = router.predict(batch, state)
        assert actions.dtype == np.int64
        assert actions.shape == batch["active"].shape
        assert np.take_along_axis(pairs(batch, "legal"), actions[..., None], axis=-1).all()
        assert (actions[batch["active"] == 0] == 0).all()
        for index in np.ndindex(shape):
            single, alone[index] = router.predict(row(batch, index), alone[index])
            assert single.tolist() == actions[index].tolist()
        assert kept is None or kept.tolist() == state.tolist()
        state = following
    assert all(before[name].tobytes() == each.tobytes() for name, each in batch.items())


@routers
def test_a_request_observation_is_a_batch_of_one(kind: Any) -> None:
    rng = np.random.default_rng(3)
    fields = {
        "legal": [1, 0, 1, 1],
        "outstanding": [3, 0, 2, 4],
        "is_cloud": [1, 0, 1, 0],
        "cluster_error": rng.random(4),
        "token_price": rng.random(4),
    }
    batch, request = make_observation(1, 4, **fields), make_request(4, **fields)
    router = kind()
    start = state = alone = router.initial_state([0])
    for _ in range(5):
        whole, state = router.predict(batch, state)
        action, alone = router.predict(request, alone)
        assert action.shape == ()
        assert action.dtype == np.int64
        assert [action] == whole.tolist()
        assert alone == state
    many = {name: np.broadcast_to(each, (2, 3, *each.shape)) for name, each in request.items()}
    same = None if start is None else np.broadcast_to(start, (2, 3))
    assert router.predict(many, same)[0].tolist() == [[int(router.predict(request, start)[0])] * 3] * 2


@routers
def test_a_closing_observation_gets_an_action_and_counts_nothing(kind: Any) -> None:
    router = kind()
    start = router.initial_state([0])
    action, state = router.predict(closing_request(3), start)
    assert action in range(3)
    assert state == start


@pytest.mark.parametrize("kind", ROUTERS)
def test_a_router_declares_what_it_is(kind: Any) -> None:
    assert (kind.family, kind.role, kind.acts_on) == ("cloud_edge", "router", "batch")
