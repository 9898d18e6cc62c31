"""Routers that draw: SplitMix64 as published, uniform choices, one independent state per row."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing_baselines.cluster.sampling import PowerOfTwo, Random
from routing_baselines.splitmix import splitmix64, uniform
from tests.baselines.states import observation, observations, row

ROUTERS = [Random, PowerOfTwo]
PUBLISHED = (  # of seed 1234567, as Rosetta Code and Vigna's splitmix64.c give them
    6457827717110365317,
    3203168211198807973,
    9817491932198370423,
    4593380528125082431,
    16408922859458223821,
)


def batch_of(rows: int, **fields: Any) -> dict[str, np.ndarray]:
    return {name: np.stack([value] * rows) for name, value in observation(**fields).items()}


def choices(router: Any, steps: int, seeds: Sequence[int], **fields: Any) -> np.ndarray:
    """Return what rows with these seeds choose in the same state again and again (steps, rows)."""
    state, batch, chosen = router.initial_state(seeds), batch_of(len(seeds), **fields), []
    for _ in range(steps):
        actions, state = router.predict(batch, state)
        chosen.append(actions)
    return np.array(chosen)


def chi_square(chosen: np.ndarray, expected: Sequence[float]) -> float:
    counts = np.bincount(chosen.ravel(), minlength=len(expected))
    wanted = np.array(expected) * chosen.size
    assert (counts[wanted == 0] == 0).all()
    return float(((counts - wanted)[wanted > 0] ** 2 / wanted[wanted > 0]).sum())


def test_splitmix64_gives_the_published_numbers() -> None:
    state = np.array([1234567, 0], np.uint64)
    for word in PUBLISHED:
        state, output = splitmix64(state)
        assert int(output[0]) == word
    assert int(splitmix64(np.array([0], np.uint64))[1][0]) == 0xE220A8397B1DCDAF


def test_uniform_takes_the_upper_53_bits() -> None:
    state = np.array([1234567], np.uint64)
    for word in PUBLISHED:
        state, u = uniform(state)
        assert u[0] == (word >> 11) / 2**53
        assert 0 <= u[0] < 1


@given(st.integers(0, 2**64 - 1))
def test_splitmix64_in_whole_numbers_of_any_size(seed: int) -> None:
    """Python's integers do not overflow: the same arithmetic, reduced by hand."""
    gamma, top = 0x9E3779B97F4A7C15, 2**64
    z = state = (seed + gamma) % top
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % top
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB % top
    after, output = splitmix64(np.array([seed], np.uint64))
    assert (int(after[0]), int(output[0])) == (state, z ^ (z >> 31))


@pytest.mark.parametrize(("router", "chance"), [(Random, 1 / 8), (PowerOfTwo, 140 / 28**2)])
def test_nearby_seeds_have_unrelated_draws(router: type, chance: float) -> None:
    """Neither the same choices nor the same some steps later, but for those that agree by chance.

    Of eight replicas with equal queues power of two takes the i-th in 7 - i of 28 pairs.
    """
    chosen = choices(router(), 60, range(200), eligible=[1] * 8)
    for shift in range(6):
        agree = (chosen[shift:, :-1] == chosen[: 60 - shift, 1:]).mean()
        assert abs(agree - chance) < 5 * math.sqrt(chance * (1 - chance) / (199 * (60 - shift)))


@pytest.mark.parametrize("eligible", [[1, 1, 1], [0, 1, 1, 0, 1], [1, 1], [0, 0, 1, 0], [0, 0, 0]])
def test_random_is_uniform_over_the_eligible(eligible: list[int]) -> None:
    """Over time and over rows; the 0.1 % points of χ² with one and two degrees of freedom."""
    share = [each / (sum(eligible) or 1) for each in eligible] if any(eligible) else [1 / 3] * 3
    limit = {1: 1e-9, 2: 10.8, 3: 13.8}[sum(each > 0 for each in share)]
    assert chi_square(choices(Random(), 4000, [11], eligible=eligible), share) < limit
    assert chi_square(choices(Random(), 1, range(4000), eligible=eligible), share) < limit


