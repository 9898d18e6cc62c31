"""Statistics: values worked by hand, and what an interval promises."""

from __future__ import annotations

import itertools
import math
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from routing_gym.evaluation import statistics
from routing_gym.evaluation.statistics import (
    Estimate,
    SeedsNeeded,
    bootstrap_mean,
    holm,
    improvement,
    interquartile_mean,
    paired_difference,
    paired_p_value,
    probability_of_improvement,
    seeds_needed,
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
        return [
            paired_difference(a[0], b[0]),
            bootstrap_mean(a[1]),
            stratified_iqm(a, 100),
            improvement(a, b),
            paired_p_value(np.tile(a[0], 2), np.tile(b[0], 2)),
        ]

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


@pytest.mark.parametrize(("seeds", "others"), [(24, 24), (7, 12)])
def test_the_interval_of_an_improvement_comes_from_resampled_runs(seeds: int, others: int) -> None:
    rng = np.random.default_rng(31)
    a, b = rng.normal(0.3, 1.0, (5, seeds)).round(1), rng.normal(0.0, 1.0, (5, others)).round(1)
    draws = []
    for _ in range(2000):
        picked = np.array([rng.choice(runs, len(runs)) for runs in a])
        draws.append(
            probability_of_improvement(picked, np.array([rng.choice(runs, len(runs)) for runs in b]))
        )
    value, low, high = improvement(a, b)
    assert value == probability_of_improvement(a, b)
    np.testing.assert_allclose((low, high), np.percentile(draws, [2.5, 97.5]), atol=0.01)


def test_the_interval_of_an_improvement_is_worked_by_hand() -> None:
    # Router 0 or 2, reference 1 and 1: the share of twos in a resample is 0, 1/2 or 1, with 1/4, 1/2, 1/4.
    assert improvement([[0.0, 2.0]], [[1.0, 1.0]]) == Estimate(0.5, 0.0, 1.0)
    assert improvement([[0.0, 2.0]] * 2, [[1.0, 1.0]] * 2).value == 0.5
    assert improvement([[2.0, 2.0]], [[1.0, 1.0, 1.0]]) == Estimate(1.0, 1.0, 1.0)


def test_an_improvement_changes_sides_with_its_sides() -> None:
    a, b = np.random.default_rng(32).random((2, 6, 10))
    there, back = improvement(a, b), improvement(b, a)
    np.testing.assert_allclose(there, (1 - back.value, 1 - back.high, 1 - back.low), atol=0.02)


def test_one_run_says_nothing_of_an_improvement() -> None:
    assert improvement([[2.0], [2.0]], [[1.0, 3.0], [1.0, 1.0]]) == Estimate(0.75, 0.0, 1.0)


def test_conditions_that_differ_are_refused() -> None:
    with pytest.raises(ValueError, match="2 conditions, the reference's 1;"):
        improvement([[1.0], [2.0]], [[1.0]])


# The test of a difference


def all_signs(difference: list[int]) -> float:
    """The p-value by counting, pattern by pattern."""
    seen = abs(sum(difference))
    patterns = list(itertools.product((1, -1), repeat=len(difference)))
    return sum(
        abs(sum(s * d for s, d in zip(signs, difference, strict=True))) >= seen for signs in patterns
    ) / len(patterns)


@settings(max_examples=60)
@given(st.lists(st.integers(-4, 4), min_size=2, max_size=9))
def test_the_exact_p_value_counts_every_pattern_of_signs(difference: list[int]) -> None:
    # Tenths are rounded, so that sums that tie differ in their last digits.
    assert paired_p_value(np.array(difference) / 10, np.zeros(len(difference))) == all_signs(difference)


@pytest.mark.parametrize(
    ("difference", "p"),
    [
        ([1.0, 1.0, 1.0], 0.25),  # only +++ and --- of eight
        ([1.0, 2.0], 0.5),
        ([0.0, 0.0, 0.0], 1.0),
        ([0.1, 0.2, 0.3], 0.25),
        ([0.1, 0.2, -0.3], 1.0),
        ([1.0] * 13, 2.0 / 8192),
        ([0.0] * 20, 1.0),
        ([1.0, NAN, 2.0, math.inf], 0.5),
        ([1.0], None),
        ([1.0, NAN, -math.inf], None),
        ([], None),
    ],
)
def test_the_p_value_is_worked_by_hand(difference: list[float], p: float | None) -> None:
    assert paired_p_value(difference, [0.0] * len(difference)) == p


def test_beyond_thirteen_seeds_random_patterns_come_near_all_of_them() -> None:
    difference = np.random.default_rng(41).normal(0.6, 1.0, 16)
    signs = np.array(list(itertools.product((1.0, -1.0), repeat=16)))
    exact = (np.abs(signs @ difference) >= abs(difference.sum()) - 1e-9).mean()
    assert 0.02 < exact < 0.2
    drawn = paired_p_value(difference, np.zeros(16))
    assert drawn == pytest.approx(exact, abs=4 * math.sqrt(exact / 10_000))
    assert paired_p_value(difference, np.zeros(16)) == drawn


def test_random_patterns_count_the_one_seen() -> None:
    assert paired_p_value([1.0] * 40, [0.0] * 40, resamples=999) == 0.001


def test_the_p_value_has_no_sides_and_no_unit() -> None:
    a, b = np.random.default_rng(42).random((2, 11))
    p = paired_p_value(a, b)
    assert p == paired_p_value(b, a) == paired_p_value(1e-6 * a, 1e-6 * b) == paired_p_value(a[::-1], b[::-1])


@pytest.mark.parametrize("seeds", [8, 24])
def test_without_a_difference_p_values_below_a_level_are_as_frequent_as_the_level(seeds: int) -> None:
    rng = np.random.default_rng(43)
    luck = rng.exponential(size=(1000, seeds))  # skewed, and common to both
    a, b = luck + rng.normal(size=(2, 1000, seeds))
    p = np.array([paired_p_value(x, y, resamples=400) for x, y in zip(a, b, strict=True)], np.float64)
    for level in (0.05, 0.25, 0.5):
        assert (p <= level).mean() == pytest.approx(level, abs=4 * math.sqrt(level * (1 - level) / 1000))


def test_p_values_of_other_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match="must be paired"):
        paired_p_value([1.0, 2.0], [1.0])


