"""Statistics of seeded runs, in NumPy (DESIGN 6).

Scores are arrays whose last axis is seeds, the same seeds for every router, so that differences are paired.
Every bootstrap is seeded: the same scores give the same interval.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

RESAMPLES = 10_000
CONFIDENCE = 0.95
SEED = 20_260_101

Floats = NDArray[np.float64]


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
    a, b = np.asarray(scores, np.float64), np.asarray(reference, np.float64)
    if a.shape != b.shape:
        raise ValueError(f"scores have shape {a.shape}, the reference's {b.shape}; they must be paired")
    with np.errstate(invalid="ignore"):  # infinite on both sides
        difference = a - b
    difference = difference[np.isfinite(difference)]
    if not len(difference):
        return None
    if len(difference) == 1:
        return Estimate(float(difference[0]), -np.inf, np.inf)
    return bootstrap_mean(difference, resamples)


def bootstrap_mean(values: ArrayLike, resamples: int = RESAMPLES) -> Estimate:
    """Estimate a mean with a percentile bootstrap over the values (n,), n ≥ 1."""
    sample = np.asarray(values, np.float64)
    rng = np.random.default_rng(SEED)
    means = sample[rng.integers(len(sample), size=(resamples, len(sample)))].mean(axis=1)
    return _interval(float(sample.mean()), means)


def interquartile_mean(scores: ArrayLike) -> float:
    """Return the mean of the middle half of all scores: a quarter of them is cut off at each end.

    Where a quarter is no whole number of scores, those at the edges count in part.
    """
    ordered = np.sort(np.asarray(scores, np.float64), axis=None)
    count = len(ordered)
    position = np.arange(count)
    low, high = count / 4.0, 3.0 * count / 4.0
    weight = np.clip(np.minimum(position + 1, high) - np.maximum(position, low), 0.0, 1.0)
    return float((weight * ordered).sum() / weight.sum())


def stratified_iqm(scores: ArrayLike, resamples: int = 2_000) -> Estimate:
    """Estimate the interquartile mean over conditions and seeds (Agarwal et al., 2021).

    The bootstrap resamples seeds within each condition, so that every condition keeps its weight.

    Args:
        scores: (conditions, seeds), all defined.
        resamples: of the bootstrap.
    """
    table = np.atleast_2d(np.asarray(scores, np.float64))
    conditions, seeds = table.shape
    rng = np.random.default_rng(SEED)
    draws = np.empty(resamples)
    for k in range(resamples):
        picks = rng.integers(seeds, size=(conditions, seeds))
        draws[k] = interquartile_mean(np.take_along_axis(table, picks, axis=1))
    return _interval(interquartile_mean(table), draws)


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


def _interval(value: float, draws: Floats) -> Estimate:
    tail = 100.0 * (1.0 - CONFIDENCE) / 2.0
    low, high = np.percentile(draws, [tail, 100.0 - tail])
    return Estimate(value, float(low), float(high))
