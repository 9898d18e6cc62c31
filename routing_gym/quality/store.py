"""The retrieval store: quality is predicted from what similar prompts scored ("CEMA-Router", equation 1)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from routing_gym.common.config import packaged
from routing_gym.quality import folder as saved

Floats = NDArray[np.float64]
Singles = NDArray[np.float32]
Ints = NDArray[np.int64]

KIND = "retrieval store"
UNIT = 1e-3  # how far from 1 the norm of a unit vector may be: half precision is within it
PAIRS_AT_ONCE = 2**14  # queries times neighbours: bounds what a prediction takes in memory


class Prediction(NamedTuple):
    """What is predicted for q prompts and K models.

    Attributes:
        scores: (q, K) quality, in [0, 1].
        tokens: (q, K) completion tokens; NaN for a model of which none are recorded.
        found: (q,) neighbours that count; 0: the models' means.
    """

    scores: Floats
    tokens: Floats
    found: Ints


class Means(NamedTuple):
    """Each model's (K,) mean recorded score and completion tokens; NaN where nothing is recorded."""

    scores: Floats
    tokens: Floats


class RetrievalStore:
    """Profiled prompts, their recorded scores and completion tokens, and a FAISS index of their embeddings.

    The index is exact up to a number of prompts and approximate beyond (`index` in
    `configs/quality/default.yaml`): when the store grows past it, and again whenever it has grown to a
    multiple, the index is trained anew. Adding bit by bit is adding at once as long as the index is exact.
    An approximate index may miss a neighbour; the similarities of those that it finds are exact.

    Args:
        models: K names, the columns of what is recorded.
        neighbours: K of equation 1, the most neighbours that count.
        threshold: cosine that a neighbour must exceed. A neighbour at a cosine of 0 or less never counts,
            whatever the threshold: its weight in equation 1 would be none or negative, the result no mean.

    Raises:
        ImportError: FAISS is not installed.
        ValueError: an argument is out of range.
    """

    def __init__(self, models: Sequence[str], *, neighbours: int, threshold: float) -> None:
        saved.import_faiss()
        if not models or len(set(models)) != len(models):
            raise ValueError(f"models = {list(models)}: must be one or more distinct names")
        if neighbours < 1:
            raise ValueError(f"neighbours = {neighbours}: must be at least 1")
        if not -1.0 <= threshold < 1.0:
            raise ValueError(f"threshold = {threshold:g}: must be a cosine in [-1, 1)")
        self.models = tuple(models)
        self.neighbours = neighbours
        self.threshold = threshold
        self._ids: dict[str, None] = {}
        self._record(np.empty((0, 2 * len(models))))
        self._indexed: Ints = np.empty(0, np.int64)  # the index holds row _indexed[i] of the store at i
        self._index: Any = None
        self._trained_on = 0

    def __len__(self) -> int:
        return len(self._ids)

    @property
    def ids(self) -> tuple[str, ...]:
        """Ids of the profiled prompts, in the order of the rows."""
        return tuple(self._ids)

    @property
    def scores(self) -> Floats:
        """(p, K) recorded scores; NaN where not recorded."""
        return self._recorded[:, : len(self.models)]

    @property
    def tokens(self) -> Floats:
        """(p, K) recorded completion tokens; NaN where not recorded."""
        return self._recorded[:, len(self.models) :]

    @property
    def means(self) -> Means:
        """Each model's mean over all profiled prompts: what is predicted without neighbours."""
        return Means(*np.split(self._means, 2))

    @property
    def embeddings(self) -> Singles:
        """(i, D) embeddings of the profiled prompts that have one; to be read only until the next `add`."""
        return np.empty((0, 0), np.float32) if self._index is None else self._exact_vectors()

    @property
    def exact(self) -> bool:
        """Whether retrieval is exact."""
        return not self._trained_on

    def add(self, ids: Sequence[str], embeddings: ArrayLike, scores: ArrayLike, tokens: ArrayLike) -> None:
        """Add profiled prompts; on an error none is added.

        Args:
            ids: p distinct ids that the store does not have.
            embeddings: (p, D) unit rows. A row of NaN is a prompt without embedding: it counts for the means,
                and is never retrieved.
            scores: (p, K) in [0, 1]; NaN where not recorded.
            tokens: (p, K) completion tokens; NaN where not recorded.

        Raises:
            ValueError: an id is there already, a shape does not fit, or a value is out of range; the row is
                named.
        """
        vectors = self._vectors_of(embeddings, "embeddings")
        known = set(self._ids)
        for row, name in enumerate(ids):
            if name in known:
                raise ValueError(f"row {row}: id {name!r} is there already; each prompt is added once")
            known.add(name)
        shape = (len(ids), len(self.models))
        recorded = []
        for what, values, most in (("scores", scores, 1.0), ("tokens", tokens, np.finfo(float).max)):
            table = np.asarray(values, np.float64)
            if table.shape != shape or len(vectors) != len(ids):
                raise ValueError(
                    f"{what} have shape {table.shape} and there are {len(vectors)} embeddings; with "
                    f"{len(ids)} ids and {len(self.models)} models they must be {shape} and {len(ids)}"
                )
            wrong = np.argwhere(~(np.isnan(table) | ((table >= 0.0) & (table <= most))))
            if len(wrong):
                row, model = wrong[0]
                raise ValueError(
                    f"row {row} ({ids[row]!r}), {self.models[model]}: {what} = {table[row, model]:g}; must "
                    f"be {'in [0, 1]' if most == 1.0 else 'finite, not negative'}, or NaN where not recorded"
                )
            recorded.append(table)
        embedded = np.flatnonzero(~np.isnan(vectors[:, 0]))
        if len(embedded):
            self._extend(vectors[embedded])
        self._indexed = np.concatenate([self._indexed, len(self) + embedded])
        self._record(np.concatenate([self._recorded, np.hstack(recorded)]))
        self._ids.update(dict.fromkeys(ids))

    def neighbours_of(self, queries: ArrayLike) -> tuple[Singles, Ints]:
        """Return the nearest profiled prompts by cosine, whatever the threshold.

        Args:
            queries: (q, D) unit rows; a row of NaN has no neighbours.

        Returns:
            similarity: (q, k) exact cosines, falling, for the k = `neighbours` nearest; NaN where there are
                fewer.
            row: (q, k) rows of the store; -1 where there are fewer.

        Raises:
            ValueError: a query is no unit vector of the store's dimension; names the row.
        """
        asked = self._vectors_of(queries, "queries")
        similarity = np.full((len(asked), self.neighbours), np.nan, np.float32)
        rows = np.full(similarity.shape, -1, np.int64)
        known = np.flatnonzero(~np.isnan(asked[:, 0]))
        if self._index is None or not len(known):
            return similarity, rows
        cosines, held = self._index.search(asked[known], self.neighbours)
        if self.exact:
            # The exact index's own products depend, in the last digit, on how many queries are asked at once.
            vectors = self._exact_vectors()
            held = np.sort(held, axis=1)
            for part in self._parts(len(known)):
                cosines[part] = np.vecdot(vectors[held[part]], asked[known[part], None])
            order = np.argsort(np.where(held < 0, np.inf, -cosines), axis=1, kind="stable")
            cosines, held = (np.take_along_axis(found, order, axis=1) for found in (cosines, held))
        similarity[known] = np.where(held < 0, np.nan, cosines)
        rows[known] = np.where(held < 0, -1, self._indexed[held])
        return similarity, rows

    def predict(self, queries: ArrayLike) -> Prediction:
        """Predict by equation 1: the similarity-weighted mean of what the neighbours have on record.

        Each model's is over the neighbours beyond the threshold that have one; without any, it is the model's
        mean over the store. A prompt's prediction does not depend on what else is asked.

        Args:
            queries: (q, D) unit rows; a row of NaN is a prompt without embedding, which gets the means.

        Raises:
            ValueError: as in `neighbours_of`.
        """
        similarity, rows = self.neighbours_of(queries)
        predicted = np.empty((len(rows), len(self._means)))
        for part in self._parts(len(rows)):
            predicted[part] = weighted_mean(
                similarity[part], self._recorded, rows[part], self._means, self.threshold
            )
        found = count(similarity, self.threshold).sum(axis=1)
        return Prediction(predicted[:, : len(self.models)], predicted[:, len(self.models) :], found)

    def save(self, folder: str | Path, *, overwrite: bool = False) -> None:
        """Write the store to a folder; see `routing_gym.quality.folder.save`."""
        saved.save(folder, KIND, self.contents(), overwrite=overwrite)

    @classmethod
    def load(cls, folder: str | Path) -> RetrievalStore:
        """Read a store that `save` wrote: it predicts the same, to the last bit.

        Raises:
            FolderError: the folder is damaged or holds something else; says what differs.
        """
        return cls.from_contents(saved.load(folder, KIND), folder)

    def contents(self) -> saved.Contents:
        """Return what is saved of the store."""
        details = {
            "models": list(self.models),
            "neighbours": self.neighbours,
            "threshold": self.threshold,
            "prompts": len(self),
            "indexed": len(self._indexed),
            "dimension": 0 if self._index is None else self._index.d,
            "trained_on": self._trained_on,
        }
        arrays = {
            "ids": np.array(self.ids, dtype=np.str_),
            "scores": self.scores,
            "tokens": self.tokens,
            "indexed": self._indexed,
        }
        faiss = saved.import_faiss()
        return saved.Contents(details, arrays, faiss.IndexFlatIP(1) if self._index is None else self._index)

    @classmethod
    def from_contents(cls, contents: saved.Contents, folder: str | Path) -> RetrievalStore:
        """Return the store that `contents` came from.

        Raises:
            FolderError: a detail or an array is missing or wrong, or arrays, index and manifest differ;
                `folder` is named.
        """
        details, arrays, index = contents
        with saved.putting_together(folder):
            for name in ("neighbours", "prompts", "indexed", "dimension", "trained_on"):
                if type(details[name]) is not int:
                    raise TypeError(f"{name} = {details[name]!r}: must be a whole number")
            prompts, indexed, names = details["prompts"], details["indexed"], details["models"]
            if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
                raise TypeError(f"models = {names!r}: must be a list of names")
            store = cls(names, neighbours=details["neighbours"], threshold=details["threshold"])
        due = {
            "ids": saved.Due((prompts,), "U"),
            "scores": saved.Due((prompts, len(names)), "f", high=1.0),
            "tokens": saved.Due((prompts, len(names)), "f"),
            "indexed": saved.Due((indexed,), "i", high=prompts - 1),
        }
        saved.check_arrays(folder, contents, due)
        if len(set(arrays["ids"].tolist())) < prompts:
            raise saved.FolderError(f"{folder}: {saved.ARRAYS}: ids holds an id twice")
        for what, found, said in (
            ("vectors", index.ntotal, indexed),
            ("dimensions", index.d, details["dimension"] or 1),
        ):
            if found != said:
                raise saved.FolderError(
                    f"{folder}: {saved.INDEX} has {found} {what}; {saved.MANIFEST} says {said}"
                )
        exact = isinstance(index, saved.import_faiss().IndexFlat)
        if exact != (details["trained_on"] == 0):
            raise saved.FolderError(
                f"{folder}: {saved.INDEX} is {'exact' if exact else 'approximate'}; {saved.MANIFEST} says "
                f"trained_on = {details['trained_on']}"
            )
        store._ids = dict.fromkeys(arrays["ids"].tolist())
        store._record(np.hstack([arrays["scores"], arrays["tokens"]]))
        store._indexed = arrays["indexed"]
        store._index = index if details["dimension"] else None
        store._trained_on = details["trained_on"]
        return store

    def _record(self, recorded: Floats) -> None:
        self._recorded = recorded  # (p, 2K): scores, then tokens
        self._means = column_means(recorded)

    def _parts(self, queries: int) -> list[slice]:
        step = max(1, PAIRS_AT_ONCE // self.neighbours)
        return [slice(first, first + step) for first in range(0, queries, step)]

    def _vectors_of(self, embeddings: ArrayLike, what: str) -> Singles:
        vectors = np.ascontiguousarray(embeddings, np.float32)
        dimension = vectors.shape[-1] if self._index is None else self._index.d
        if vectors.ndim != 2 or vectors.shape[1] != dimension or not dimension:
            raise ValueError(f"{what} have shape {vectors.shape}; must be (prompts, {dimension or 'D'})")
        unknown = np.isnan(vectors).all(axis=1)
        norms = np.linalg.norm(vectors, axis=1)
        wrong = np.flatnonzero(~(unknown | (np.abs(norms - 1.0) <= UNIT)))
        if len(wrong):
            raise ValueError(
                f"{what}, row {wrong[0]}: the norm is {norms[wrong[0]]:g}; must be 1, or all of the row NaN"
            )
        return vectors

    def _exact_vectors(self) -> Singles:
        """Return the indexed vectors: a view into the index, until something is added to it."""
        faiss = saved.import_faiss()
        flat = self._index if self.exact else faiss.downcast_index(self._index.refine_index)
        return faiss.rev_swig_ptr(flat.get_xb(), flat.ntotal * flat.d).reshape(flat.ntotal, flat.d)

    def _extend(self, vectors: Singles) -> None:
        faiss, settings = saved.import_faiss(), packaged("quality", "default")["index"]
        if self._index is None:
            self._index = faiss.IndexFlatIP(vectors.shape[1])
        total = self._index.ntotal + len(vectors)
        if total > settings["exact_up_to"] and total >= settings["train_again_at"] * self._trained_on:
            if self._index.ntotal:
                vectors = np.concatenate([self._exact_vectors(), vectors])
            self._index = _train(vectors, self.neighbours)
            self._trained_on = total
        self._index.add(vectors)


def _train(vectors: Singles, neighbours: int) -> Any:
    """Return an empty approximate index for vectors like these. FAISS's own seeds are fixed."""
    faiss, settings = saved.import_faiss(), packaged("quality", "default")["index"]
    dimension = vectors.shape[1]
    # Codes are of pairs of dimensions: a product quantiser needs parts of equal size.
    parts = dimension // 2 if dimension % 2 == 0 else dimension
    factory = settings["factory"].format(parts=parts)
    index = faiss.index_factory(dimension, factory, faiss.METRIC_INNER_PRODUCT)
    faiss.extract_index_ivf(index).cp.min_points_per_centroid = 1  # else it warns on stderr
    index.train(vectors)
    faiss.extract_index_ivf(index).nprobe = settings["nprobe"]
    index.k_factor = 1.0 + settings["further_candidates"] / neighbours
    return index


def column_means(values: Floats) -> Floats:
    """Return the mean of each column's numbers; NaN where there is none."""
    known = ~np.isnan(values)
    total, rows = np.where(known, values, 0.0).sum(axis=0), known.sum(axis=0)
    return np.divide(total, rows, out=np.full(values.shape[1], np.nan), where=rows > 0)


def count(similarity: Singles, threshold: float) -> NDArray[np.bool_]:
    """Return which neighbours count: those over the threshold, and over 0."""
    return similarity > np.float32(max(threshold, 0.0))


def weighted_mean(
    similarity: Singles, recorded: Floats, rows: Ints, means: Floats, threshold: float
) -> Floats:
    """Return equation 1 of "CEMA-Router" for q prompts.

    Args:
        similarity: (q, k) cosines of the neighbours; NaN where there is none.
        recorded: (p, m) what is on record; NaN where nothing is.
        rows: (q, k) the neighbours' rows in it.
        means: (m,) what a column without a counting neighbour gets.
        threshold: cosine that a neighbour must exceed.
    """
    weight = np.where(count(similarity, threshold), similarity, 0.0).astype(np.float64)
    if not len(recorded):
        return np.broadcast_to(means, (len(rows), len(means)))
    values = recorded[rows]
    known = ~np.isnan(values)
    total = np.einsum("qk,qkm->qm", weight, known)
    summed = np.einsum("qk,qkm->qm", weight, np.where(known, values, 0.0))
    return np.divide(summed, total, out=np.broadcast_to(means, summed.shape).copy(), where=total > 0.0)
