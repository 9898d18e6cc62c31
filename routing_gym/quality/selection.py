"""Choosing K, the threshold and the number of clusters by cross-validation, with the curve that shows why."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from routing_gym.quality.assessment import auc
from routing_gym.quality.clusters import ClusterPredictor
from routing_gym.quality.store import RetrievalStore, column_means, count, weighted_mean

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Trial(NamedTuple):
    """How well prompts left out are predicted with a K and a threshold; over all recorded scores.

    Attributes:
        neighbours: K of equation 1.
        threshold: cosine that a neighbour must exceed.
        mse: mean squared error.
        mae: mean absolute error.
        auc: area under the ROC curve; pairs are within models.
        found: mean number of neighbours that count.
    """

    neighbours: int
    threshold: float
    mse: float
    mae: float
    auc: float
    found: float


class ClusterTrial(NamedTuple):
    """How well prompts left out are predicted from their cluster; fields as in `Trial`."""

    clusters: int
    mse: float
    mae: float
    auc: float


AnyTrial = TypeVar("AnyTrial", Trial, ClusterTrial)


def cross_validate(
    keys: Sequence[str],
    embeddings: ArrayLike,
    scores: ArrayLike,
    *,
    neighbours: Sequence[int],
    thresholds: Sequence[float],
    folds: int,
    seed: int,
) -> list[Trial]:
    """Predict each prompt from the other folds by equation 1, with every K and threshold.

    Args:
        keys: (n,) prompt keys; rows of equal key are in the same fold.
        embeddings: (n, D) unit rows. Rows of NaN are left out: no setting changes what they get.
        scores: (n, K) recorded; NaN where not recorded.
        neighbours: values of K to try.
        thresholds: values to try.
        folds: how many parts.
        seed: of the parts.

    Raises:
        ImportError: FAISS is not installed.
        ValueError: there are fewer distinct prompts with an embedding than folds, or folds are fewer than 2.
    """
    names, vectors, recorded = _embedded(keys, embeddings, scores)
    settings = [(k, threshold) for k in neighbours for threshold in thresholds]
    predicted = np.empty((len(settings), *recorded.shape))
    found = np.empty((len(settings), len(recorded)))
    for inside, outside in _folds(names, folds, seed):
        models = [str(model) for model in range(recorded.shape[1])]
        store = RetrievalStore(models, neighbours=max(neighbours), threshold=min(thresholds))
        ids = [str(row) for row in inside]
        store.add(ids, vectors[inside], recorded[inside], np.full_like(recorded[inside], np.nan))
        similarity, rows = store.neighbours_of(vectors[outside])
        for i, (k, threshold) in enumerate(settings):
            near = similarity[:, :k]
            predicted[i, outside] = weighted_mean(
                near, store.scores, rows[:, :k], store.means.scores, threshold
            )
            found[i, outside] = count(near, threshold).sum(axis=1)
    return [
        Trial(k, threshold, *_errors(recorded, predicted[i]), float(found[i].mean()))
        for i, (k, threshold) in enumerate(settings)
    ]


def cross_validate_clusters(
    profile: ArrayLike,
    keys: Sequence[str],
    embeddings: ArrayLike,
    scores: ArrayLike,
    *,
    clusters: Sequence[int],
    folds: int,
    seed: int,
) -> list[ClusterTrial]:
    """Predict each validation prompt by the errors of the other folds in its cluster.

    Args:
        profile: (p, D) embeddings of the profiled prompts, which are clustered. Rows of NaN are left out.
        keys: (v,) keys of the validation prompts; rows of equal key are in the same fold.
        embeddings: (v, D) of the validation prompts. Rows of NaN are left out.
        scores: (v, K) recorded; NaN where not recorded.
        clusters: numbers of clusters to try.
        folds: how many parts.
        seed: of the parts and of k-means.

    Raises:
        ImportError: FAISS is not installed.
        ValueError: as in `cross_validate`, or a model has no recorded score outside a fold.
    """
    names, vectors, recorded = _embedded(keys, embeddings, scores)
    points = np.asarray(profile, np.float32)
    points = points[~np.isnan(points).any(axis=1)]
    trials = []
    for number in clusters:
        predicted = np.empty_like(recorded)
        for inside, outside in _folds(names, folds, seed):
            fitted = ClusterPredictor.fit(
                points, vectors[inside], recorded[inside], clusters=number, seed=seed
            )
            predicted[outside] = 1.0 - fitted.predict(vectors[outside])
        trials.append(ClusterTrial(number, *_errors(recorded, predicted)))
    return trials


def choose(trials: Sequence[AnyTrial]) -> AnyTrial:
    """Return the trial of the least mean squared error; ties go to fewer neighbours or clusters."""
    return min(trials, key=lambda trial: (trial.mse, *trial[:2]))


def _embedded(
    keys: Sequence[str], embeddings: ArrayLike, scores: ArrayLike
) -> tuple[NDArray[np.str_], NDArray[np.float32], Floats]:
    vectors, recorded = np.asarray(embeddings, np.float32), np.asarray(scores, np.float64)
    if not len(keys) == len(vectors) == len(recorded):
        raise ValueError(
            f"there are {len(keys)} keys, {len(vectors)} embeddings and {len(recorded)} rows of scores; "
            "must be as many of each"
        )
    known = ~np.isnan(vectors).any(axis=1)
    return np.asarray(keys, dtype=np.str_)[known], vectors[known], recorded[known]


def _folds(keys: NDArray[np.str_], folds: int, seed: int) -> Iterator[tuple[Ints, Ints]]:
    """Yield for each fold the rows outside it and those in it. The order of the rows does not matter."""
    prompts, prompt = np.unique(keys, return_inverse=True)
    if not 2 <= folds <= len(prompts):
        raise ValueError(
            f"folds = {folds}: must be between 2 and the number of distinct prompts with an embedding, "
            f"{len(prompts)}"
        )
    fold = (np.random.default_rng(seed).permutation(len(prompts)) % folds)[prompt]
    for k in range(folds):
        yield np.flatnonzero(fold != k), np.flatnonzero(fold == k)


def _errors(recorded: Floats, predicted: Floats) -> tuple[float, float, float]:
    """Return mean squared error, mean absolute error and AUC."""
    error = (predicted - recorded).reshape(-1, 1)
    squared, absolute = column_means(np.hstack([error**2, np.abs(error)]))
    return float(squared), float(absolute), auc(recorded, predicted).value
