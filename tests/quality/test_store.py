"""The retrieval store: equation 1 by hand and against a plain implementation, and what is refused."""

from __future__ import annotations

import math
import re
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from routing_gym.common.config import packaged
from routing_gym.quality import bench
from routing_gym.quality import store as module
from routing_gym.quality.store import Prediction, RetrievalStore

faiss = pytest.importorskip("faiss", reason="FAISS is not installed")

NAN = math.nan
MODELS = ("a", "b", "c")


def unit(rng: np.random.Generator, rows: int, dimension: int) -> NDArray[np.float32]:
    vectors = rng.standard_normal((rows, dimension))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def some(rng: np.random.Generator, rows: int, dimension: int = 6, missing: float = 0.3) -> dict[str, Any]:
    """Return prompts to add: half of the scores are 0 or 1, and some cells are not recorded."""
    scores = np.where(rng.random((rows, 3)) < 0.5, rng.integers(0, 2, (rows, 3)), rng.random((rows, 3)))
    tokens = rng.integers(1, 500, (rows, 3)).astype(float)
    scores[rng.random((rows, 3)) < missing] = NAN
    tokens[rng.random((rows, 3)) < missing] = NAN
    ids = [f"prompt {row}" for row in range(rows)]
    return {"ids": ids, "embeddings": unit(rng, rows, dimension), "scores": scores, "tokens": tokens}


def part(prompts: dict[str, Any], rows: slice) -> dict[str, Any]:
    return {name: values[rows] for name, values in prompts.items()}


def filled(prompts: dict[str, Any], neighbours: int = 5, threshold: float = 0.1) -> RetrievalStore:
    store = RetrievalStore(MODELS, neighbours=neighbours, threshold=threshold)
    store.add(**prompts)
    return store


def assert_same(one: Prediction, other: Prediction) -> None:
    for found, due in zip(one, other, strict=True):
        np.testing.assert_array_equal(found, due, strict=True)


# Equation 1 by hand


def by_hand(neighbours: int, threshold: float) -> RetrievalStore:
    """Cosines to (1, 0) are 1, .6, 0 and -1."""
    store = RetrievalStore(["a", "b"], neighbours=neighbours, threshold=threshold)
    store.add(
        ["east", "north-east", "north", "west"],
        [[1, 0], [0.6, 0.8], [0, 1], [-1, 0]],
        [[1, NAN], [0, 0.5], [1, 1], [1, 0]],
        [[10, 1], [50, 2], [NAN, 3], [30, 4]],
    )
    return store


@pytest.mark.parametrize(
    ("neighbours", "threshold", "scores", "tokens", "found"),
    [
        # (1·1 + .6·0)/1.6 and (1·10 + .6·50)/1.6; of b only the second is recorded.
        (2, 0.0, [0.625, 0.5], [25, (1 + 0.6 * 2) / 1.6], 2),
        (4, 0.5, [0.625, 0.5], [25, (1 + 0.6 * 2) / 1.6], 2),
        # Without a neighbour that has one, b gets its mean of .5, 1 and 0.
        (1, 0.0, [1, 0.5], [10, 1], 1),
        (4, 0.7, [1, 0.5], [10, 1], 1),
        # Neither a right angle nor an opposite weighs anything, whatever the threshold.
        (4, -1.0, [0.625, 0.5], [25, (1 + 0.6 * 2) / 1.6], 2),
        (100, -1.0, [0.625, 0.5], [25, (1 + 0.6 * 2) / 1.6], 2),
    ],
)
def test_equation_1(
    neighbours: int, threshold: float, scores: list[float], tokens: list[float], found: int
) -> None:
    predicted = by_hand(neighbours, threshold).predict([[1, 0]])
    assert predicted.scores[0].tolist() == pytest.approx(scores, abs=1e-7)
    assert predicted.tokens[0].tolist() == pytest.approx(tokens, abs=1e-5)
    assert predicted.found.tolist() == [found]


@pytest.mark.parametrize("query", [[-0.6, -0.8], [NAN, NAN]], ids=["like none", "without embedding"])
def test_without_neighbours_the_means(query: list[float]) -> None:
    store = by_hand(3, 0.7)
    predicted = store.predict([query])
    assert predicted.scores.tolist() == [[0.75, 0.5]]
    assert predicted.tokens.tolist() == [[30.0, 2.5]]
    assert predicted.found.tolist() == [0]
    assert (store.means.scores.tolist(), store.means.tokens.tolist()) == ([0.75, 0.5], [30.0, 2.5])


