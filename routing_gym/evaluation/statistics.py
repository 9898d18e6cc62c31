"""Statistics of seeded runs, in NumPy (DESIGN 6).

Scores are arrays whose last axis is seeds, the same seeds for every router, so that differences are paired.
Every bootstrap is seeded: the same scores give the same interval.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

RESAMPLES = 10_000
CONFIDENCE = 0.95
SEED = 20_260_101
# Scores that a bootstrap holds in memory together.
AT_ONCE = 1_000_000
# Up to so many seeds all 2^seeds patterns of signs are tried; beyond, so many as there are resamples.
EXACT_SEEDS = 13

Floats = NDArray[np.float64]


class SeedsNeeded(NamedTuple):
    """How many seeds a test needs; None where that is not defined.

    Attributes:
        paired: both routers on the same seeds.
        unpaired: of each router, on seeds of its own.
    """

    paired: int | None
    unpaired: int | None


class Estimate(NamedTuple):
    """A value and its bootstrap interval."""

    value: float
    low: float
    high: float

    @property
    def excludes_zero(self) -> bool:
        """Whether the interval lies on one side of 0; otherwise the difference is a tie."""
        return self.low > 0.0 or self.high < 0.0


def paired_difference(scores: ArrayLike, reference: ArrayLike, resamples: int = RESAMPLES) -> Estimate | None:
    """Estimate the mean difference between two routers on the same seeds.

    Args:
        scores: (seeds,) of the router; NaN where undefined. Seeds without a finite difference are left out.
        reference: (seeds,) of the other, on the same seeds.
        resamples: of the percentile bootstrap over seeds.

    Returns:
        The mean difference and its 95 % interval, which is unbounded if a single seed has both: one says
        nothing of how seeds vary. None if no seed has both.

    Raises:
        ValueError: the shapes differ.
    """
    a, b = _paired(scores, reference)
    difference = a - b
    if not len(difference):
        return None
    if len(difference) == 1:
        return Estimate(float(difference[0]), -np.inf, np.inf)
    return bootstrap_mean(difference, resamples)


def paired_p_value(scores: ArrayLike, reference: ArrayLike, resamples: int = RESAMPLES) -> float | None:
    """Test whether two routers' mean difference on the same seeds is 0, by flipping signs, two-sided.

    If neither is better, each seed's difference is as likely to have the other sign. The p-value is the share
    of patterns of signs whose mean is at least as far from 0 as the one seen: of all patterns up to 13 seeds,
    beyond of random ones and the one seen, (b + 1)/(m + 1) (Phipson and Smyth, 2010).

    Args:
        scores: (seeds,) of the router; NaN where undefined. Seeds without a finite difference are left out.
        reference: (seeds,) of the other, on the same seeds.
        resamples: random patterns m, where not all are tried.

    Returns:
        In (0, 1]. None if fewer than two seeds have both.

    Raises:
        ValueError: the shapes differ.
    """
    a, b = _paired(scores, reference)
    difference = a - b
    seeds = len(difference)
    if seeds < 2:
        return None
    # Patterns that tie with the one seen must count, whatever order their sums are rounded in.
    least = abs(difference.sum()) - 1e-12 * np.abs(difference).sum()
    if seeds <= EXACT_SEEDS:
        signs = np.array(list(itertools.product((1.0, -1.0), repeat=seeds)))
        return float((np.abs(signs @ difference) >= least).mean())
    signs = 1.0 - 2.0 * np.random.default_rng(SEED).integers(2, size=(resamples, seeds), dtype=np.int8)
    return float((np.count_nonzero(np.abs(signs @ difference) >= least) + 1) / (resamples + 1))


def holm(p_values: ArrayLike) -> Floats:
    """Adjust the p-values of a family of comparisons (Holm, 1979).

    Where those of at most 0.05 are called differences, one that is none is among them with 5 % at most. The
    k-th smallest of m counts m - k + 1 times, at least as much as those before it, and at most 1.

    Args:
        p_values: (m,); NaN is no comparison, stays NaN, and is not counted.

    Returns:
        (m,) adjusted, in the given order.
    """
    adjusted = np.array(p_values, np.float64)
    defined = np.flatnonzero(~np.isnan(adjusted))
    order = defined[np.argsort(adjusted[defined], kind="stable")]
    times = len(order) - np.arange(len(order))
    adjusted[order] = np.minimum(np.maximum.accumulate(times * adjusted[order]), 1.0)
    return adjusted


def seeds_needed(scores: ArrayLike, reference: ArrayLike, effect: float, power: float = 0.8) -> SeedsNeeded:
    """Say how many seeds find a mean difference by a two-sided t-test at 5 %, from a pilot's variances.

    By the normal approximation with Guenther's (1981) correction for the t-test, rounded up and at least 2:
    (z₁₋α/₂ + z_power)²·s²/effect² + z²₁₋α/₂/2 paired, where s² is the variance of the differences; of each
    router unpaired, where s² is the sum of the two variances, with z²₁₋α/₂/4.

    Args:
        scores: (seeds,) of the pilot; NaN where undefined. Seeds without a finite difference are left out.
        reference: (seeds,) of the other router, on the same seeds.
        effect: the true mean difference to be found, in the scores' unit, of either sign.
        power: probability of finding it, between 0 and 1.

    Returns:
        None for both if fewer than two seeds have both scores, or the effect is 0 or not finite.

    Raises:
        ValueError: the shapes differ, or the power is not between 0 and 1.
    """
    a, b = _paired(scores, reference)
    if not 0.0 < power < 1.0:
        raise ValueError(f"power = {power}: must be between 0 and 1")
    if len(a) < 2 or effect == 0.0 or not math.isfinite(effect):
        return SeedsNeeded(None, None)
    z = NormalDist().inv_cdf((1.0 + CONFIDENCE) / 2.0)
    scale = (z + NormalDist().inv_cdf(power)) / float(effect)

    def count(variance: float, correction: float) -> int | None:
        needed = scale * variance * scale + correction
        return max(2, math.ceil(needed)) if math.isfinite(needed) else None

    return SeedsNeeded(
        count(float((a - b).var(ddof=1)), z * z / 2.0),
        count(float(a.var(ddof=1) + b.var(ddof=1)), z * z / 4.0),
    )


def bootstrap_mean(values: ArrayLike, resamples: int = RESAMPLES) -> Estimate:
    """Estimate a mean with a percentile bootstrap over the values (n,), n ≥ 1."""
    sample = np.asarray(values, np.float64)
    rng = np.random.default_rng(SEED)
    means = [
        sample[rng.integers(len(sample), size=(count, len(sample)))].mean(axis=1)
        for count in batches(resamples, len(sample))
    ]
    return _interval(float(sample.mean()), np.concatenate(means))


def interquartile_mean(scores: ArrayLike) -> float:
    """Return the mean of the middle half of all scores: a quarter of them is cut off at each end.

    Where a quarter is no whole number of scores, those at the edges count in part.
    """
    return float(middle_halves(np.asarray(scores, np.float64).reshape(1, -1))[0])


def middle_halves(runs: Floats) -> Floats:
    """Return the interquartile mean of each row (rows, scores)."""
    count = runs.shape[1]
    position = np.arange(count)
    low, high = count / 4.0, 3.0 * count / 4.0
    weight = np.clip(np.minimum(position + 1, high) - np.maximum(position, low), 0.0, 1.0)
    means: Floats = (weight * np.sort(runs, axis=1)).sum(axis=1) / weight.sum()
    return means


def stratified_iqm(scores: ArrayLike, resamples: int = 2_000) -> Estimate:
    """Estimate the interquartile mean over conditions and seeds (Agarwal et al., 2021).

    Conditions share their seeds, and with them their luck: the bootstrap draws seeds, each with its run under
    every condition, so that every condition keeps its weight. Were seeds drawn for each condition apart, luck
    would average out that does not.

    Args:
        scores: (conditions, seeds), all defined.
        resamples: of the bootstrap.

    Returns:
        The interquartile mean and its 95 % interval, which is unbounded if there is a single seed.
    """
    table = np.atleast_2d(np.asarray(scores, np.float64))
    seeds = table.shape[1]
    rng = np.random.default_rng(SEED)
    if seeds < 2:
        return Estimate(interquartile_mean(table), -np.inf, np.inf)
    draws = []
    for count in batches(resamples, table.size):
        picks = rng.integers(seeds, size=(count, seeds))
        draws.append(middle_halves(table[:, picks].swapaxes(0, 1).reshape(count, -1)))
    return _interval(interquartile_mean(table), np.concatenate(draws))


def probability_of_improvement(scores: ArrayLike, reference: ArrayLike) -> float:
    """Return P(a random run of the router beats a random run of the reference), averaged over conditions.

    Ties count half (Agarwal et al., 2021).

    Args:
        scores: (conditions, seeds) of the router.
        reference: (conditions, seeds) of the other.
    """
    a = np.atleast_2d(np.asarray(scores, np.float64))[:, :, None]
    b = np.atleast_2d(np.asarray(reference, np.float64))[:, None, :]
    return float(((a > b) + 0.5 * (a == b)).mean(axis=(1, 2)).mean())


def improvement(scores: ArrayLike, reference: ArrayLike, resamples: int = 2_000) -> Estimate:
    """Estimate the probability of improvement over conditions and seeds (Agarwal et al., 2021).

    The bootstrap resamples seeds within each condition, of the router and of the reference independently:
    luck that the same seeds bring to both is not taken out, and makes the interval wider than it need be,
    while luck that conditions share is averaged out, and makes it narrower.
    Where every run of one beats every run of the other, the interval has no width.

    Args:
        scores: (conditions, seeds) of the router, all defined.
        reference: (conditions, seeds) of the other; it may have another number of seeds.
        resamples: of the bootstrap.

    Returns:
        The probability and its 95 % interval, which is 0 to 1 if either has a single seed: one says nothing
        of how seeds vary.

    Raises:
        ValueError: the numbers of conditions differ.
    """
    a = np.atleast_2d(np.asarray(scores, np.float64))
    b = np.atleast_2d(np.asarray(reference, np.float64))
    if len(a) != len(b):
        raise ValueError(f"scores have {len(a)} conditions, the reference's {len(b)}; they must be the same")
    value = probability_of_improvement(a, b)
    if min(a.shape[1], b.shape[1]) < 2:
        return Estimate(value, 0.0, 1.0)
    rng = np.random.default_rng(SEED)
    draws = np.zeros(resamples)
    for one, other in zip(a, b, strict=True):
        wins = (one[:, None] > other) + 0.5 * (one[:, None] == other)
        picked, against = (resample_weights(rng, len(runs), resamples) for runs in (one, other))
        draws += ((picked @ wins) * against).sum(axis=1)
    return _interval(value, draws / len(a))


def resample_weights(rng: np.random.Generator, seeds: int, resamples: int) -> Floats:
    """Return how much each seed weighs in each resample of a bootstrap: (resamples, seeds), rows sum to 1."""
    # Counted by resample, which is faster than multinomial draws.
    picks = rng.integers(seeds, size=(resamples, seeds)) + seeds * np.arange(resamples)[:, None]
    counts = np.bincount(picks.ravel(), minlength=resamples * seeds)
    return counts.reshape(resamples, seeds) / seeds


def interval_of(draws: Floats) -> tuple[Floats, Floats]:
    """Return the ends of the 95 % percentile interval over a bootstrap's draws (resamples, ...)."""
    tail = 100.0 * (1.0 - CONFIDENCE) / 2.0
    low, high = np.percentile(draws, [tail, 100.0 - tail], axis=0)
    return low, high


def batches(resamples: int, scores: int) -> Iterator[int]:
    """Split resamples of so many scores each, so that memory holds a batch of them."""
    at_once = max(1, AT_ONCE // scores)
    for first in range(0, resamples, at_once):
        yield min(at_once, resamples - first)


def _interval(value: float, draws: Floats) -> Estimate:
    low, high = interval_of(draws)
    return Estimate(value, float(low), float(high))


def _paired(scores: ArrayLike, reference: ArrayLike) -> tuple[Floats, Floats]:
    """Return both routers' scores on the seeds whose difference is finite.

    Raises:
        ValueError: the shapes differ.
    """
    a, b = np.asarray(scores, np.float64), np.asarray(reference, np.float64)
    if a.shape != b.shape:
        raise ValueError(f"scores have shape {a.shape}, the reference's {b.shape}; they must be paired")
    both = np.isfinite(a) & np.isfinite(b)
    return a[both], b[both]
