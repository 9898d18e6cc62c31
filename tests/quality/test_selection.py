"""Cross-validation of K, the threshold and the number of clusters: against plain loops, without leaks."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from routing_gym.common.config import packaged
from routing_gym.quality.assessment import auc
from routing_gym.quality.clusters import ClusterPredictor
from routing_gym.quality.columns import load_columns
from routing_gym.quality.selection import (
    ClusterTrial,
    Trial,
    choose,
    cross_validate,
    cross_validate_clusters,
)
from routing_gym.quality.settings import FitSettings
from routing_gym.quality.splits import prompt_keys, split_by_prompt
from routing_gym.quality.store import RetrievalStore
from routing_gym.quality.tables import read_table
from routing_gym.quality.vectors import read_embeddings

pytest.importorskip("faiss", reason="FAISS is not installed")

NAN = math.nan
DATA = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "routerbench_subset"
GRID: dict[str, Any] = {"neighbours": [1, 3, 9], "thresholds": [0.4, -1.0, 0.0], "folds": 4, "seed": 2}


def unit(rng: np.random.Generator, rows: int, dimension: int = 4) -> NDArray[np.float32]:
    vectors = rng.standard_normal((rows, dimension))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def case(rows: int = 80) -> tuple[list[str], NDArray[np.float32], NDArray[np.float64]]:
    rng = np.random.default_rng(0)
    scores = rng.random((rows, 2))
    scores[rng.random((rows, 2)) < 0.2] = NAN
    return [f"key {row % 70}" for row in range(rows)], unit(rng, rows), scores


def parts(keys: list[str], folds: int, seed: int) -> NDArray[np.int64]:
    """Return the fold of each row."""
    prompts = sorted(set(keys))
    order = np.random.default_rng(seed).permutation(len(prompts)) % folds
    return np.array([order[prompts.index(key)] for key in keys])


def figures(scores: NDArray[np.float64], predicted: NDArray[np.float64]) -> tuple[float, float, float]:
    error = [p - s for s, p in zip(scores.ravel(), predicted.ravel(), strict=True) if not math.isnan(s)]
    squares, sizes = [e * e for e in error], [abs(e) for e in error]
    return sum(squares) / len(error), sum(sizes) / len(error), auc(scores, predicted).value


def test_every_setting_is_a_store_of_the_other_folds() -> None:
    keys, vectors, scores = case()
    fold = parts(keys, 4, 2)
    trials = cross_validate(keys, vectors, scores, **GRID)
    assert [trial[:2] for trial in trials] == [(k, t) for k in (1, 3, 9) for t in (0.4, -1.0, 0.0)]
    for trial in trials:
        predicted, found = np.empty_like(scores), np.empty(len(keys))
        for part in range(4):
            inside, outside = np.flatnonzero(fold != part), np.flatnonzero(fold == part)
            store = RetrievalStore(["a", "b"], neighbours=trial.neighbours, threshold=trial.threshold)
            store.add([str(row) for row in inside], vectors[inside], scores[inside], scores[inside])
            predicted[outside], _, found[outside] = store.predict(vectors[outside])
        assert trial[2:5] == pytest.approx(figures(scores, predicted))
        assert trial.found == pytest.approx(found.mean())


def test_every_number_of_clusters_is_fitted_to_the_other_folds() -> None:
    keys, vectors, scores = case()
    profile = unit(np.random.default_rng(1), 50)
    fold = parts(keys, 4, 2)
    trials = cross_validate_clusters(profile, keys, vectors, scores, clusters=[1, 6], folds=4, seed=2)
    assert [trial.clusters for trial in trials] == [1, 6]
    for trial in trials:
        predicted = np.empty_like(scores)
        for part in range(4):
            fitted = ClusterPredictor.fit(
                profile, vectors[fold != part], scores[fold != part], clusters=trial.clusters, seed=2
            )
            predicted[fold == part] = 1 - fitted.predict(vectors[fold == part])
        assert trial[1:] == pytest.approx(figures(scores, predicted))


def test_a_duplicate_predicts_nothing() -> None:
    """Rows of equal key score the same, others by chance: a leak would make the nearest perfect."""
    rng = np.random.default_rng(0)
    vectors = np.repeat(unit(rng, 200, 16), 2, axis=0)
    scores = np.repeat(rng.integers(0, 2, (200, 1)), 2, axis=0).astype(float)
    keys = np.repeat([f"key {row}" for row in range(200)], 2)
    settings: dict[str, Any] = {"neighbours": [1], "thresholds": [0.0], "folds": 5, "seed": 0}
    [apart] = cross_validate([str(row) for row in range(400)], vectors, scores, **settings)
    [together] = cross_validate(keys.tolist(), vectors, scores, **settings)
    assert apart.mse < 0.2 and together.mse > 0.4


def test_the_order_of_rows_does_not_matter_and_those_without_embedding_do_not_count() -> None:
    keys, vectors, scores = case()
    due = cross_validate(keys, vectors, scores, **GRID)
    assert cross_validate(keys, vectors, scores, **GRID) == due
    order = np.random.default_rng(1).permutation(80)
    moved = cross_validate([keys[row] for row in order], vectors[order], scores[order], **GRID)
    np.testing.assert_allclose(moved, due)
    more = cross_validate(
        [*keys, "further"], np.vstack([vectors, np.full((1, 4), NAN)]), np.vstack([scores, [[1, 1]]]), **GRID
    )
    assert more == due
    assert cross_validate(keys, vectors, scores, **{**GRID, "seed": 3}) != due


def test_the_least_squared_error_is_chosen_and_fewer_neighbours_among_equals() -> None:
    trials = [
        Trial(80, 0.0, 0.2, 0.1, 0.9, 80.0),
        Trial(40, 0.5, 0.1, 0.3, 0.6, 40.0),
        Trial(20, 0.5, 0.1, 0.3, 0.6, 20.0),
        Trial(20, 0.3, 0.1, 0.3, 0.6, 20.0),
    ]
    assert choose(trials) == choose(trials[::-1]) == trials[3]
    clusters = [ClusterTrial(9, 0.1, 0.1, 0.5), ClusterTrial(3, 0.1, 0.2, 0.5), ClusterTrial(1, 0.2, 0, 1)]
    assert choose(clusters) == clusters[1]


@pytest.mark.parametrize("folds", [1, 71])
def test_folds_that_are_refused(folds: int) -> None:
    keys, vectors, scores = case()
    message = f"folds = {folds}: must be between 2 and the number of distinct prompts with an embedding, 70"
    with pytest.raises(ValueError, match=re.escape(message)):
        cross_validate(keys, vectors, scores, **{**GRID, "folds": folds})


def test_counts_that_do_not_fit() -> None:
    keys, vectors, scores = case()
    with pytest.raises(ValueError, match="there are 79 keys, 80 embeddings and 80 rows of scores"):
        cross_validate(keys[1:], vectors, scores, **GRID)


def test_the_shipped_settings_are_on_routerbench_s_plateau() -> None:
    if not DATA.is_dir():
        pytest.skip(f"no RouterBench subset at {DATA}")
    table = read_table(
        DATA / "routerbench_0shot_subset.csv.gz",
        load_columns("routerbench"),
        DATA / "prompts_mmlu_gsm8k.csv.gz",
    )
    vectors = read_embeddings(DATA / "minilm_int8_embeddings.npz", table)
    settings, grid = FitSettings.model_validate({}), packaged("quality", "default")["cross_validation"]
    keys = prompt_keys(table, vectors)
    split = split_by_prompt(keys, settings)
    shared = {"folds": grid["folds"], "seed": settings.seed}

    def rows(side: NDArray[np.int64]) -> tuple[list[str], NDArray[np.float32], NDArray[np.float64]]:
        return [keys[row] for row in side], vectors[side], table.scores[side]

    trials = cross_validate(
        *rows(split.profile), neighbours=grid["neighbours"], thresholds=grid["thresholds"], **shared
    )
    by_setting = {trial[:2]: trial for trial in trials}
    shipped, best = by_setting[settings.neighbours, settings.threshold], choose(trials)
    assert shipped.mse < 1.002 * best.mse and shipped.neighbours == best.neighbours
    recorded = table.scores[split.profile][~np.isnan(vectors[split.profile]).any(axis=1)]
    of_the_mean = np.nanmean((recorded - np.nanmean(recorded, axis=0)) ** 2)
    assert shipped.mse < 0.92 * of_the_mean and shipped.auc > 0.67
    clusters = cross_validate_clusters(
        vectors[split.profile], *rows(split.validation), clusters=grid["clusters"], **shared
    )
    [shipped_clusters] = [trial for trial in clusters if trial.clusters == settings.clusters]
    assert shipped_clusters.mse < 1.01 * choose(clusters).mse
