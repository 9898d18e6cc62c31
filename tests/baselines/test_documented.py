"""The four routers of the source, on states worked by hand and against their formulas."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing_baselines.cluster.documented import Adaptive, LatencyAware, LeastQueue, RoundRobin
from routing_baselines.cluster.router import View, eligible_replicas
from routing_gym.cluster.config import ClusterConfig
from tests.baselines.states import fits, observation, observations, row

FLAT = st.just((8,))


def choice(router: Any, **fields: Any) -> int:
    return int(router.predict(observation(**fields))[0])


# Least queue, latency aware


@pytest.mark.parametrize(
    ("outstanding", "eligible", "expected"),
    [
        ([3, 1, 2], [1, 1, 1], 1),
        ([2, 1, 1], [1, 1, 1], 1),  # a tie goes to the lower index
        ([0, 0, 0], [1, 1, 1], 0),
        ([3, 1, 2], [1, 0, 1], 2),
        ([3, 1, 2], [1, 0, 0], 0),
        ([3, 1, 2], [0, 0, 0], 1),  # nothing is eligible: all are considered
    ],
)
def test_least_queue(outstanding: list[int], eligible: list[int], expected: int) -> None:
    assert choice(LeastQueue(), outstanding=outstanding, eligible=eligible) == expected


@pytest.mark.parametrize(
    ("outstanding", "service", "expected"),
    [
        ([1, 0, 0], [8, 17, 16], 0),  # 16, 17, 16
        ([2, 1, 0], [8, 11, 24], 1),  # 24, 22, 24
        ([0, 0, 0], [11, 11, 11], 0),
        ([9, 5, 3], [8, 11, 16], 2),  # 80, 66, 64
    ],
)
def test_latency_aware(outstanding: list[int], service: list[float], expected: int) -> None:
    assert choice(LatencyAware(), outstanding=outstanding, service_ewma=service) == expected


# Adaptive

STATE = {
    "reward_ewma": [0.8, 0.7, 0.6],
    "completed": [10, 1, 0],
    "outstanding": [2, 3, 1],
    "service_ewma": [9, 12, 20],
}


@pytest.mark.parametrize(
    ("c", "expected"),
    # T = 11, ln T = 2.398; bonuses c·.4897, c·1.5485, c·1.5485; congestion .3, .6, .3333.
    [
        (0.35, 2),  # .8 + .1714 - .3 = .6714, .7 + .5420 - .6 = .6420, .6 + .5420 - .3333 = .8086
        (0.2, 0),  # .5979, .4097, .5764
        (0.0, 0),  # .5, .1, .2667
        (5.0, 2),  # 2.9484, 7.8426, 8.0093
    ],
)
def test_adaptive(c: float, expected: int) -> None:
    assert choice(Adaptive(c=c), **STATE) == expected


def test_adaptive_by_default_is_the_source_s() -> None:
    router = Adaptive()
    assert (router.c, router.ceiling_ms) == (0.35, 60.0)
    assert router.ceiling_ms == ClusterConfig.create().service_ceiling_ms
    assert choice(router, **STATE) == 2


def test_adaptive_before_any_completion_has_no_bonus() -> None:
    """T = 0 counts as 1, whose logarithm is 0: r - o s / 60."""
    fields = {"reward_ewma": [0.8, 0.8, 0.7], "outstanding": [2, 1, 0], "service_ewma": [11, 11, 11]}
    assert choice(Adaptive(c=100.0), completed=[0, 0, 0], **fields) == 2  # .433, .617, .7
    assert choice(Adaptive(c=100.0), completed=[1, 0, 0], **fields) == 2  # ln 1 is 0 too
    assert choice(Adaptive(), outstanding=[0, 0, 0]) == 0
    assert choice(Adaptive(), outstanding=[1, 0, 0]) == 1


def adaptive_score(state: dict[str, np.ndarray], i: int, c: float, ceiling: float) -> float:
    n = state["completed"].astype(float)
    bonus = c * math.sqrt(math.log(max(n.sum(), 1.0)) / max(n[i], 1.0))
    congestion = float(state["outstanding"][i]) * float(state["service_ewma"][i]) / ceiling
    return float(state["reward_ewma"][i]) + bonus - congestion


@given(observations(FLAT), st.floats(0, 2), st.floats(11, 200))
def test_routers_minimise_their_formulas(drawn: Any, c: float, ceiling: float) -> None:
    batch, shape = drawn
    formulas = {
        LeastQueue(): lambda state, i: float(state["outstanding"][i]),
        LatencyAware(): lambda state, i: (
            (float(state["outstanding"][i]) + 1) * float(state["service_ewma"][i])
        ),
        Adaptive(c, ceiling): lambda state, i: -adaptive_score(state, i, c, ceiling),
    }
    for router, formula in formulas.items():
        actions = router.predict(batch)[0]
        for index in np.ndindex(shape):
            state, eligible = row(batch, index), np.flatnonzero(fits(row(batch, index)))
            scores = {int(i): formula(state, i) for i in eligible}
            best = min(scores.values())
            assert scores[int(actions[index])] == pytest.approx(best, abs=1e-12)
            if not isinstance(router, Adaptive):
                assert actions[index] == min(i for i, score in scores.items() if score == best)


def test_adaptive_takes_over_each_row_s_ceiling() -> None:
    """.9 - 20/60 = .567 beats .5; .9 - 20/20 does not."""
    state = {"reward_ewma": [0.9, 0.5], "outstanding": [1, 0], "service_ewma": [20, 20]}
    batch = {name: np.stack([value] * 2) for name, value in observation(**state).items()}
    router = Adaptive()
    router.configure([ClusterConfig.create(), ClusterConfig.create(service_ceiling_ms=20)])
    assert router.predict(batch)[0].tolist() == [0, 1]
    router.configure([ClusterConfig.create(service_ceiling_ms=20)] * 2)
    assert router.predict(batch)[0].tolist() == [1, 1]
    assert router.predict(row(batch, (0,)))[0] == 1


@pytest.mark.parametrize(
    ("params", "told"),
    [
        ({"c": -0.1}, r"c = -0\.1: must not be negative"),
        ({"ceiling_ms": 0.0}, r"ceiling_ms = 0\.0: must be above 0"),
    ],
)
def test_adaptive_refuses(params: dict[str, float], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        Adaptive(**params)


# Round robin


def play(eligible: list[list[int]], state: Any = None) -> tuple[list[int], Any]:
    """Return round robin's choices, one decision after the other, and its last state."""
    router, chosen = RoundRobin(), []
    for mask in eligible:
        action, state = router.predict(observation(eligible=mask), state)
        chosen.append(int(action))
    return chosen, state


