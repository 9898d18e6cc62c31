"""Statistics: values worked by hand, and what an interval promises."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from routing_gym.evaluation.statistics import (
    Estimate,
    bootstrap_mean,
    interquartile_mean,
    paired_difference,
    probability_of_improvement,
    stratified_iqm,
)

NAN = math.nan
shares = st.floats(0, 1, allow_subnormal=False)


def samples(most: int = 12) -> st.SearchStrategy[np.ndarray]:
    return st.integers(1, most).flatmap(lambda n: arrays(np.float64, n, elements=shares))


# Paired differences


def test_a_constant_difference_has_an_interval_without_width() -> None:
    estimate = paired_difference([0.75, 0.5, 1.0], [0.5, 0.25, 0.75])
    assert estimate == Estimate(0.25, 0.25, 0.25)
    assert estimate is not None and estimate.excludes_zero


def test_the_interval_of_two_seeds_is_worked_by_hand() -> None:
    # Resamples of the differences 1 and 3 have means 1, 2 and 3 with probabilities 1/4, 1/2 and 1/4.
    assert paired_difference([2.0, 5.0], [1.0, 2.0]) == Estimate(2.0, 1.0, 3.0)


def test_pairing_takes_out_what_seeds_have_in_common() -> None:
    luck = np.random.default_rng(1).normal(size=20)
    noise = np.random.default_rng(2).normal(scale=0.01, size=20)
    estimate = paired_difference(luck + 0.05 + noise, luck)
    assert estimate is not None and estimate.excludes_zero
    assert estimate.high - estimate.low < 0.02 < np.ptp(luck)


def test_the_difference_changes_sign_with_its_sides() -> None:
    a, b = np.random.default_rng(3).random((2, 10))
    there, back = paired_difference(a, b), paired_difference(b, a)
    assert there is not None and back is not None
    np.testing.assert_allclose(there, (-back.value, -back.high, -back.low), atol=1e-12)


def test_undefined_scores_leave_their_seed_out_of_both_sides() -> None:
    with_gaps = paired_difference([0.9, NAN, 0.4, 0.7, 0.2], [0.5, 0.5, NAN, 0.6, 0.3])
    assert with_gaps == paired_difference([0.9, 0.7, 0.2], [0.5, 0.6, 0.3])


@pytest.mark.parametrize("scores", [[NAN, NAN], [NAN, 1.0], []], ids=["none", "never both", "no seeds"])
def test_without_a_common_seed_there_is_no_difference(scores: list[float]) -> None:
    assert paired_difference(scores, [1.0, NAN][: len(scores)]) is None


def test_infinite_scores_have_no_difference() -> None:
    assert paired_difference([math.inf, 1.0, 3.0], [math.inf, 0.0, 2.0]) == Estimate(1.0, 1.0, 1.0)


def test_one_seed_says_nothing_of_how_seeds_vary() -> None:
    estimate = paired_difference([0.9, NAN], [0.5, 0.1])
    assert estimate == Estimate(0.4, -math.inf, math.inf)
    assert estimate is not None and not estimate.excludes_zero


@pytest.mark.parametrize(("a", "b"), [([1.0, 2.0], [1.0]), ([[1.0]], [1.0]), ([], [1.0])])
def test_scores_that_are_not_paired_are_refused(a: list, b: list) -> None:
    with pytest.raises(ValueError, match="must be paired"):
        paired_difference(a, b)


@given(low=st.floats(-1, 1), width=st.floats(0, 1))
def test_a_tie_is_an_interval_that_holds_zero(low: float, width: float) -> None:
    assert Estimate(low, low, low + width).excludes_zero != (low <= 0.0 <= low + width)


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (-1.0, 0.0), (0.0, 0.0), (-1.0, 1.0)])
def test_an_interval_that_touches_zero_holds_it(low: float, high: float) -> None:
    assert not Estimate(0.0, low, high).excludes_zero


@given(samples())
def test_a_bootstrap_interval_lies_between_the_extremes(values: np.ndarray) -> None:
    value, low, high = bootstrap_mean(values, resamples=50)
    assert value == pytest.approx(values.mean())
    assert values.min() - 1e-12 <= low <= high <= values.max() + 1e-12


def test_the_interval_covers_the_true_difference_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(20_26)
    trials, seeds, truth = 1500, 30, 0.03
    covered = 0
    for _ in range(trials):
        hard = rng.normal(0.7, 0.1, seeds)  # what makes an episode hard is common to both
        estimate = paired_difference(
            hard + truth + rng.normal(0, 0.05, seeds), hard + rng.normal(0, 0.05, seeds), resamples=400
        )
        assert estimate is not None
        covered += estimate.low <= truth <= estimate.high
    # A percentile bootstrap of 30 values covers about 93.5 %; the standard error here is 0.6 %.
    assert 0.91 <= covered / trials <= 0.97


def test_a_difference_that_is_not_there_is_seldom_found() -> None:
    rng = np.random.default_rng(7)
    found = 0
    for _ in range(1000):
        estimate = paired_difference(rng.random(30), rng.random(30), resamples=400)
        assert estimate is not None
        found += estimate.excludes_zero
    assert 0.03 <= found / 1000 <= 0.1


def test_estimates_are_repeatable_whatever_else_draws() -> None:
    a, b = np.random.default_rng(5).random((2, 4, 9))

    def everything() -> list[object]:
        return [paired_difference(a[0], b[0]), bootstrap_mean(a[1]), stratified_iqm(a, 100)]

    first = everything()
    np.random.seed(1)
    np.random.random(3)
    assert everything() == first


# The interquartile mean


@pytest.mark.parametrize(
    ("scores", "mean"),
    [
        ([7.0], 7.0),
        ([1.0, 4.0], 2.5),
        ([0.0, 3.0, 12.0], 4.0),  # weights 1/4, 1, 1/4
        ([0.0, 1.0, 3.0, 1000.0], 2.0),
        ([0.0, 0.0, 0.0, 10.0, 1e6], 3.0),  # weights 0, 3/4, 1, 3/4, 0
        ([-50.0, 1.0, 2.0, 3.0, 4.0, 99.0], 2.5),  # weights 0, 1/2, 1, 1, 1/2, 0
        ([0, 0, 1, 2, 3, 4, 100, 100], 2.5),
    ],
)
def test_the_interquartile_mean_is_worked_by_hand(scores: list[float], mean: float) -> None:
    assert interquartile_mean(scores) == pytest.approx(mean, rel=1e-12)


@given(samples(30), st.randoms())
def test_the_interquartile_mean_depends_on_no_order_and_no_shape(values: np.ndarray, random: object) -> None:
    expected = interquartile_mean(values)
    shuffled = values.copy()
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert interquartile_mean(shuffled) == expected
    assert interquartile_mean(np.stack([values, values])) == pytest.approx(expected, abs=1e-12)
    assert values.min() - 1e-12 <= expected <= values.max() + 1e-12


@given(samples(30))
def test_four_copies_make_every_quarter_whole(values: np.ndarray) -> None:
    # With four copies of each value the edges are whole numbers, and no score counts in part.
    ordered = np.sort(np.repeat(values, 4))
    quarter = len(values)
    assert interquartile_mean(values) == pytest.approx(ordered[quarter:-quarter].mean(), abs=1e-12)


def test_what_the_outer_quarters_hold_does_not_matter() -> None:
    assert interquartile_mean([-1e9, -5, 1, 2, 3, 4, 9, 1e12]) == interquartile_mean([0, 1, 1, 2, 3, 4, 4, 5])


def test_the_stratified_interval_collapses_when_all_seeds_agree() -> None:
    # Conditions differ widely. A bootstrap over all scores together would make an interval of that.
    table = np.repeat(np.array([[0.1], [0.4], [0.7], [0.9]]), 6, axis=1)
    estimate = stratified_iqm(table, resamples=200)
    assert estimate.low == estimate.value == estimate.high == pytest.approx(0.55)


def test_the_stratified_interval_holds_its_value_and_widens_with_the_seeds_spread() -> None:
    rng = np.random.default_rng(11)
    calm, wild = (0.5 + scale * rng.standard_normal((5, 10)) for scale in (0.01, 0.1))
    narrow, wide = stratified_iqm(calm, 300), stratified_iqm(wild, 300)
    for estimate in (narrow, wide):
        assert estimate.low <= estimate.value <= estimate.high
    assert 5 * (narrow.high - narrow.low) < wide.high - wide.low


def test_one_condition_may_be_given_as_a_row() -> None:
    row = np.random.default_rng(12).random(9)
    assert stratified_iqm(row, 50) == stratified_iqm(row[None], 50)


# The probability of improvement


@pytest.mark.parametrize(
    ("scores", "reference", "probability"),
    [
        ([[1.0, 2.0]], [[1.0, 3.0]], 0.375),  # a tie, two losses, a win
        ([[1.0]], [[1.0]], 0.5),
        ([[2.0, 2.0]], [[1.0, 1.0]], 1.0),
        ([[1.0, 2.0], [5.0, 5.0]], [[1.0, 3.0], [4.0, 6.0]], (0.375 + 0.5) / 2),
        ([3.0, 1.0], [2.0, 0.0], 0.75),
    ],
)
def test_the_probability_of_improvement_is_worked_by_hand(
    scores: list, reference: list, probability: float
) -> None:
    assert probability_of_improvement(scores, reference) == probability


@settings(max_examples=50)
@given(arrays(np.float64, (3, 4), elements=st.sampled_from([0.0, 0.25, 0.5, 1.0])), st.integers(0, 2**32 - 1))
def test_either_one_or_the_other_improves(scores: np.ndarray, seed: int) -> None:
    other = np.random.default_rng(seed).permuted(scores, axis=1)[:, :3]
    there = probability_of_improvement(scores, other)
    assert there + probability_of_improvement(other, scores) == pytest.approx(1.0)
    assert 0.0 <= there <= 1.0
    assert probability_of_improvement(scores, scores) == pytest.approx(0.5)


def test_conditions_are_not_mixed_up() -> None:
    # Within each condition the router always loses; over all scores it would win half of the time.
    assert probability_of_improvement([[0.1, 0.2], [0.8, 0.9]], [[0.3, 0.4], [1.0, 1.0]]) == 0.0