def test_a_neighbour_must_exceed_the_threshold() -> None:
    near = [[0.5, 0.5, 0.5, 0.5]]  # a cosine of exactly .5 to (1, 0, 0, 0)
    for threshold, found in ((0.5, 0), (np.nextafter(np.float32(0.5), np.float32(0)), 1)):
        store = RetrievalStore(["a"], neighbours=1, threshold=float(threshold))
        store.add(["x"], near, [[1]], [[5]])
        store.add(["y"], [[NAN] * 4], [[0]], [[NAN]])
        predicted = store.predict([[1, 0, 0, 0]])
        assert predicted.found.tolist() == [found]
        assert predicted.scores.tolist() == [[1.0 if found else 0.5]]


def test_neighbours_fall_by_cosine() -> None:
    similarity, row = by_hand(6, 0.9).neighbours_of([[1, 0], [NAN, NAN], [0, -1]])
    assert row.tolist() == [[0, 1, 2, 3, -1, -1], [-1] * 6, [0, 3, 1, 2, -1, -1]]
    due = [[1, 0.6, 0, -1, NAN, NAN], [NAN] * 6, [0, 0, -0.8, -1, NAN, NAN]]
    np.testing.assert_allclose(similarity, due, atol=1e-7)
    assert similarity.dtype == np.float32


def test_nothing_recorded_is_nan_and_a_prompt_without_embedding_counts_for_the_mean() -> None:
    store = RetrievalStore(["a", "b"], neighbours=3, threshold=0.0)
    store.add(["x", "y"], [[1, 0], [NAN, NAN]], [[0, NAN], [1, NAN]], [[NAN, NAN], [NAN, 8]])
    near, far = store.predict([[1, 0]]), store.predict([[-1, 0]])
    np.testing.assert_array_equal(near.scores, [[0, NAN]])
    np.testing.assert_array_equal(far.scores, [[0.5, NAN]])
    np.testing.assert_array_equal(near.tokens, [[NAN, 8]])
    assert store.neighbours_of([[1, 0]])[1].tolist() == [[0, -1, -1]]


def test_an_empty_store_and_one_without_embeddings() -> None:
    store = RetrievalStore(["a"], neighbours=2, threshold=0.3)
    assert np.isnan(store.predict([[1, 0]]).scores).all() and len(store) == 0
    store.add(["x"], [[NAN, NAN]], [[0.25]], [[7]])
    assert store.predict([[1, 0]]) == (0.25, 7, 0)


# Against a plain, slow implementation


def plain(
    prompts: dict[str, Any], queries: NDArray[Any], neighbours: int, threshold: float
) -> tuple[list[list[float]], list[int]]:
    """Return scores and counts by equation 1, in loops and double precision."""
    all_scores, counts = [], []
    for query in queries.astype(float):
        cosines = [
            (float(np.dot(vector.astype(float), query)), row)
            for row, vector in enumerate(prompts["embeddings"])
            if not np.isnan(vector).any()
        ]
        nearest = sorted(cosines, reverse=True)[:neighbours]
        kept = [(s, row) for s, row in nearest if s > threshold and s > 0]
        counts.append(len(kept))
        scores = []
        for model in range(len(MODELS)):
            column = prompts["scores"][:, model]
            rated = [(s, column[row]) for s, row in kept if not math.isnan(column[row])]
            known = [score for score in column if not math.isnan(score)]
            if rated:
                scores.append(sum(s * q for s, q in rated) / sum(s for s, _ in rated))
            else:
                scores.append(sum(known) / len(known) if known else NAN)
        all_scores.append(scores)
    return all_scores, counts


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    rows=st.integers(1, 60),
    dimension=st.integers(2, 9),
    neighbours=st.integers(1, 70),
    threshold=st.floats(-1, 0.95),
    missing=st.sampled_from([0.0, 0.3, 0.9]),
)
def test_equals_a_plain_implementation(
    seed: int, rows: int, dimension: int, neighbours: int, threshold: float, missing: float
) -> None:
    rng = np.random.default_rng(seed)
    prompts = some(rng, rows, dimension, missing)
    prompts["embeddings"][rng.random(rows) < 0.1] = NAN
    queries = unit(rng, 30, dimension)  # FAISS multiplies matrices from 20 on
    predicted = filled(prompts, neighbours, threshold).predict(queries)
    scores, counts = plain(prompts, queries, neighbours, threshold)
    np.testing.assert_allclose(predicted.scores, scores, atol=1e-5)
    assert predicted.found.tolist() == counts
    known = predicted.scores[~np.isnan(predicted.scores)]
    assert ((known >= 0) & (known <= 1)).all()
    alike = filled({**prompts, "tokens": prompts["scores"]}, neighbours, threshold).predict(queries)
    np.testing.assert_array_equal(alike.tokens, alike.scores)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), cuts=st.lists(st.integers(0, 80), max_size=4).map(sorted))