def test_round_robin_goes_round() -> None:
    chosen, state = play([[1, 1, 1]] * 7)
    assert chosen == [0, 1, 2, 0, 1, 2, 0]
    assert state == 7


def test_round_robin_across_membership_changes() -> None:
    """E[k mod |E|]: the cursor counts on while a replica is away, so it need not go on where it was."""
    eligible = [[1, 1, 1]] * 2 + [[0, 1, 1]] * 3 + [[1, 0, 1]] + [[1, 1, 1]] * 2
    #  k         0  1      2  3  4      5          6  7
    #  k mod |E| 0  1      0  1  0      1          0  1
    assert play(eligible)[0] == [0, 1, 1, 2, 1, 2, 0, 1]
    assert play([[1, 1, 1, 1], [0, 0, 0, 1], [1, 1, 0, 0], [1, 1, 1, 0]])[0] == [0, 3, 0, 0]


def test_round_robin_s_cursor_never_wraps() -> None:
    """Wrapped at 3, it would give E = {0, 1} the wrong turn: 7 mod 2 is 1, and 7 mod 3 mod 2 is 1, but 8 …"""
    for k in (7, 8, 2**40 + 1, 2**62 + 3):
        chosen, state = play([[1, 1, 1], [1, 1, 0]], np.int64(k))
        assert chosen == [k % 3, (k + 1) % 2]
        assert state == k + 2


def test_round_robin_counts_per_row_and_starts_anew_with_an_episode() -> None:
    router = RoundRobin()
    batch = {name: np.stack([value] * 3) for name, value in observation(eligible=[1, 1, 1]).items()}
    state = router.initial_state([5, 6, 7])
    for expected in ([0, 0, 0], [1, 1, 1]):
        actions, state = router.predict(batch, state)
        assert actions.tolist() == expected
    actions, state = router.predict(batch, state, np.array([False, True, False]))
    assert actions.tolist() == [2, 0, 2]
    assert state.tolist() == [3, 1, 3]
    actions, state = router.predict(batch, state, True)
    assert actions.tolist() == [0, 0, 0]


@pytest.mark.parametrize("start", [None, False, np.array([False])])
def test_round_robin_plays_one_environment(start: Any) -> None:
    router = RoundRobin()
    state = router.initial_state([3])
    for expected in (0, 1, 2, 0):
        action, state = router.predict(observation(eligible=[1, 1, 1]), state, start)
        assert action.shape == ()
        assert action == expected


# What routers share


def test_masks_go_before_the_observation() -> None:
    state = observation(eligible=[1, 0, 1])
    assert eligible_replicas(state, None).tolist() == [True, False, True]
    for mask in ([False, True, False], np.array([0, 1, 0], np.int8), np.array([0, 1, 0, 1], np.int8)):
        assert eligible_replicas(state, np.asarray(mask)).tolist() == [False, True, False]
    only_reject = np.array([0, 0, 0, 1], np.int8)
    assert eligible_replicas(state, only_reject).all()


def test_a_view_reads_fields_in_float64() -> None:
    view = View(observation(outstanding=[1, 2]))
    assert view.outstanding.dtype == np.float64
    assert view.outstanding.tolist() == [1, 2]
    with pytest.raises(AttributeError, match="the observation has no field 'temperature'"):
        _ = view.temperature
