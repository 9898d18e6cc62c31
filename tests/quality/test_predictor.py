"""Quality prediction from a table: which rows go where, that nothing leaks, and folders."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from routing_gym.quality import folder as saved
from routing_gym.quality.clusters import ClusterPredictor
from routing_gym.quality.folder import ARRAYS, INDEX, MANIFEST, FolderError
from routing_gym.quality.predictor import QualityPredictor
from routing_gym.quality.settings import FitSettings
from routing_gym.quality.splits import prompt_keys, split_by_prompt
from routing_gym.quality.store import RetrievalStore
from routing_gym.quality.tables import OutcomeTable

pytest.importorskip("faiss", reason="FAISS is not installed")

NAN = math.nan
MODELS = ("a", "b", "c")
SETTINGS = FitSettings(profile=0.4, validation=0.3, seed=1, neighbours=4, threshold=0.1, clusters=5)
ROWS, DIMENSION = 120, 6


def case() -> tuple[OutcomeTable, NDArray[np.float32]]:
    """Return prompts of which every fourth is asked again in other letters, and some have no embedding."""
    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((ROWS, DIMENSION))
    vectors[rng.random(ROWS) < 0.1] = NAN
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    scores, tokens = rng.random((ROWS, 3)), rng.integers(1, 99, (ROWS, 3)).astype(float)
    scores[rng.random((ROWS, 3)) < 0.2] = NAN
    tokens[rng.random((ROWS, 3)) < 0.2] = NAN
    asked = [row - 1 if row % 4 == 1 else row for row in range(ROWS)]
    table = OutcomeTable(
        source="outcomes.csv",
        ids=tuple(f"id {row}" for row in range(ROWS)),
        prompts=tuple(f"{'WHAT' if row % 4 else 'What'}  is {number}?" for row, number in enumerate(asked)),
        groups=("",) * ROWS,
        models=MODELS,
        prompt_tokens=np.full(ROWS, 9.0),
        scores=scores,
        completion_tokens=tokens,
        costs=np.full((ROWS, 3), NAN),
    )
    return table, vectors.astype(np.float32)


TABLE, VECTORS = case()
KEYS = prompt_keys(TABLE, VECTORS)
SPLIT = split_by_prompt(KEYS, SETTINGS)
QUERIES = VECTORS[~np.isnan(VECTORS).any(axis=1)][:30]


def state(fitted: QualityPredictor) -> dict[str, bytes]:
    """Return all that a predictor is made of."""
    details, arrays, index = fitted.store.contents()
    found = {name: values.tobytes() for name, values in arrays.items()}
    for name in ("centroids", "errors", "counts", "mean_errors"):
        found[name] = getattr(fitted.clusters, name).tobytes()
    found["vectors"] = index.reconstruct_n(0, index.ntotal).tobytes()
    found["details"] = json.dumps(details).encode()
    for name in ("profile_marks", "validation_marks"):
        found[name] = repr(sorted(getattr(fitted, name))).encode()
    found["validation"] = fitted.validation.tobytes()
    return found


def fit(table: OutcomeTable = TABLE, vectors: Any = VECTORS) -> QualityPredictor:
    return QualityPredictor.fit(table, vectors, SETTINGS)


def rescored(rows: NDArray[np.int64]) -> OutcomeTable:
    """Return the table with other outcomes in some rows."""
    scores, tokens = TABLE.scores.copy(), TABLE.completion_tokens.copy()
    scores[rows], tokens[rows] = np.random.default_rng(9).random((len(rows), 3)), 1000.0
    return replace(TABLE, scores=scores, completion_tokens=tokens)


# Which rows go where


def test_it_is_a_store_of_the_profile_rows_and_clusters_with_errors_of_the_validation_rows() -> None:
    fitted = fit()
    store = RetrievalStore(MODELS, neighbours=4, threshold=0.1)
    profile, validation = SPLIT.profile, SPLIT.validation
    store.add(
        [TABLE.ids[row] for row in profile],
        VECTORS[profile],
        TABLE.scores[profile],
        TABLE.completion_tokens[profile],
    )
    for found, due in zip(fitted.predict(VECTORS), store.predict(VECTORS), strict=True):
        np.testing.assert_array_equal(found, due)
    assert fitted.store.ids == tuple(TABLE.ids[row] for row in profile)
    embedded = VECTORS[profile][~np.isnan(VECTORS[profile]).any(axis=1)]
    assert len(embedded) < len(profile)
    clusters = ClusterPredictor.fit(
        embedded, VECTORS[validation], TABLE.scores[validation], clusters=5, seed=1
    )
    np.testing.assert_array_equal(fitted.cluster_error(VECTORS), clusters.predict(VECTORS))
    assert fitted.models == MODELS and fitted.settings == SETTINGS


def test_the_means_are_those_of_all_profile_rows() -> None:
    fitted = fit()
    np.testing.assert_allclose(fitted.store.means.scores, np.nanmean(TABLE.scores[SPLIT.profile], axis=0))
    np.testing.assert_allclose(
        fitted.clusters.mean_errors, 1 - np.nanmean(TABLE.scores[SPLIT.validation], axis=0)
    )
    predicted = fitted.predict(np.full((1, DIMENSION), NAN))
    assert predicted.scores[0].tolist() == fitted.store.means.scores.tolist()


# Leaks


def test_no_prompt_nor_its_duplicate_is_on_two_sides() -> None:
    texts = [
        {" ".join(str(TABLE.prompts[row]).lower().split()) for row in rows}
        for rows in (SPLIT.profile, SPLIT.validation, SPLIT.test)
    ]
    assert all(texts) and sum(map(len, texts)) == len(set.union(*texts)) == ROWS * 3 // 4


def test_the_outcomes_of_test_rows_change_nothing() -> None:
    due = state(fit())
    assert state(fit(rescored(SPLIT.test))) == due
    nothing = TABLE.scores.copy()
    nothing[SPLIT.test] = NAN
    assert state(fit(replace(TABLE, scores=nothing))) == due


def test_leaving_out_test_rows_changes_nothing() -> None:
    kept = np.sort(np.concatenate([SPLIT.profile, SPLIT.validation]))
    assert state(fit(TABLE.take(kept), VECTORS[kept])) == state(fit())


def test_validation_rows_are_not_retrieved_and_profile_rows_make_no_errors() -> None:
    due = state(fit())
    changed = {name for name, value in state(fit(rescored(SPLIT.validation))).items() if value != due[name]}
    assert changed and changed <= {"errors", "counts", "mean_errors"}
    changed = {name for name, value in state(fit(rescored(SPLIT.profile))).items() if value != due[name]}
    assert changed == {"scores", "tokens"}


def test_held_out_rows_are_those_of_the_test_side() -> None:
    fitted = fit()
    assert np.flatnonzero(fitted.held_out(TABLE, VECTORS)).tolist() == SPLIT.test.tolist()
    # Also in another table, with other ids, of which some prompts were used here.
    rows = np.arange(ROWS)[::-7]
    other = replace(TABLE.take(rows), ids=tuple(f"other {row}" for row in rows))
    due = np.isin(rows, SPLIT.test).tolist()
    assert fitted.held_out(other, VECTORS[rows]).tolist() == due
    assert fitted.held_out(other.take([])).shape == (0,)


def test_a_prompt_is_known_again_by_its_text_or_by_its_embedding() -> None:
    """Also where another of equal embedding, whose text gave both their key, is not there."""
    usable = [row for row in SPLIT.profile if TABLE.prompts[row] and not np.isnan(VECTORS[row, 0])]
    one, two = usable[:2]
    vectors = VECTORS.copy()
    vectors[two] = vectors[one]
    fitted = fit(vectors=vectors)
    for row in (one, two):
        alone, vector = TABLE.take([row]), vectors[[row]]
        without_text = replace(alone, prompts=(None,), ids=("another",))
        reworded = replace(alone, prompts=("quite another text",))
        for table, known in ((alone, vector), (alone, None), (without_text, vector), (reworded, vector)):
            assert fitted.held_out(table, known).tolist() == [False]
        assert fitted.held_out(without_text).tolist() == [True]


def test_fitting_is_deterministic() -> None:
    np.random.seed(5)
    first = state(fit())
    np.random.seed(6)
    assert state(fit()) == first


# What is refused


@pytest.mark.parametrize("side", ["profile", "validation"])
def test_a_model_without_scores_on_a_side(side: str) -> None:
    rows = getattr(SPLIT, side)
    scores = TABLE.scores.copy()
    scores[rows, 1:] = NAN
    message = f"outcomes.csv: none of the {len(rows)} {side} rows has a score of b, c;"
    with pytest.raises(ValueError, match=re.escape(message)):
        fit(replace(TABLE, scores=scores))


def test_no_embeddings_among_the_profile_rows() -> None:
    vectors = VECTORS.copy()
    vectors[SPLIT.profile] = NAN
    with pytest.raises(ValueError, match=f"none of the {len(SPLIT.profile)} profile rows has an embedding"):
        fit(vectors=vectors)


@pytest.mark.parametrize("shape", [(ROWS - 1, DIMENSION), (ROWS,)])
def test_embeddings_of_another_shape(shape: tuple[int, ...]) -> None:
    message = f"embeddings have shape {shape}; must be ({ROWS}, D)"
    with pytest.raises(ValueError, match=re.escape(message)):
        fit(vectors=np.ones(shape))


# Folders


def test_it_comes_back_to_the_last_bit(tmp_path: Path) -> None:
    fitted = fit()
    fitted.save(tmp_path / "saved")
    again = QualityPredictor.load(tmp_path / "saved")
    assert state(again) == state(fitted)
    for found, due in zip(again.predict(VECTORS), fitted.predict(VECTORS), strict=True):
        np.testing.assert_array_equal(found, due, strict=True)
    np.testing.assert_array_equal(again.cluster_error(VECTORS), fitted.cluster_error(VECTORS), strict=True)
    assert again.settings == SETTINGS and again.models == MODELS
    assert again.clusters.empty_cells == fitted.clusters.empty_cells
    with pytest.raises(FolderError, match="is there already"):
        fitted.save(tmp_path / "saved")
    again.save(tmp_path / "saved", overwrite=True)
    assert state(QualityPredictor.load(tmp_path / "saved")) == state(fitted)


@pytest.mark.parametrize("name", [INDEX, ARRAYS, MANIFEST])
def test_a_damaged_folder_is_refused(tmp_path: Path, name: str) -> None:
    fit().save(tmp_path / "saved")
    path = tmp_path / "saved" / name
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(FolderError, match=re.escape(name)):
        QualityPredictor.load(path.parent)


@pytest.mark.parametrize(
    ("details", "message"),
    [
        ({"clusters": 4}, f"centroids has shape (5, {DIMENSION}); it must be (4, {DIMENSION})"),
        ({"models": ["a", "b"]}, ", 3); it must be ("),
        ({"dimension": 7}, f"index.faiss has {DIMENSION} dimensions; manifest.json says 7"),
        ({"profile_marks": 3}, "it must be (3,), after manifest.json"),
        ({"prompts": 3}, "it must be (3,), after manifest.json"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(tmp_path: Path, details: dict[str, Any], message: str) -> None:
    fit().save(tmp_path / "saved")
    signed(tmp_path / "saved", lambda said: said.update(details))
    with pytest.raises(FolderError, match=re.escape(message)):
        QualityPredictor.load(tmp_path / "saved")


def signed(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the details as if they had been written so, hashes of the files included."""
    manifest = json.loads((folder / MANIFEST).read_text())
    del manifest["sha256"]
    manifest["files"] = {name: saved._fingerprint(folder / name) for name in (INDEX, ARRAYS)}
    change(manifest["details"])
    (folder / MANIFEST).write_bytes(saved._rendered(manifest))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda said: said.pop("settings"), "details lack 'settings'"),
        (lambda said: said.pop("clusters"), "details lack 'clusters'"),
        (lambda said: said.pop("models"), "details lack 'models'"),
        (lambda said: said["settings"].update(profile=2), "FitSettings: profile = 2"),
        (lambda said: said["settings"].update(neighbours=1), "; settings say 1"),
        (lambda said: said.update(threshold=0.75), "threshold = 0.75; settings say "),
    ],
)
def test_details_that_are_missing_or_wrong(
    tmp_path: Path, change: Callable[[dict[str, Any]], object], message: str
) -> None:
    fit().save(tmp_path / "saved")
    signed(tmp_path / "saved", change)
    with pytest.raises(FolderError, match=re.escape(message)):
        QualityPredictor.load(tmp_path / "saved")


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("counts", -1, "counts holds -1; must be from 0 to"),
        ("errors", 1.5, "errors holds 1.5; must be from 0 to 1"),
        ("mean_errors", -1, "mean_errors holds -1; must be from 0 to 1"),
        ("centroids", np.inf, "centroids holds inf; must be from -1.001 to 1.001"),
        ("validation", 3, "validation holds 3; must be from -1.001 to 1.001"),
    ],
)
def test_arrays_that_hold_what_they_must_not(tmp_path: Path, name: str, value: float, message: str) -> None:
    fit().save(tmp_path / "saved")
    with np.load(tmp_path / "saved" / ARRAYS) as file:
        arrays = dict(file)
    arrays[name].flat[1] = value
    np.savez(tmp_path / "saved" / ARRAYS, **arrays)
    signed(tmp_path / "saved", lambda said: None)
    with pytest.raises(FolderError, match=re.escape(f"{ARRAYS}: {message}")):
        QualityPredictor.load(tmp_path / "saved")


def test_a_store_is_no_predictor(tmp_path: Path) -> None:
    fitted = fit()
    fitted.store.save(tmp_path / "store")
    fitted.save(tmp_path / "predictor")
    with pytest.raises(FolderError, match="kind = 'retrieval store'; expected 'quality predictor'"):
        QualityPredictor.load(tmp_path / "store")
    with pytest.raises(FolderError, match="kind = 'quality predictor'; expected 'retrieval store'"):
        RetrievalStore.load(tmp_path / "predictor")
