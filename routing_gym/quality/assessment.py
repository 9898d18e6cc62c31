"""How good predictions of quality are, beside always predicting each model's mean."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from routing_gym.common.jit import njit

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

BINS = 10
# With fewer prompts (`Auc.effective`) an interval says little.
FEWEST = 10
NORMAL_95 = 1.959963984540054
POOLED = "all models"


class Estimate(NamedTuple):
    """A value and its 95 % interval; NaN where it is undefined."""

    value: float
    low: float
    high: float


class Auc(NamedTuple):
    """An area under the ROC curve, its 95 % interval, and what that rests on; see `auc`.

    Attributes:
        value: the area; NaN without a pair of different scores.
        low: end of the interval.
        high: end of the interval.
        effective: prompts that the interval rests on: n₁·n₀/(n₁ + n₀) where scores are 0 or 1.
    """

    value: float
    low: float
    high: float
    effective: float

    @property
    def enough(self) -> bool:
        """Whether there are prompts enough to tell."""
        return self.effective >= FEWEST

    @property
    def ranks(self) -> bool:
        """Whether better prompts are told from worse ones: all of a trusted interval is above ½."""
        return self.enough and self.low > 0.5


class Bin(NamedTuple):
    """Rows of similar prediction: how many, the mean prediction, and the mean recorded score."""

    rows: int
    predicted: float
    recorded: float


@dataclass(frozen=True)
class Figures:
    """What is measured of one model, or of all pooled; NaN where no score is recorded.

    Attributes:
        model: its name, or `POOLED`.
        rows: recorded scores.
        mean_score: their mean.
        auc: see `auc`; pairs are within models.
        auc_within_tasks: that of pairs within models and tasks, among prompts of which the task is known.
        calibration_error: see `calibration`, as are `bins`.
        mae: mean absolute error, and `mae_of_mean` that of always predicting the model's mean.
        mse: mean squared error (Brier's score where scores are 0 or 1), and `mse_of_mean`.
        gain: mse_of_mean − mse.
    """

    model: str
    rows: int
    mean_score: float
    auc: Auc
    auc_within_tasks: Auc
    calibration_error: float
    bins: tuple[Bin, ...]
    mae: float
    mae_of_mean: float
    mse: float
    mse_of_mean: float
    gain: Estimate

    @property
    def improves(self) -> bool:
        """Whether the squared error is lower than that of always the mean, with all of its interval."""
        return self.gain.low > 0.0


class GroupFigures(NamedTuple):
    """How well the prediction ranks the prompts of one task, for one model or `POOLED`."""

    group: str
    model: str
    rows: int
    auc: Auc


@dataclass(frozen=True)
class Assessment:
    """Figures of each model, of all pooled, and of each group: per model in turn and then pooled."""

    models: tuple[Figures, ...]
    pooled: Figures
    groups: tuple[GroupFigures, ...]

    @property
    def no_signal(self) -> tuple[GroupFigures, ...]:
        """Groups and models with rows enough where the prediction is not shown to rank better than chance."""
        return tuple(
            one for one in self.groups if one.model != POOLED and one.auc.enough and not one.auc.ranks
        )


def assess(
    scores: ArrayLike,
    predicted: ArrayLike,
    means: ArrayLike,
    models: Sequence[str],
    groups: Sequence[str],
    keys: Sequence[str] | None = None,
) -> Assessment:
    """Measure predictions against recorded scores.

    Args:
        scores: (n, K) recorded; NaN where not recorded.
        predicted: (n, K).
        means: (K,) of the profiled rows: what "always the mean" predicts.
        models: K names.
        groups: n tasks; prompts of the group "" are in no group.
        keys: n prompt keys. Rows of the same key are one observation to the intervals; by default each row
            is one.

    Raises:
        ValueError: shapes do not fit, or a prediction for a recorded score is not finite.
    """
    truth, guess = np.asarray(scores, np.float64), np.asarray(predicted, np.float64)
    rows = len(groups)
    fixed = np.asarray(means, np.float64)
    shape = (rows, len(models))
    if not truth.shape == guess.shape == shape or fixed.shape != shape[1:]:
        raise ValueError(
            f"scores have shape {truth.shape}, predictions {guess.shape}, means {fixed.shape}; they must be "
            f"{shape}, {shape} and {shape[1:]}: the groups by the models"
        )
    constant = np.broadcast_to(fixed, shape)
    recorded = ~np.isnan(truth)
    wrong = np.argwhere(recorded & ~(np.isfinite(guess) & np.isfinite(constant)))
    if len(wrong):
        row, model = wrong[0]
        raise ValueError(
            f"row {row}, {models[model]}: predicted {guess[row, model]:g} and a mean of "
            f"{constant[row, model]:g}; both must be finite where a score is recorded"
        )
    units = np.arange(rows) if keys is None else np.unique(np.asarray(keys), return_inverse=True)[1]
    tables = [(name, slice(k, k + 1)) for k, name in enumerate(models)] + [(POOLED, slice(None))]
    tasks = np.unique(np.asarray(groups, np.str_), return_inverse=True)[1]
    names = np.asarray(groups, object)
    of_a_task = np.where((names != "")[:, None], truth, np.nan)
    figures = [
        _figures(
            name,
            truth[:, k],
            guess[:, k],
            constant[:, k],
            units,
            auc(of_a_task[:, k], guess[:, k], units, tasks),
        )
        for name, k in tables
    ]
    by_group = []
    for group in sorted(set(groups) - {""}):
        inside = names == group
        for name, k in tables:
            count = int((~np.isnan(truth[inside, k])).sum())
            found = auc(truth[inside, k], guess[inside, k], units[inside])
            by_group.append(GroupFigures(group, name, count, found))
    return Assessment(tuple(figures[:-1]), figures[-1], tuple(by_group))


def _figures(
    model: str, truth: Floats, guess: Floats, constant: Floats, units: Ints, within_tasks: Auc
) -> Figures:
    recorded = ~np.isnan(truth)
    rows = int(recorded.sum())
    error, error_of_mean = (np.where(recorded, predicted - truth, 0.0) for predicted in (guess, constant))
    mse, mse_of_mean = (_mean((e**2).sum(), rows) for e in (error, error_of_mean))
    gain = mse_of_mean - mse
    excess = np.where(recorded, error_of_mean**2 - error**2 - gain, 0.0).sum(axis=1) / max(rows, 1)
    some = recorded.any(axis=1)
    half = _half_width(excess[some], units[some])
    calibration_error, bins = calibration(truth[recorded], guess[recorded])
    return Figures(
        model=model,
        rows=rows,
        mean_score=_mean(truth[recorded].sum(), rows),
        auc=auc(truth, guess, units),
        auc_within_tasks=within_tasks,
        calibration_error=calibration_error,
        bins=bins,
        mae=_mean(np.abs(error).sum(), rows),
        mae_of_mean=_mean(np.abs(error_of_mean).sum(), rows),
        mse=mse,
        mse_of_mean=mse_of_mean,
        gain=Estimate(gain, gain - half, gain + half),
    )


def _mean(total: float, rows: int) -> float:
    return float(total) / rows if rows else float("nan")


def calibration(scores: Floats, predicted: Floats, bins: int = BINS) -> tuple[float, tuple[Bin, ...]]:
    """Return the expected calibration error and the bins it is of.

    The error is Σ (rows of a bin / n)·|mean prediction − mean score|. Bins hold equally many rows by rank of
    the prediction; rows of equal prediction are never parted, so that there may be fewer and unequal ones.

    Args:
        scores: (n,) recorded.
        predicted: (n,).
        bins: how many, at most.

    Returns:
        The error (NaN if n = 0), and the bins by rising prediction.
    """
    count = len(scores)
    ordered = np.sort(predicted)
    middle = (np.searchsorted(ordered, predicted) + np.searchsorted(ordered, predicted, "right")) / 2.0
    place = np.floor(bins * middle / max(count, 1)).astype(np.int64)
    found = []
    for held in (place == k for k in np.unique(place)):
        found.append(Bin(int(held.sum()), float(predicted[held].mean()), float(scores[held].mean())))
    return _mean(sum(one.rows * abs(one.predicted - one.recorded) for one in found), count), tuple(found)


def auc(
    scores: ArrayLike, predicted: ArrayLike, units: Ints | None = None, strata: Ints | None = None
) -> Auc:
    """Return how likely the better of two prompts has the higher prediction, and its 95 % interval.

    Over all pairs with different recorded scores, equal predictions count ½: the area under the ROC curve
    where scores are 0 or 1, and the concordance index where they are graded. Several columns are pooled:
    pairs are within a column, and within a stratum. It takes O(n log n) per column.

    The interval's variance is that of the structural components of DeLong, DeLong and Clarke-Pearson
    (Biometrics 44, 1988), linearised for a share of pairs; those of a unit are summed before they are squared
    (Obuchowski, Biometrics 53, 1997), so that a prompt's models or duplicates are not taken for independent.

    Args:
        scores: (n,) or (n, K); NaN where not recorded.
        predicted: the same shape.
        units: (n,) which observation a row belongs to; by default each is its own.
        strata: (n,) ranks from 0; only rows of the same are compared. By default all are.

    Returns:
        NaN without a pair; the interval is [0, 1] if there is one unit only.
    """
    truth, guess = np.asarray(scores, np.float64), np.asarray(predicted, np.float64)
    truth, guess = truth.reshape(len(truth), -1), guess.reshape(len(guess), -1)
    wins, pairs = np.zeros(len(truth)), np.zeros(len(truth))
    apart = np.zeros(len(truth), np.int64) if strata is None else strata
    order = np.argsort(apart, kind="stable")
    for inside in np.split(order, np.flatnonzero(np.diff(apart[order])) + 1):
        for k in range(truth.shape[1]):
            rows = inside[~np.isnan(truth[inside, k])]
            _, level, held = np.unique(truth[rows, k], return_inverse=True, return_counts=True)
            _, place = np.unique(guess[rows, k], return_inverse=True)
            wins[rows] += _wins(level, place, np.argsort(place, kind="stable"), held)
            pairs[rows] += len(level) - held[level]
    total = float(pairs.sum())
    if not total:
        return Auc(float("nan"), float("nan"), float("nan"), 0.0)
    value = float(wins.sum()) / total
    own = (np.arange(len(truth)) if units is None else units)[pairs > 0]
    half = _half_width(2.0 * (wins - value * pairs)[pairs > 0] / total, own)
    effective = total**2 / (4.0 * float((_sums(pairs[pairs > 0], own) ** 2).sum()))
    return Auc(value, max(value - half, 0.0), min(value + half, 1.0), effective)


def _sums(values: Floats, units: Ints) -> Floats:
    """Return the sum of each unit's values."""
    return np.bincount(np.unique(units, return_inverse=True)[1], values).astype(np.float64, copy=False)


def _half_width(influence: Floats, units: Ints) -> float:
    """Return the half width of a 95 % interval from the rows' influences, summed within units.

    A quantile of Student's t (its expansion about the normal one), with Satterthwaite's degrees of freedom.
    """
    squares = _sums(influence, units) ** 2
    if len(squares) < 2:
        return float("inf")
    variance = float(squares.sum())
    if not variance:
        return 0.0
    freedom, z = variance**2 / float((squares**2).sum()), NORMAL_95
    first, second = (z**3 + z) / 4.0, (5.0 * z**5 + 16.0 * z**3 + 3.0 * z) / 96.0
    return (z + first / freedom + second / freedom**2) * variance**0.5


@njit
def _wins(level: Ints, place: Ints, order: Ints, held: Ints) -> Floats:
    """Return for each row how many rows of another score it is in the right order with; ties count ½.

    Args:
        level: (n,) rank of the score among the distinct ones.
        place: (n,) rank of the prediction among the distinct ones.
        order: (n,) rows by rising prediction.
        held: rows of each level.
    """
    levels = len(held)
    above = held.sum() - np.cumsum(held)
    tree = np.zeros(levels + 1, np.int64)  # Fenwick's: rows passed so far, by level
    passed = 0
    wins = np.zeros(len(level))
    first = 0
    while first < len(order):
        last = first
        while last < len(order) and place[order[last]] == place[order[first]]:
            last += 1
        # What is counted before and after a tie is passed, half each: within it nobody wins more than half.
        for after in range(2):
            for row in order[first:last]:
                less, upto = _passed_below(tree, level[row]), _passed_below(tree, level[row] + 1)
                wins[row] += 0.5 * (less + above[level[row]] - (passed - upto))
            if not after:
                for row in order[first:last]:
                    node = level[row] + 1
                    while node <= levels:
                        tree[node] += 1
                        node += node & -node
                passed += last - first
        first = last
    return wins


@njit
def _passed_below(tree: Ints, level: int) -> int:
    """Return how many rows of a level below `level` have been passed."""
    count = 0
    while level > 0:
        count += tree[level]
        level -= level & -level
    return count
