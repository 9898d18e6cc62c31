"""Scores of several conditions on one scale, and performance profiles (DESIGN 6)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from routing_gym.evaluation.statistics import SEED, interval_of, resample_weights

# Of the score: with less to gain than one point, normalising magnifies noise.
LEAST = 0.01

Floats = NDArray[np.float64]


class Normalised(NamedTuple):
    """Scores on one scale: per condition 0 is the random router and 1 the best documented one.

    Attributes:
        scores: (kept conditions, seeds) by label; more is better.
        kept: indices of the conditions that are normalised, rising.
        left_out: why the others are not, by index.
    """

    scores: dict[str, Floats]
    kept: list[int]
    left_out: dict[int, str]


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
    return Normalised(
        {label: np.array(rows).reshape(len(kept), shape[1]) for label, rows in scaled.items()}, kept, left_out
    )


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


def performance_profile(scores: ArrayLike, thresholds: ArrayLike, resamples: int = 2_000) -> Profile:
    """Return the share of runs whose score is above each threshold (Agarwal et al., 2021, run-score).

    The band is pointwise, by a bootstrap that resamples seeds within each condition. With one seed it is 0 to
    1: one says nothing of how seeds vary.

    Args:
        scores: (conditions, seeds), all defined, on one scale.
        thresholds: (thresholds,).
        resamples: of the bootstrap.

    Raises:
        ValueError: there is no run.
    """
    table = np.atleast_2d(np.asarray(scores, np.float64))
    if not table.size:
        raise ValueError(f"scores have shape {table.shape}: must hold a run")
    above = (table[:, :, None] > np.asarray(thresholds, np.float64)).astype(np.float64)
    share = above.mean(axis=(0, 1))
    if table.shape[1] < 2:
        return Profile(share, np.zeros_like(share), np.ones_like(share))
    rng = np.random.default_rng(SEED)
    draws = np.zeros((resamples, len(share)))
    for runs in above:
        draws += resample_weights(rng, len(runs), resamples) @ runs
    return Profile(share, *interval_of(draws / len(table)))