# Families of comparisons


@pytest.mark.parametrize(
    ("given_", "adjusted"),
    [
        ([0.01, 0.04, 0.03], [0.03, 0.06, 0.06]),
        ([0.02], [0.02]),
        ([], []),
        ([0.4, 0.5, 0.6], [1.0, 1.0, 1.0]),
        ([0.01, NAN, 0.04, 0.03], [0.03, NAN, 0.06, 0.06]),
        ([NAN, NAN], [NAN, NAN]),
        ([0.02, 0.02, 0.02], [0.06, 0.06, 0.06]),
    ],
)
def test_holm_is_worked_by_hand(given_: list[float], adjusted: list[float]) -> None:
    np.testing.assert_allclose(holm(given_), adjusted, rtol=1e-12)


@given(st.lists(shares, min_size=1, max_size=10))
def test_holm_rejects_what_stepping_down_rejects(p_values: list[float]) -> None:
    adjusted = holm(p_values)
    level, rejected = 0.05, set()
    for k, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        if p_values[index] * (len(p_values) - k) > level:
            break
        rejected.add(index)
    assert set(np.flatnonzero(adjusted <= level)) == rejected
    assert (adjusted >= p_values).all() and (adjusted <= 1.0).all()


def test_holm_leaves_what_it_is_given() -> None:
    p_values = np.array([0.01, 0.02])
    holm(p_values)
    assert p_values.tolist() == [0.01, 0.02]


# How many seeds


