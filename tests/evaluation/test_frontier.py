"""Cost against quality: the hull of what a router's settings can be mixed to, and its mean quality."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing_gym.evaluation.frontier import aiq, hull_quality, non_decreasing_hull

# Eighths, so that slopes are exact or well apart.
eighths = st.integers(0, 40).map(lambda n: n / 8)
settings_of_a_router = st.lists(st.tuples(eighths, eighths), min_size=1, max_size=8)


def best_mixture(points: list[tuple[float, float]], budget: float) -> float:
    """The most quality for at most the budget, over each setting and each mixture of two; slow and plain."""
    best = max(quality for cost, quality in points if cost <= budget)
    for (low, worse), (high, better) in itertools.permutations(points, 2):
        if low < budget < high:
            share = (budget - low) / (high - low)
            best = max(best, (1 - share) * worse + share * better)
    return best


# The hull


@pytest.mark.parametrize(
    ("cost", "quality", "corners"),
    [
        ([2.0], [0.5], [(2, 0.5)]),
        ([3.0, 1.0], [0.75, 0.25], [(1, 0.25), (3, 0.75)]),
        ([1.0, 2.0, 3.0], [0.0, 0.5, 1.0], [(1, 0), (3, 1)]),  # on a line
        ([1.0, 2.0, 3.0], [0.0, 0.75, 1.0], [(1, 0), (2, 0.75), (3, 1)]),  # above it
        ([1.0, 2.0, 3.0], [0.0, 0.25, 1.0], [(1, 0), (3, 1)]),  # below it
        ([1.0, 2.0, 4.0], [0.0, 1.0, 0.5], [(1, 0), (2, 1), (4, 1)]),  # level beyond the best
        ([1.0, 3.0], [1.0, 0.0], [(1, 1), (3, 1)]),
        ([1.0, 1.0, 2.0], [0.0, 0.5, 0.5], [(1, 0.5), (2, 0.5)]),
        ([1.0, 1.0], [0.0, 0.5], [(1, 0.5)]),
        ([0.0, 1.0, 2.0, 3.0, 4.0], [0.0, 0.5, 0.25, 0.75, 0.5], [(0, 0), (1, 0.5), (3, 0.75), (4, 0.75)]),
    ],
)
def test_the_hull_is_worked_by_hand(cost: list[float], quality: list[float], corners: list) -> None:
    assert non_decreasing_hull(cost, quality).tolist() == [list(map(float, corner)) for corner in corners]


@given(settings_of_a_router)
def test_the_hull_is_the_best_that_mixtures_reach(points: list[tuple[float, float]]) -> None:
    hull = non_decreasing_hull(*zip(*points, strict=True))
    for budget in np.linspace(min(points)[0], max(points)[0], 23):
        assert hull_quality(hull, budget) == pytest.approx(best_mixture(points, budget), abs=1e-12)


@given(settings_of_a_router, st.randoms())
def test_the_hull_rises_ever_less_steeply_from_the_least_cost_to_the_largest(
    points: list[tuple[float, float]], random: object
) -> None:
    hull = non_decreasing_hull(*zip(*points, strict=True))
    cost, quality = hull.T
    assert (np.diff(cost) > 0).all() and (np.diff(quality) >= 0).all()
    slopes = np.diff(quality) / np.diff(cost)
    assert (np.diff(slopes) < 0).all()
    assert cost[0] == min(points)[0] and cost[-1] == max(points)[0]
    assert quality[-1] == max(q for _, q in points)
    random.shuffle(points)  # type: ignore[attr-defined]
    assert (non_decreasing_hull(*zip(*points, strict=True)) == hull).all()
    assert (non_decreasing_hull(cost, quality) == hull).all()


@pytest.mark.parametrize(
    ("cost", "quality", "message"),
    [
        ([], [], "n ≥ 1"),
        ([1.0], [1.0, 2.0], "n ≥ 1"),
        ([[1.0]], [[1.0]], "n ≥ 1"),
        ([np.nan], [1.0], "finite"),
        ([1.0], [np.inf], "finite"),
    ],
)
def test_points_that_make_no_hull_are_refused(cost: list, quality: list, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        non_decreasing_hull(cost, quality)


def test_quality_along_a_hull_is_linear_then_level_and_undefined_before_it() -> None:
    hull = [[1.0, 0.0], [2.0, 0.5], [4.0, 1.0]]
    at = np.array([[0.5, 1.0, 1.5], [3.0, 4.0, 9.0]])
    np.testing.assert_array_equal(hull_quality(hull, at), [[np.nan, 0.0, 0.25], [0.75, 1.0, 1.0]])


# The average improvement in quality


@pytest.mark.parametrize(
    ("low", "high", "mean"),
    [
        (1.0, 2.0, 0.25),
        (2.0, 4.0, 0.75),
        (1.0, 4.0, 1.75 / 3),  # 0.25 and 1.5 of area
        (1.5, 3.0, (0.1875 + 0.625) / 1.5),
        (4.0, 9.0, 1.0),
        (3.0, 5.0, (0.875 + 1.0) / 2),
        (3.0, 3.0, 0.75),
        (1.0, 1.0, 0.0),
    ],
)
def test_aiq_is_worked_by_hand(low: float, high: float, mean: float) -> None:
    assert aiq([[1.0, 0.0], [2.0, 0.5], [4.0, 1.0]], low, high) == pytest.approx(mean, rel=1e-12)


@given(settings_of_a_router, eighths, st.integers(1, 40).map(lambda n: n / 8))
def test_aiq_is_the_mean_over_a_fine_grid(
    points: list[tuple[float, float]], start: float, width: float
) -> None:
    hull = non_decreasing_hull(*zip(*points, strict=True))
    low = hull[0, 0] + start
    middles = low + (np.arange(4000) + 0.5) / 4000 * width
    assert aiq(hull, low, low + width) == pytest.approx(hull_quality(hull, middles).mean(), abs=1e-3)


def test_aiq_of_one_setting_is_its_quality() -> None:
    assert aiq(non_decreasing_hull([2.0], [0.5]), 2.0, 7.0) == 0.5


def test_a_better_setting_never_lowers_aiq() -> None:
    cost, quality = np.random.default_rng(1).random((2, 6))
    before = aiq(non_decreasing_hull(cost, quality), cost.min(), cost.max())
    gains = []
    for k in range(6):
        better = quality + 0.5 * (np.arange(6) == k)
        gains.append(aiq(non_decreasing_hull(cost, better), cost.min(), cost.max()) - before)
    assert min(gains) >= 0.0
    assert gains[int(cost.argmin())] > 0.1


@pytest.mark.parametrize(
    ("low", "high"), [(0.5, 2.0), (3.0, 2.0), (np.nan, 2.0), (1.0, np.nan), (1.0, np.inf)]
)
def test_a_range_without_a_mean_is_refused(low: float, high: float) -> None:
    with pytest.raises(ValueError, match="must be a rising range from 1, the hull's least"):
        aiq([[1.0, 0.0], [2.0, 0.5]], low, high)