def test_adding_bit_by_bit_is_adding_at_once(seed: int, cuts: list[int]) -> None:
    rng = np.random.default_rng(seed)
    prompts, queries = some(rng, 80), unit(rng, 25, 6)
    prompts["embeddings"][rng.random(80) < 0.2] = NAN
    store = RetrievalStore(MODELS, neighbours=7, threshold=0.0)
    for first, last in zip([0, *cuts], [*cuts, 80], strict=True):
        store.add(**part(prompts, slice(first, last)))
    assert store.ids == tuple(prompts["ids"]) and len(store) == 80
    assert_same(store.predict(queries), filled(prompts, 7, 0.0).predict(queries))


def test_a_prediction_depends_on_nothing_else_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(3)
    queries = unit(rng, 50, 32)
    store = filled(some(rng, 400, 32))
    together = store.predict(queries)
    one_by_one = [store.predict(query[None]) for query in queries]
    assert_same(together, Prediction(*(np.concatenate(one) for one in zip(*one_by_one, strict=True))))
    monkeypatch.setattr(module, "PAIRS_AT_ONCE", 12)
    assert_same(together, store.predict(queries))


# The approximate index


@pytest.fixture(scope="module")
def many() -> dict[str, Any]:
    """Prompts just too many for the exact index, about 60 topics."""
    rng = np.random.default_rng(0)
    prompts = some(rng, packaged("quality", "default")["index"]["exact_up_to"] + 1, 16)
    near = prompts["embeddings"] + 2 * unit(rng, 60, 16)[rng.integers(60, size=len(prompts["ids"]))]
    prompts["embeddings"] = near / np.linalg.norm(near, axis=1, keepdims=True)
    return prompts


@pytest.fixture(scope="module")
def grown(many: dict[str, Any]) -> RetrievalStore:
    return filled(many, 10, 0.2)


def test_the_index_is_exact_up_to_a_size(many: dict[str, Any], grown: RetrievalStore) -> None:
    store = filled(part(many, slice(0, -1)))
    assert store.exact and not grown.exact
    store.add(**part(many, slice(-1, None)))
    assert not store.exact


def test_an_approximate_index_misses_few_and_its_cosines_are_exact(
    many: dict[str, Any], grown: RetrievalStore
) -> None:
    queries = many["embeddings"][::40]
    similarity, rows = grown.neighbours_of(queries)
    exact = queries @ many["embeddings"].T
    np.testing.assert_allclose(similarity, np.take_along_axis(exact, rows, axis=1), atol=1e-6)
    assert (np.diff(similarity, axis=1) <= 0).all()
    due = np.argsort(-exact, axis=1)[:, :10]
    assert np.mean([np.isin(a, b).mean() for a, b in zip(due, rows, strict=True)]) > 0.95


def test_building_it_twice_gives_the_same(many: dict[str, Any], grown: RetrievalStore) -> None:
    queries = many["embeddings"][::40]
    assert_same(filled(many, 10, 0.2).predict(queries), grown.predict(queries))
    one_by_one = [grown.predict(query[None]) for query in queries]
    assert_same(
        grown.predict(queries), Prediction(*(np.concatenate(one) for one in zip(*one_by_one, strict=True)))
    )