def test_seeds_needed_are_worked_by_hand() -> None:
    # z = 1.95996 and 0.84162: their sum squared is 7.84888; corrections are 1.92073 and 0.96036.
    # Variances: differences (1, -1, 0) have 1; each router 1 and 4/3 (of 0, 0, 2).
    a, b = np.array([1.0, 2.0, 3.0]), np.array([0.0, 3.0, 3.0])
    assert (a - b).var(ddof=1) == 1.0 and a.var(ddof=1) + b.var(ddof=1) == 4.0
    # 7.84888/0.25 + 1.92073 = 33.3; 4 × 7.84888/0.25 + 0.96036 = 126.5
    assert seeds_needed(a, b, 0.5) == SeedsNeeded(34, 127)
    assert seeds_needed(a, b, -0.5) == SeedsNeeded(34, 127)
    # power 0.9: (1.95996 + 1.28155)² = 10.5074
    assert seeds_needed(a, b, 0.5, power=0.9) == SeedsNeeded(44, 170)


def test_few_seeds_are_never_below_two() -> None:
    assert seeds_needed([1.0, 2.0], [0.0, 1.0], 0.5) == SeedsNeeded(2, 33)
    assert seeds_needed([1.0, 1.0], [0.0, 0.0], 0.5) == SeedsNeeded(2, 2)
    assert seeds_needed([1.0, 2.0], [0.0, 1.0], 1e9).unpaired == 2


@pytest.mark.parametrize(
    ("scores", "effect"),
    [([1.0, 2.0], 0.0), ([1.0, 2.0], NAN), ([1.0, 2.0], math.inf), ([1.0, NAN], 1.0), ([1.0, math.inf], 1.0)],
)
def test_seeds_needed_may_not_be_defined(scores: list[float], effect: float) -> None:
    assert seeds_needed(scores, [0.5, 0.25], effect) == SeedsNeeded(None, None)


def test_an_effect_too_small_for_any_number_of_seeds_has_none() -> None:
    assert seeds_needed([1.0, 2.0], [2.0, 0.0], 1e-300) == SeedsNeeded(None, None)


def test_undefined_seeds_are_left_out_of_the_pilot() -> None:
    a, b = np.random.default_rng(51).random((2, 8))
    with_gaps = seeds_needed([*a, NAN, 9.0], [*b, 0.0, NAN], 0.1)
    assert with_gaps == seeds_needed(a, b, 0.1)


@pytest.mark.parametrize("power", [0.0, 1.0, 80.0])
def test_a_power_that_is_no_probability_is_refused(power: float) -> None:
    with pytest.raises(ValueError, match="must be between 0 and 1"):
        seeds_needed([1.0, 2.0], [0.0, 0.0], 0.1, power)


@given(arrays(np.float64, (2, 6), elements=shares), st.floats(0.01, 1))
def test_half_the_effect_needs_about_four_times_the_seeds(scores: np.ndarray, effect: float) -> None:
    whole, half = seeds_needed(*scores, effect), seeds_needed(*scores, effect / 2)
    for many, few, correction in zip(half, whole, (1.92073, 0.96036), strict=True):
        assert many is not None and few is not None
        # `few` is at most 1 too many; the correction is there once.
        assert max(2, 4 * (few - 1) - 3 * correction - 1e-3) <= many
        assert many <= max(2, 4 * few - 3 * correction + 1 + 1e-3)


def t_test_power(difference: np.ndarray, error: np.ndarray, critical: float) -> float:
    return float((np.abs(difference / error) > critical).mean())


@pytest.mark.parametrize("shared", [0.0, 1.0, 3.0])
def test_so_many_seeds_find_the_difference_with_the_power_asked_for(shared: float) -> None:
    rng = np.random.default_rng(61)
    spread, effect, trials = np.array([1.0, 1.5]), 1.1, 10_000

    def play(experiments: int, seeds: int) -> np.ndarray:
        """Scores (2, experiments, seeds) of routers that share luck and of which the first is better."""
        own = rng.normal(size=(2, experiments, seeds)) * spread[:, None, None]
        return own + shared * rng.normal(size=(experiments, seeds)) + np.array([effect, 0.0])[:, None, None]

    def critical(statistic: np.ndarray) -> float:
        return float(np.quantile(np.abs(statistic), 0.95))

    # A long pilot, so that its variances are the true ones.
    needed = seeds_needed(*play(1, 200_000)[:, 0], effect)
    assert needed.paired is not None and needed.unpaired is not None
    if shared:
        assert needed.paired < needed.unpaired

    a, b = play(trials, needed.paired)
    d = a - b
    error = d.std(axis=1, ddof=1) / math.sqrt(needed.paired)
    # The test's critical value, as simulated where there is no difference.
    limit = critical((d.mean(axis=1) - effect) / error)
    assert 0.78 <= t_test_power(d.mean(axis=1), error, limit) <= 0.84

    a, b = play(trials, needed.unpaired)[0], play(trials, needed.unpaired)[1]
    d, error = (
        a.mean(axis=1) - b.mean(axis=1),
        np.sqrt((a.var(axis=1, ddof=1) + b.var(axis=1, ddof=1)) / needed.unpaired),
    )
    limit = critical((d - effect) / error)
    assert 0.78 <= t_test_power(d, error, limit) <= 0.84


