"""Scores of several conditions on one scale, and performance profiles (DESIGN 6)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from routing_gym.evaluation.statistics import (
    SEED,
    Estimate,
    batches,
    interquartile_mean,
    interval_of,
    middle_halves,
)

# Of the score: with less to gain than one point, normalising magnifies noise.
LEAST = 0.01
# Of its own length: a scale that the seeds of a resample leave shorter is taken for so long.
SHORTEST = 0.01

Floats = NDArray[np.float64]


class Normalised(NamedTuple):
    """Scores on one scale: per condition 0 is the random router and 1 the best documented one.

    Attributes:
        scores: (kept conditions, seeds) by label; more is better.
        kept: indices of the conditions that are normalised, rising.
        left_out: why the others are not, by index.
        floor: label of the random router.
        ceilings: labels of the documented routers.
    """

    scores: dict[str, Floats]
    kept: list[int]
    left_out: dict[int, str]
    floor: str
    ceilings: tuple[str, ...]


class Profile(NamedTuple):
    """A performance profile, each (thresholds,): the share of runs above it, and its 95 % band."""

    share: Floats
    low: Floats
    high: Floats


def normalise(
    scores: Mapping[str, ArrayLike],
    floor: str,
    ceilings: Sequence[str],
    yardstick: str | None,
    sign: float,
    least: float = LEAST,
) -> Normalised:
    """Scale scores per condition so that random routing is 0 and the best documented router 1, in the mean.

    In a condition a score x becomes (sign·x - f)/(b - f): f is the mean over seeds of sign times the floor's
    scores, b the largest such mean of the documented routers. A condition is left out where the yardstick's
    mean is less than `least` above b, where b is less than `least` above f, or where a score is not finite.

    Args:
        scores: (conditions, seeds) by label, the same shape for every router.
        floor: label of the random router.
        ceilings: labels of the documented routers, at least one.
        yardstick: label of what knows more than a router can; None leaves its rule out.
        sign: 1 where more is better, -1 where less is.
        least: in the scores' unit.

    Raises:
        ValueError: shapes differ, a label has no scores, or there is no documented router.
    """
    if not ceilings:
        raise ValueError("ceilings is empty: name the documented routers")
    for label in (floor, *ceilings, *(() if yardstick is None else (yardstick,))):
        if label not in scores:
            raise ValueError(f"{label} has no scores: must be of {', '.join(scores)}")
    tables = {label: sign * np.asarray(table, np.float64) for label, table in scores.items()}
    shape = tables[floor].shape
    for label, table in tables.items():
        if table.shape != shape or table.ndim != 2:
            raise ValueError(
                f"scores of {label} have shape {table.shape}, of {floor} {shape}: must be the same "
                "(conditions, seeds)"
            )
    kept: list[int] = []
    left_out: dict[int, str] = {}
    scaled: dict[str, list[Floats]] = {label: [] for label in tables}
    for k in range(shape[0]):
        here = {label: table[k] for label, table in tables.items()}
        reason = _undefined(here)
        if reason is None:
            means = {label: float(runs.mean()) for label, runs in here.items()}
            best = max(ceilings, key=means.__getitem__)
            reason = _too_close(means, floor, best, yardstick, least)
        if reason is not None:
            left_out[k] = reason
            continue
        kept.append(k)
        for label, runs in here.items():
            scaled[label].append((runs - means[floor]) / (means[best] - means[floor]))
    arrays = {label: np.array(rows).reshape(len(kept), shape[1]) for label, rows in scaled.items()}
    return Normalised(arrays, kept, left_out, floor, tuple(ceilings))


def _undefined(here: Mapping[str, Floats]) -> str | None:
    for label, runs in here.items():
        bad = np.count_nonzero(~np.isfinite(runs))
        if bad or not len(runs):
            return f"{label} has no finite score on {bad} of {len(runs)} seeds"
    return None


def _too_close(
    means: Mapping[str, float], floor: str, best: str, yardstick: str | None, least: float
) -> str | None:
    if yardstick is not None and means[yardstick] - means[best] < least:
        gap = _gap(means[yardstick] - means[best])
        return f"{yardstick} is {gap} than {best}, the best documented router; {least:g} is the least to gain"
    if means[best] - means[floor] < least:
        gap = _gap(means[best] - means[floor])
        return (
            f"{best}, the best documented router, is {gap} than {floor}; {least:g} is the least to scale by"
        )
    return None


def _gap(gap: float) -> str:
    return f"{abs(gap):.4f} {'better' if gap >= 0.0 else 'worse'}"


def normalised_iqm(found: Normalised, label: str, resamples: int = 2_000) -> Estimate:
    """Estimate the interquartile mean of a router's normalised scores.

    The bootstrap draws seeds, each with the runs of all routers under every condition, and puts random
    routing at 0 and the best documented router at 1 anew: luck that is shared moves both ends of the scale.

    Args:
        found: what `normalise` returns; some condition is kept.
        label: of the router.
        resamples: of the bootstrap.

    Returns:
        The interquartile mean and its 95 % interval, which is unbounded if there is a single seed.
    """
    table = found.scores[label]
    value = interquartile_mean(table)
    if table.shape[1] < 2:
        return Estimate(value, -np.inf, np.inf)
    draws = [middle_halves(runs) for runs in _resampled(found, label, resamples, table.size)]
    low, high = interval_of(np.concatenate(draws))
    return Estimate(value, float(low), float(high))


def performance_profile(
    found: Normalised, label: str, thresholds: ArrayLike, resamples: int = 2_000
) -> Profile:
    """Return the share of a router's runs above each normalised score (Agarwal et al., 2021, run-score).

    The band is pointwise, by the bootstrap of `normalised_iqm`. With one seed it is 0 to 1: one says nothing
    of how seeds vary.

    Args:
        found: what `normalise` returns; some condition is kept.
        label: of the router.
        thresholds: (thresholds,).
        resamples: of the bootstrap.
    """
    table, above = found.scores[label], np.asarray(thresholds, np.float64)
    share = (table.reshape(-1, 1) > above).mean(axis=0)
    if table.shape[1] < 2:
        return Profile(share, np.zeros_like(share), np.ones_like(share))
    size = table.size * len(above)
    draws = [(runs[..., None] > above).mean(axis=1) for runs in _resampled(found, label, resamples, size)]
    return Profile(share, *interval_of(np.concatenate(draws)))


def _resampled(found: Normalised, label: str, resamples: int, size: int) -> Iterator[Floats]:
    """Yield resamples of normalised scores, (batch, conditions · seeds), with the same seeds for all."""
    table = found.scores[label]
    seeds = table.shape[1]
    rng = np.random.default_rng(SEED)
    for count in batches(resamples, size):
        picks = rng.integers(seeds, size=(count, seeds))
        zero = found.scores[found.floor][:, picks].mean(axis=2, keepdims=True)
        one = np.max(
            [found.scores[best][:, picks].mean(axis=2, keepdims=True) for best in found.ceilings], axis=0
        )
        yield ((table[:, picks] - zero) / np.maximum(one - zero, SHORTEST)).swapaxes(0, 1).reshape(count, -1)