def test_it_is_trained_anew_when_the_store_has_grown_to_a_multiple(many: dict[str, Any]) -> None:
    rng = np.random.default_rng(5)
    store, count = filled(many, 10, 0.2), len(many["ids"])
    trained = []
    for step, rows in enumerate((count // 2, count - count // 2 - 1, 1, 10)):
        more = some(rng, rows, 16)
        store.add(**{**more, "ids": [f"{step} {name}" for name in more["ids"]]})
        trained.append(store.contents().details["trained_on"])
    assert trained == [count, count, 2 * count, 2 * count]
    assert len(store) == store.contents().index.ntotal == 2 * count + 10
    # What was added last is found, by its own embedding.
    similarity, row = store.neighbours_of(more["embeddings"])
    assert row[:, 0].tolist() == list(range(2 * count, 2 * count + 10))
    assert similarity[:, 0] == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize("dimension", [5, 10])
def test_any_dimension_will_do(dimension: int) -> None:
    rng = np.random.default_rng(0)
    store = filled(some(rng, packaged("quality", "default")["index"]["exact_up_to"] + 1, dimension))
    assert not store.exact and (store.predict(unit(rng, 5, dimension)).found > 0).all()


def test_nothing_is_printed(many: dict[str, Any], capfd: pytest.CaptureFixture[str]) -> None:
    filled(many).predict(many["embeddings"][:3])
    assert capfd.readouterr() == ("", "")


# What is refused


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ids": ["x", "x"]}, "row 1: id 'x' is there already"),
        ({"ids": ["x", "known"]}, "row 1: id 'known' is there already"),
        ({"ids": ["x"]}, "scores have shape (2, 2) and there are 2 embeddings; with 1 ids and 2 models they"),
        ({"embeddings": [[1, 0]]}, "there are 1 embeddings"),
        ({"embeddings": [[1, 0, 0], [1, 0, 0]]}, "embeddings have shape (2, 3); must be (prompts, 2)"),
        ({"embeddings": [1, 0]}, "embeddings have shape (2,); must be (prompts, 2)"),
        ({"embeddings": [[1, 0], [1, 1]]}, "embeddings, row 1: the norm is 1.41421; must be 1"),
        ({"embeddings": [[1, 0], [1, NAN]]}, "embeddings, row 1: the norm is nan"),
        ({"embeddings": [[math.inf, 0], [1, 0]]}, "embeddings, row 0: the norm is inf"),
        ({"embeddings": [[0, 0], [1, 0]]}, "embeddings, row 0: the norm is 0"),
        ({"scores": [[1, 1]]}, "scores have shape (1, 2)"),
        ({"scores": [[1, 1, 1], [1, 1, 1]]}, "scores have shape (2, 3)"),
        ({"scores": [[1, 1], [1, 1.5]]}, "row 1 ('y'), b: scores = 1.5; must be in [0, 1], or NaN"),
        ({"scores": [[-0.1, 1], [1, 1]]}, "row 0 ('x'), a: scores = -0.1"),
        ({"tokens": [[1, 1], [1, -5]]}, "row 1 ('y'), b: tokens = -5; must be finite, not negative"),
        ({"tokens": [[1, math.inf], [1, 5]]}, "row 0 ('x'), b: tokens = inf"),
        ({"tokens": [[1], [1]]}, "tokens have shape (2, 1)"),
    ],
)
def test_what_cannot_be_added(change: dict[str, Any], message: str) -> None:
    store = RetrievalStore(["a", "b"], neighbours=2, threshold=0.0)
    store.add(["known"], [[0, 1]], [[1, 0]], [[2, 3]])
    good = {
        "ids": ["x", "y"],
        "embeddings": [[1, 0], [0.6, 0.8]],
        "scores": [[1, 1], [0, NAN]],
        "tokens": [[1, 1], [NAN, 2]],
    }
    with pytest.raises(ValueError, match=re.escape(message)):
        store.add(**{**good, **change})
    assert store.ids == ("known",) and store.contents().index.ntotal == len(store.scores) == 1
    store.add(**good)
    assert store.ids == ("known", "x", "y")


@pytest.mark.parametrize(
    ("queries", "message"),
    [
        ([[1, 0, 0]], "queries have shape (1, 3); must be (prompts, 2)"),
        ([1, 0], "queries have shape (2,)"),
        ([[1, 0], [2, 0]], "queries, row 1: the norm is 2"),
        ([[NAN, 1]], "queries, row 0: the norm is nan; must be 1, or all of the row NaN"),
    ],
)
def test_queries_that_are_refused(queries: Any, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        by_hand(2, 0.0).predict(queries)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"models": []}, "models = []"),
        ({"models": ["a", "a"]}, "distinct"),
        ({"neighbours": 0}, "neighbours = 0: must be at least 1"),
        ({"threshold": 1.0}, "threshold = 1: must be a cosine in [-1, 1)"),
        ({"threshold": NAN}, "threshold = nan"),
    ],
)
def test_arguments_out_of_range(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        RetrievalStore(**{"models": ["a"], "neighbours": 1, "threshold": 0.0, **change})


def test_without_faiss_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(ImportError, match=re.escape('pip install "routing-gym[quality]"')):
        RetrievalStore(["a"], neighbours=1, threshold=0.0)


# The benchmark


def test_the_bench_measures_retrieval_on_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = {row.name: row for row in bench.benchmarks()}
    retrieval = rows["retrieval, 128 queries, store of 36,000 × 384"]
    missed = rows["neighbours that retrieval misses, 128 queries, store of 36,000 × 384"]
    assert (retrieval.unit, retrieval.floor, retrieval.relative) == ("s", 0.02, False)
    assert missed.unit == "%"
    monkeypatch.setattr(bench, "PROMPTS", 600)
    threads: list[int] = []
    real = RetrievalStore.predict

    def noting(self: RetrievalStore, queries: Any) -> Prediction:
        threads.append(faiss.omp_get_max_threads())
        return real(self, queries)

    monkeypatch.setattr(RetrievalStore, "predict", noting)
    before = faiss.omp_get_max_threads()
    bench._case.cache_clear()
    try:
        faiss.omp_set_num_threads(2)
        assert 0 < retrieval.measure(0.01) < 10
        assert set(threads) == {1} and faiss.omp_get_max_threads() == 2
        assert missed.measure(0.01) == 0  # of so few the index is exact
    finally:
        faiss.omp_set_num_threads(before)
        bench._case.cache_clear()