def test_random_does_not_look_at_queues() -> None:
    usual = choices(Random(), 50, range(20), eligible=[1, 1, 1])
    busy = choices(Random(), 50, range(20), eligible=[1, 1, 1], outstanding=[0, 9, 50])
    assert usual.tolist() == busy.tolist()


def test_random_s_successive_choices_are_independent() -> None:
    chosen = choices(Random(), 8000, [3], eligible=[1, 1, 1])[:, 0]
    assert chi_square(chosen[:-1] * 3 + chosen[1:], [1 / 9] * 9) < 26.1  # 0.1 %, eight degrees


@pytest.mark.parametrize(
    ("outstanding", "eligible", "rank"),
    [
        ([3, 1, 2, 0], [1, 1, 1, 1], [3, 1, 2, 0]),
        ([2, 2, 2, 2], [1, 1, 1, 1], [0, 1, 2, 3]),  # ties go to the lower index
        ([0, 3, 1, 5, 2], [0, 1, 1, 1, 0], [None, 1, 0, 2, None]),
        ([4, 1], [1, 1], [1, 0]),
    ],
)
def test_power_of_two_takes_the_less_loaded_of_a_random_pair(
    outstanding: list[int], eligible: list[int], rank: list[int | None]
) -> None:
    """Of n(n-1)/2 pairs, the k-th least loaded is the better one in n-1-k; the worst never is."""
    n = sum(eligible)
    share = [0.0 if k is None else (n - 1 - k) / math.comb(n, 2) for k in rank]
    for steps, seeds in ((4000, range(1)), (1, range(4000))):
        chosen = choices(PowerOfTwo(), steps, seeds, outstanding=outstanding, eligible=eligible)
        assert chi_square(chosen, share) < 13.8


def test_power_of_two_with_one_eligible_replica() -> None:
    assert set(choices(PowerOfTwo(), 50, range(5), outstanding=[0, 9, 0], eligible=[0, 1, 0]).ravel()) == {1}


# State


@pytest.mark.parametrize("router", ROUTERS)
@given(drawn=observations(st.just((7,))), seeds=st.lists(st.integers(-5, 2**64), min_size=7, max_size=7))
def test_a_row_s_draws_do_not_depend_on_its_batch(router: type, drawn: Any, seeds: list[int]) -> None:
    batch, _ = drawn
    together, state = router(), router().initial_state(seeds)
    alone = [router().initial_state([seed]) for seed in seeds]
    for _ in range(3):
        actions, state = together.predict(batch, state)
        for k in range(7):
            action, alone[k] = together.predict(row(batch, (k,)), alone[k])
            assert action.shape == ()
            assert action == actions[k]
    order = [3, 1, 6]
    subset = router().initial_state([seeds[k] for k in order])
    some = {name: value[order] for name, value in batch.items()}
    first = router().predict(batch, router().initial_state(seeds))[0]
    assert router().predict(some, subset)[0].tolist() == first[order].tolist()


@pytest.mark.parametrize("router", ROUTERS)
def test_without_a_state_row_i_gets_the_router_s_seed_plus_i(router: type) -> None:
    batch = batch_of(50, eligible=[1] * 6)
    given_state = router().initial_state(range(9, 59))
    assert router(seed=9).predict(batch)[0].tolist() == router().predict(batch, given_state)[0].tolist()
    assert router(seed=9).predict(batch)[0].tolist() != router(seed=8).predict(batch)[0].tolist()
    assert router().predict(batch)[0].tolist() == router(seed=0).predict(batch)[0].tolist()


@pytest.mark.parametrize("router", ROUTERS)
def test_the_generator_runs_on_across_episodes_and_is_not_numpy_s(router: type) -> None:
    before = np.random.get_state()[1].tobytes()
    batch, state = batch_of(4, eligible=[1] * 6), router().initial_state(range(4))
    one = router().predict(batch, state, np.array([True, False, True, False]))
    other = router().predict(batch, state)
    assert one[0].tolist() == other[0].tolist()
    assert one[1].tolist() == other[1].tolist() != state.tolist()
    assert np.random.get_state()[1].tobytes() == before
