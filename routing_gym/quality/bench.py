"""What `routing-gym bench` measures of quality prediction (DESIGN 7)."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from statistics import median

import numpy as np
from numpy.typing import NDArray

from routing_gym.bench import Benchmark
from routing_gym.quality.embedding import Embedder, make_embedder
from routing_gym.quality.folder import import_faiss
from routing_gym.quality.settings import FitSettings
from routing_gym.quality.store import RetrievalStore

QUERIES, PROMPTS, DIMENSION, MODELS = 128, 36_000, 384, 11
TOPICS = 400
# About a topic's middle: the nearest of 36,000 is then about as near as with MiniLM, at a cosine of .6.
SPREAD = 1.0
WORDS = "a train leaves the station with some number of people each hour how many are left after noon".split()
TEXTS, WORDS_EACH = 64, 45  # about the tokens of a GSM8K question


def benchmarks() -> list[Benchmark]:
    """Return this package's benchmarks: those whose packages are installed."""
    rows = []
    if importlib.util.find_spec("faiss"):
        case = f"{QUERIES} queries, store of {PROMPTS:,} × {DIMENSION}"
        rows += [
            Benchmark(f"retrieval, {case}", "s", _retrieval, 0.02),
            Benchmark(f"neighbours that retrieval misses, {case}", "%", _missed, once=True),
        ]
    try:
        embedder = _embedder()
    except ImportError:
        return rows
    rows.append(Benchmark(f"embedding, MiniLM, {WORDS_EACH} words", "texts/s", partial(_embedding, embedder)))
    return rows


@cache
def _embedder() -> Embedder:
    return make_embedder("minilm")


def _vectors() -> NDArray[np.float32]:
    """Return the store's vectors and then the queries': topics of unequal size, and noise around each."""
    rng = np.random.default_rng(0)
    topics = rng.standard_normal((TOPICS, DIMENSION), dtype=np.float32)
    topic = rng.choice(TOPICS, PROMPTS + QUERIES, p=rng.dirichlet(np.full(TOPICS, 0.5)))
    vectors = topics[topic] + SPREAD * rng.standard_normal((len(topic), DIMENSION), dtype=np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


@cache
def _case() -> tuple[RetrievalStore, NDArray[np.float32]]:
    """Return a store with the shipped K and threshold, and queries."""
    settings, rng, vectors = FitSettings.model_validate({}), np.random.default_rng(1), _vectors()
    store = RetrievalStore(
        [str(model) for model in range(MODELS)],
        neighbours=settings.neighbours,
        threshold=settings.threshold,
    )
    outcomes = rng.random((PROMPTS, MODELS))
    store.add([str(row) for row in range(PROMPTS)], vectors[:PROMPTS], outcomes, 100.0 * outcomes)
    return store, vectors[PROMPTS:]


@contextmanager
def _one_thread() -> Iterator[None]:
    """Let FAISS use one core, as the design's floor does."""
    faiss = import_faiss()
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)
    try:
        yield
    finally:
        faiss.omp_set_num_threads(before)


def _retrieval(seconds: float) -> float:
    """Return the median time of a prediction for all queries, seconds."""
    with _one_thread():
        store, queries = _case()
        return median(_times(partial(store.predict, queries), seconds))


def _missed(_: float) -> float:
    """Return how many of the K nearest prompts of exact search the store does not find, percent."""
    with _one_thread():
        store, queries = _case()
        exact = import_faiss().IndexFlatIP(DIMENSION)
        exact.add(_vectors()[:PROMPTS])
        due, found = exact.search(queries, store.neighbours)[1], store.neighbours_of(queries)[1]
    held = [np.isin(one, other).mean() for one, other in zip(due, found, strict=True)]
    return 100.0 * (1.0 - float(np.mean(held)))


def _embedding(embedder: Embedder, seconds: float) -> float:
    """Return texts/s."""
    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice(WORDS, WORDS_EACH)) for _ in range(TEXTS)]
    return TEXTS / median(_times(partial(embedder.embed, texts), seconds))


def _times(run: Callable[[], object], seconds: float) -> list[float]:
    run()  # loads what is loaded once
    times, start = list[float](), time.perf_counter()
    while not times or time.perf_counter() - start < seconds:
        begun = time.perf_counter()
        run()
        times.append(time.perf_counter() - begun)
    return times