# What the intervals promise, with the 24 seeds of a validation


def skewed(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Scores as attainment has them: near a ceiling, with a tail below; their mean is 0.8."""
    return 1.0 - rng.gamma(4.0, 0.05, size=shape)


def test_the_interval_of_a_mean_covers_it() -> None:
    rng = np.random.default_rng(71)
    covered = 0
    for values in skewed(rng, 500, 24):
        _, low, high = bootstrap_mean(values, resamples=500)
        covered += low <= 0.8 <= high
    assert 0.90 <= covered / 500 <= 0.98


def test_the_interval_of_a_paired_difference_covers_it() -> None:
    rng = np.random.default_rng(72)
    covered = 0
    for luck in skewed(rng, 500, 24):
        a = luck + 0.02 + rng.normal(0, 0.02, 24)
        estimate = paired_difference(a, luck + skewed(rng, 24) - 0.8, resamples=500)
        assert estimate is not None
        covered += estimate.low <= 0.02 <= estimate.high
    assert 0.90 <= covered / 500 <= 0.98


def test_the_interval_of_an_interquartile_mean_covers_it() -> None:
    rng = np.random.default_rng(73)
    offsets = np.linspace(0.0, 0.3, 6)[:, None]
    truth = interquartile_mean(skewed(rng, 6, 100_000) + offsets)
    covered = 0
    for _ in range(300):
        _, low, high = stratified_iqm(skewed(rng, 6, 24) + offsets, resamples=200)
        covered += low <= truth <= high
    assert 0.88 <= covered / 300 <= 0.98


def test_the_interval_of_an_interquartile_mean_covers_it_where_conditions_share_their_luck() -> None:
    """As they do where the same seeds are played under all of them."""
    rng = np.random.default_rng(75)
    offsets = np.linspace(0.0, 0.3, 6)[:, None]

    def play(seeds: int) -> np.ndarray:
        return skewed(rng, seeds) + offsets + rng.normal(0.0, 0.05, (6, seeds))

    truth = interquartile_mean(play(100_000))
    covered = 0
    for _ in range(300):
        _, low, high = stratified_iqm(play(24), resamples=200)
        covered += low <= truth <= high
    assert 0.88 <= covered / 300 <= 0.98


def test_the_interval_of_an_improvement_covers_it() -> None:
    rng = np.random.default_rng(74)
    shifts = np.array([0.0, 0.5, 1.0, 2.0])[:, None]
    # Of normal runs that differ by s, one is better with probability Φ(s/√2).
    truth = np.mean([NormalDist().cdf(s / math.sqrt(2.0)) for s in shifts[:, 0]])
    covered = 0
    for _ in range(300):
        _, low, high = improvement(shifts + rng.normal(size=(4, 24)), rng.normal(size=(4, 24)), resamples=400)
        covered += low <= truth <= high
    assert 0.90 <= covered / 300 <= 0.98


def test_a_single_seed_says_nothing_of_how_seeds_vary() -> None:
    assert stratified_iqm([[0.2], [0.4]]) == Estimate(interquartile_mean([0.2, 0.4]), -np.inf, np.inf)


def test_batches_of_a_bootstrap_make_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    scores = np.random.default_rng(0).random((3, 7))
    whole = stratified_iqm(scores), bootstrap_mean(scores[0])
    monkeypatch.setattr(statistics, "AT_ONCE", 100)
    assert (stratified_iqm(scores), bootstrap_mean(scores[0])) == whole
