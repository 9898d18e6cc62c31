"""UniRoute's errors by cluster, worked by hand and against plain loops, and its deferral curve."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from routing_gym.quality.clusters import ClusterPredictor, deferral_curve

NAN = math.nan

pytest.importorskip("faiss", reason="FAISS is not installed")


def unit(rng: np.random.Generator, rows: int, dimension: int = 5) -> NDArray[np.float32]:
    vectors = rng.standard_normal((rows, dimension))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


EAST, NORTH, WEST = [1, 0], [0, 1], [-1, 0]


def by_hand() -> ClusterPredictor:
    """Three clusters; the validation prompts are in the first two, and one of them has no embedding."""
    return ClusterPredictor.fit(
        [EAST, [0.8, 0.6], NORTH, WEST],
        [EAST, EAST, NORTH, NORTH, [NAN, NAN]],
        [[1, 0], [0.5, 0], [0, NAN], [1, NAN], [1, 1]],
        clusters=3,
        seed=0,
    )


def test_errors_by_hand() -> None:
    found = by_hand()
    # The model's means over all five are .7 and 1/3; only a saw the north, and nobody the west.
    np.testing.assert_allclose(found.mean_errors, [0.3, 2 / 3])
    asked = found.predict([EAST, [0.6, 0.8], NORTH, WEST, [NAN, NAN]])
    east, north, mean = [0.25, 1.0], [0.5, 2 / 3], [0.3, 2 / 3]
    np.testing.assert_allclose(asked, [east, east, north, mean, mean])
    # Which of the rows is which is k-means' choice.
    assert sorted(found.counts.tolist()) == [[0, 0], [2, 0], [2, 2]]
    assert found.empty_cells == 3
    assert found.centroids.shape == (3, 2) and found.errors.shape == (3, 2)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), clusters=st.integers(1, 12), missing=st.sampled_from([0.0, 0.5, 0.9]))
def test_equals_plain_loops(seed: int, clusters: int, missing: float) -> None:
    rng = np.random.default_rng(seed)
    profile, validation, queries = unit(rng, 40), unit(rng, 30), unit(rng, 20)
    scores = rng.random((30, 3))
    scores[rng.random((30, 3)) < missing] = NAN
    scores[0] = rng.random(3)
    validation[rng.random(30) < 0.1] = NAN
    found = ClusterPredictor.fit(profile, validation, scores, clusters=clusters, seed=seed)
    assert len(found.centroids) == clusters

    def cluster_of(vector: Any) -> int:
        if np.isnan(vector).any():
            return -1
        return int(
            np.argmin([np.sum((vector.astype(float) - c) ** 2) for c in found.centroids.astype(float)])
        )

    homes, empty = [cluster_of(vector) for vector in validation], 0
    for model in range(3):
        known = [score for score in scores[:, model] if not math.isnan(score)]
        mean = 1 - sum(known) / len(known)
        for c in range(clusters):
            inside = [
                score
                for score, home in zip(scores[:, model], homes, strict=True)
                if home == c and not math.isnan(score)
            ]
            empty += not inside
            assert found.counts[c, model] == len(inside)
            assert found.errors[c, model] == pytest.approx(1 - sum(inside) / len(inside) if inside else mean)
    assert found.empty_cells == empty
    predicted = found.predict(queries)
    for query, row in zip(queries, predicted, strict=True):
        assert row.tolist() == found.errors[cluster_of(query)].tolist()
    assert ((predicted >= 0) & (predicted <= 1)).all()


def test_k_means_ends_where_each_centroid_is_the_mean_of_its_prompts() -> None:
    rng = np.random.default_rng(0)
    middles = unit(rng, 6, 12)
    points = middles[rng.integers(6, size=300)] + 0.05 * unit(rng, 300, 12)
    found = ClusterPredictor.fit(points, points[:1], [[1]], clusters=6, seed=3)
    home = np.argmin(((points[:, None] - found.centroids) ** 2).sum(axis=2), axis=1)
    due = np.stack([points[home == c].mean(axis=0) for c in range(6)])
    np.testing.assert_allclose(found.centroids, due, atol=1e-5)


@pytest.mark.parametrize("seed", [0, 1, 2**31, 2**32 - 1])
def test_the_same_seed_gives_the_same_clusters(seed: int) -> None:
    rng = np.random.default_rng(0)
    profile, validation, scores = unit(rng, 200), unit(rng, 50), rng.random((50, 2))
    one, other = (ClusterPredictor.fit(profile, validation, scores, clusters=7, seed=seed) for _ in range(2))
    for name in ("centroids", "errors", "counts", "mean_errors"):
        assert getattr(one, name).tobytes() == getattr(other, name).tobytes()


def test_another_seed_gives_other_clusters() -> None:
    rng = np.random.default_rng(0)
    profile, validation, scores = unit(rng, 200), unit(rng, 50), rng.random((50, 2))
    one, other = (ClusterPredictor.fit(profile, validation, scores, clusters=7, seed=seed) for seed in (0, 1))
    assert not np.array_equal(np.sort(one.centroids, axis=0), np.sort(other.centroids, axis=0))


def test_never_more_clusters_than_prompts(capfd: pytest.CaptureFixture[str]) -> None:
    found = ClusterPredictor.fit([EAST, NORTH, WEST], [EAST], [[0.25]], clusters=40, seed=0)
    assert sorted(found.centroids.tolist()) == sorted([EAST, NORTH, WEST])
    assert found.predict([EAST, NORTH]).tolist() == [[0.75], [0.75]] and found.empty_cells == 2
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"profile": np.empty((0, 2))}, "embeddings to cluster have shape (0, 2); must be (1 or more, D)"),
        ({"profile": [1, 0]}, "embeddings to cluster have shape (2,)"),
        ({"validation": [[1, 0, 0]]}, "validation embeddings have shape (1, 3) and scores (1, 2)"),
        ({"scores": [[1, 1], [1, 1]]}, "and scores (2, 2); must be (v, 2) and (v, K)"),
        ({"scores": [1]}, "and scores (1,)"),
        ({"scores": [[1, NAN]]}, "the model in column 1 has no recorded score"),
    ],
)
def test_what_cannot_be_fitted(change: dict[str, Any], message: str) -> None:
    good: dict[str, Any] = {"profile": [EAST, NORTH], "validation": [EAST], "scores": [[1, 0]]}
    with pytest.raises(ValueError, match=re.escape(message)):
        ClusterPredictor.fit(**{**good, **change}, clusters=1, seed=0)


@pytest.mark.parametrize("queries", [[1, 0], [[1, 0, 0]]])
def test_queries_of_another_shape(queries: Any) -> None:
    with pytest.raises(ValueError, match=re.escape("must be (q, 2)")):
        by_hand().predict(queries)


# The deferral curve


def test_the_deferral_curve_by_hand() -> None:
    curve = deferral_curve(
        errors=[[0.1, 0.5], [0.4, 0.5], [0.3, 0.3]],
        prices=[20, 2],
        scores=[[1, 0], [0.5, 0.75], [NAN, 0.25]],
        costs=[[3, 1], [6, 2], [9, NAN]],
        weights=[0.0, 0.01, 0.1],
    )
    # λ = 0: the first model for all (ties go to it); .18 of price turns the second and the third; then all.
    assert curve.weights.tolist() == [0, 0.01, 0.1]
    assert curve.scores.tolist() == pytest.approx([0.75, (1 + 0.75 + 0.25) / 3, (0 + 0.75 + 0.25) / 3])
    assert curve.costs.tolist() == pytest.approx([6, 2.5, 1.5])
    assert curve.rows.tolist() == [2, 3, 3]


def test_a_curve_without_records_is_nan() -> None:
    curve = deferral_curve([[0.0, 1.0]], [1, 0], [[NAN, 1]], [[NAN, NAN]], [0.0, 5.0])
    np.testing.assert_array_equal(curve.scores, [NAN, 1])
    np.testing.assert_array_equal(curve.costs, [NAN, NAN])
    assert curve.rows.tolist() == [0, 1]


@given(seed=st.integers(0, 2**32 - 1))
def test_a_higher_weight_never_chooses_dearer_models(seed: int) -> None:
    rng = np.random.default_rng(seed)
    errors, prices = rng.random((20, 4)), rng.integers(0, 9, 4)
    curve = deferral_curve(errors, prices, 1 - errors, np.tile(prices, (20, 1)), np.linspace(0, 1, 9))
    assert (np.diff(curve.costs) <= 1e-12).all() and (np.diff(curve.scores) <= 1e-12).all()
    assert curve.scores[0] == pytest.approx((1 - errors.min(axis=1)).mean())
    assert curve.rows.tolist() == [20] * 9
