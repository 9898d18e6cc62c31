"""UniRoute's predictor: the error of each model on a cluster of prompts ("CEMA-Router", section V-B)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from routing_gym.common.config import packaged
from routing_gym.quality.folder import import_faiss
from routing_gym.quality.store import column_means

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class ClusterPredictor:
    """Clusters of prompts, and each model's mean error there.

    Attributes:
        centroids: (C, D) float32.
        errors: (C, K) 1 − mean recorded score; in an empty cell, the model's mean error.
        counts: (C, K) recorded scores that a cell rests on; 0 is an empty cell.
        mean_errors: (K,) 1 − mean recorded score over all validation prompts.
    """

    centroids: NDArray[np.float32]
    errors: Floats
    counts: Ints
    mean_errors: Floats

    @classmethod
    def fit(
        cls,
        profile: ArrayLike,
        validation: ArrayLike,
        scores: ArrayLike,
        *,
        clusters: int,
        seed: int,
    ) -> ClusterPredictor:
        """Cluster the profiled prompts by k-means, and take the errors from the validation prompts.

        Args:
            profile: (p, D) embeddings to cluster.
            validation: (v, D) embeddings; rows of NaN are in no cluster and count for the models' means only.
            scores: (v, K) recorded for the validation prompts; NaN where not recorded.
            clusters: how many, at most: never more than profiled prompts.
            seed: of k-means. The same seed and prompts give the same clusters.

        Raises:
            ImportError: FAISS is not installed.
            ValueError: shapes do not fit, there is nothing to cluster, or a model has no recorded score.
        """
        points = np.ascontiguousarray(profile, np.float32)
        recorded = np.asarray(scores, np.float64)
        asked = np.asarray(validation, np.float32)
        if points.ndim != 2 or not len(points):
            raise ValueError(f"embeddings to cluster have shape {points.shape}; must be (1 or more, D)")
        if asked.shape != (len(recorded), points.shape[1]) or recorded.ndim != 2:
            raise ValueError(
                f"validation embeddings have shape {asked.shape} and scores {recorded.shape}; must be "
                f"(v, {points.shape[1]}) and (v, K)"
            )
        means = 1.0 - column_means(recorded)
        if np.isnan(means).any():
            raise ValueError(
                f"the model in column {np.flatnonzero(np.isnan(means))[0]} has no recorded score"
            )
        centroids = _kmeans(points, min(clusters, len(points)), seed)
        cluster = _nearest(centroids, asked)
        counts = np.zeros((len(centroids), recorded.shape[1]), np.int64)
        errors = np.tile(means, (len(centroids), 1))
        for c in range(len(centroids)):
            inside = recorded[cluster == c]
            counts[c] = (~np.isnan(inside)).sum(axis=0)
            errors[c] = np.where(counts[c] > 0, 1.0 - column_means(inside), means)
        return cls(centroids, errors, counts, means)

    @property
    def empty_cells(self) -> int:
        """Pairs of cluster and model without a validation score, where the model's mean error stands in."""
        return int((self.counts == 0).sum())

    def predict(self, queries: ArrayLike) -> Floats:
        """Return (q, K) errors of the clusters of q prompts, given their (q, D) embeddings.

        A row of NaN is a prompt without embedding, which gets the models' mean errors.

        Raises:
            ValueError: the shape is not (q, D).
        """
        asked = np.asarray(queries, np.float32)
        if asked.ndim != 2 or asked.shape[1] != self.centroids.shape[1]:
            raise ValueError(f"queries have shape {asked.shape}; must be (q, {self.centroids.shape[1]})")
        cluster = _nearest(self.centroids, asked)
        return np.where((cluster >= 0)[:, None], self.errors[cluster], self.mean_errors)


class DeferralCurve(NamedTuple):
    """What UniRoute's choices score and cost as λ grows.

    Attributes:
        weights: (L,) λ.
        scores: (L,) mean recorded score of the models chosen; NaN if none is recorded.
        costs: (L,) mean recorded cost of the models chosen, USD per request; NaN if none is recorded.
        rows: (L,) prompts for which the chosen model's score is recorded.
    """

    weights: Floats
    scores: Floats
    costs: Floats
    rows: Ints


def deferral_curve(
    errors: ArrayLike, prices: ArrayLike, scores: ArrayLike, costs: ArrayLike, weights: ArrayLike
) -> DeferralCurve:
    """Let UniRoute choose at each λ: argmin error + λ·price, ties to the first model (DESIGN 5).

    Args:
        errors: (q, K) as `ClusterPredictor.predict` returns them.
        prices: (K,) what λ is multiplied with, in whatever unit.
        scores: (q, K) recorded; NaN where not recorded.
        costs: (q, K) recorded, USD; NaN where not recorded.
        weights: (L,) the λ to try.
    """
    error, price = np.asarray(errors, np.float64), np.asarray(prices, np.float64)
    table = np.stack([np.asarray(scores, np.float64), np.asarray(costs, np.float64)], axis=-1)
    swept = np.asarray(weights, np.float64)
    means, rows = np.empty((len(swept), 2)), np.empty(len(swept), np.int64)
    for i, weight in enumerate(swept):
        chosen = table[np.arange(len(error)), np.argmin(error + weight * price, axis=1)]
        means[i], rows[i] = column_means(chosen), (~np.isnan(chosen[:, 0])).sum()
    return DeferralCurve(swept, means[:, 0], means[:, 1], rows)


def _kmeans(points: NDArray[np.float32], clusters: int, seed: int) -> NDArray[np.float32]:
    faiss = import_faiss()
    kmeans = faiss.Kmeans(
        points.shape[1],
        clusters,
        niter=packaged("quality", "default")["kmeans"]["iterations"],
        seed=seed % 2**31,  # FAISS's is a signed int
        min_points_per_centroid=1,  # else it warns on stderr
        max_points_per_centroid=len(points),  # else it draws a sample
    )
    kmeans.train(points)
    return kmeans.centroids


def _nearest(centroids: NDArray[np.float32], queries: NDArray[np.float32]) -> Ints:
    """Return the nearest centroid of each query, and -1 for a row of NaN."""
    middle, asked = centroids.astype(np.float64), queries.astype(np.float64)
    distance = (middle**2).sum(axis=1) - 2.0 * asked @ middle.T
    return np.where(np.isnan(asked).any(axis=1), -1, np.argmin(distance, axis=1))
