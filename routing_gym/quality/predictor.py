"""Quality prediction fitted to a table of outcomes: retrieval, errors by cluster, and what must not leak."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from routing_gym.common.config import validate
from routing_gym.quality import folder as saved
from routing_gym.quality.clusters import ClusterPredictor
from routing_gym.quality.settings import FitSettings
from routing_gym.quality.splits import prompt_keys, prompt_marks, split_by_prompt
from routing_gym.quality.store import Prediction, RetrievalStore
from routing_gym.quality.tables import OutcomeTable

Floats = NDArray[np.float64]

Bools = NDArray[np.bool_]

KIND = "quality predictor"
SAME = 1.0 - 1e-4  # cosine of two copies of an embedding, one of them in half precision
ROWS_AT_ONCE = 1024
LONGEST = 1.0 + 1e-3  # of what belongs to unit vectors, in half precision


@dataclass(frozen=True)
class QualityPredictor:
    """What is predicted of prompts from the profile and validation rows of a table.

    Attributes:
        store: holds the profile rows.
        clusters: k-means on the profile rows, errors from the validation rows.
        settings: how the table was split, and how it is predicted.
        profile_marks, validation_marks: by which the prompts of these rows are known again
            (`routing_gym.quality.splits.prompt_marks`).
        validation: (v, D) embeddings of the validation rows that have one.
    """

    store: RetrievalStore
    clusters: ClusterPredictor
    settings: FitSettings
    profile_marks: frozenset[str]
    validation_marks: frozenset[str]
    validation: NDArray[np.float32]

    @classmethod
    def fit(cls, table: OutcomeTable, embeddings: ArrayLike, settings: FitSettings) -> QualityPredictor:
        """Split a table by prompt and learn from two sides; the scores of the test rows are not looked at.

        Args:
            table: n rows.
            embeddings: (n, D) unit rows; a row of NaN is a prompt without embedding, which counts for the
                models' means only.
            settings: shares, seed, K, threshold and number of clusters.

        Raises:
            ImportError: FAISS is not installed.
            ValueError: a shape does not fit, no profile row has an embedding, or a model has no recorded
                score in the profile or the validation rows.
        """
        vectors = np.asarray(embeddings, np.float32)
        if vectors.ndim != 2 or len(vectors) != len(table.ids):
            raise ValueError(f"embeddings have shape {vectors.shape}; must be ({len(table.ids)}, D)")
        keys = prompt_keys(table, vectors)
        split = split_by_prompt(keys, settings)
        for side, rows in (("profile", split.profile), ("validation", split.validation)):
            recorded = table.scores[rows]
            lacking = [name for k, name in enumerate(table.models) if np.isnan(recorded[:, k]).all()]
            if lacking:
                raise ValueError(
                    f"{table.source}: none of the {len(rows)} {side} rows has a score of "
                    f"{', '.join(lacking)}; quality cannot be predicted for such a model"
                )
        embedded = split.profile[~np.isnan(vectors[split.profile]).any(axis=1)]
        if not len(embedded):
            raise ValueError(
                f"{table.source}: none of the {len(split.profile)} profile rows has an embedding"
            )
        store = RetrievalStore(table.models, neighbours=settings.neighbours, threshold=settings.threshold)
        store.add(
            [table.ids[row] for row in split.profile],
            vectors[split.profile],
            table.scores[split.profile],
            table.completion_tokens[split.profile],
        )
        clusters = ClusterPredictor.fit(
            vectors[embedded],
            vectors[split.validation],
            table.scores[split.validation],
            clusters=settings.clusters,
            seed=settings.seed,
        )
        marks = prompt_marks(table, vectors)
        asked = vectors[split.validation]
        return cls(
            store,
            clusters,
            settings,
            profile_marks=frozenset(mark for row in split.profile for mark in marks[row]),
            validation_marks=frozenset(mark for row in split.validation for mark in marks[row]),
            validation=asked[~np.isnan(asked).any(axis=1)],
        )

    @property
    def models(self) -> tuple[str, ...]:
        """The K models, in the order of the columns of what is predicted."""
        return self.store.models

    def predict(self, embeddings: ArrayLike) -> Prediction:
        """Predict quality and completion tokens; see `RetrievalStore.predict`."""
        return self.store.predict(embeddings)

    def cluster_error(self, embeddings: ArrayLike) -> Floats:
        """Return (q, K) errors by cluster; see `ClusterPredictor.predict`."""
        return self.clusters.predict(embeddings)

    def held_out(self, table: OutcomeTable, embeddings: NDArray[np.float32] | None = None) -> Bools:
        """Return (n,) whether the prompt of each of n rows, of any table, is one that was not fitted to.

        Prompts are known again by their text, or by an embedding that is the same but for rounding; by their
        id only where they have neither, here and there.

        Raises:
            ValueError: the embeddings are of another dimension.
        """
        return ~(self._profiled(table, embeddings) | self._validated(table, embeddings))

    def validated(self, table: OutcomeTable, embeddings: NDArray[np.float32] | None = None) -> Bools:
        """Return (n,) whether the prompt of each row is a validation prompt, and no profiled one."""
        return self._validated(table, embeddings) & ~self._profiled(table, embeddings)

    def _profiled(self, table: OutcomeTable, embeddings: NDArray[np.float32] | None) -> Bools:
        return _known(table, embeddings, self.profile_marks, self.store.embeddings)

    def _validated(self, table: OutcomeTable, embeddings: NDArray[np.float32] | None) -> Bools:
        return _known(table, embeddings, self.validation_marks, self.validation)

    def save(self, folder: str | Path, *, overwrite: bool = False) -> None:
        """Write all of it to a folder; see `routing_gym.quality.folder.save`."""
        details, arrays, index = self.store.contents()
        found = self.clusters
        details |= {
            "settings": self.settings.model_dump(mode="json"),
            "clusters": len(found.centroids),
            "profile_marks": len(self.profile_marks),
            "validation_marks": len(self.validation_marks),
            "validation": len(self.validation),
        }
        arrays |= {
            "centroids": found.centroids,
            "errors": found.errors,
            "counts": found.counts,
            "mean_errors": found.mean_errors,
            "profile_marks": np.array(sorted(self.profile_marks), dtype=np.str_),
            "validation_marks": np.array(sorted(self.validation_marks), dtype=np.str_),
            "validation": self.validation,
        }
        saved.save(folder, KIND, saved.Contents(details, arrays, index), overwrite=overwrite)

    @classmethod
    def load(cls, folder: str | Path) -> QualityPredictor:
        """Read a predictor that `save` wrote: it predicts the same, to the last bit.

        Raises:
            FolderError: the folder is damaged or holds something else; says what differs.
        """
        contents = saved.load(folder, KIND)
        details, arrays, _ = contents
        store = RetrievalStore.from_contents(contents, folder)
        with saved.putting_together(folder):
            settings = validate(FitSettings, details["settings"])
            for name in ("neighbours", "threshold"):
                if details[name] != getattr(settings, name):
                    raise ValueError(f"{name} = {details[name]}; settings say {getattr(settings, name)}")
            clusters, dimension, count = details["clusters"], details["dimension"], len(store.models)
            due = {
                "centroids": saved.Due((clusters, dimension), "f", -LONGEST, LONGEST),
                "errors": saved.Due((clusters, count), "f", high=1.0),
                "counts": saved.Due((clusters, count), "i"),
                "mean_errors": saved.Due((count,), "f", high=1.0),
                "profile_marks": saved.Due((details["profile_marks"],), "U"),
                "validation_marks": saved.Due((details["validation_marks"],), "U"),
                "validation": saved.Due((details["validation"], dimension), "f", -LONGEST, LONGEST),
            }
        saved.check_arrays(folder, contents, due)
        return cls(
            store,
            ClusterPredictor(*(arrays[name] for name in ("centroids", "errors", "counts", "mean_errors"))),
            settings,
            frozenset(arrays["profile_marks"].tolist()),
            frozenset(arrays["validation_marks"].tolist()),
            arrays["validation"],
        )


def _known(
    table: OutcomeTable,
    embeddings: NDArray[np.float32] | None,
    marks: frozenset[str],
    vectors: NDArray[np.float32],
) -> Bools:
    """Return (n,) whether the rows' prompts share a mark, or their embedding with one of (p, D) `vectors`."""
    known = np.array([not marks.isdisjoint(own) for own in prompt_marks(table, embeddings)], dtype=np.bool_)
    if embeddings is None or not len(vectors):
        return known
    if embeddings.shape[1] != vectors.shape[1]:
        raise ValueError(
            f"{table.source}: its embeddings have {embeddings.shape[1]} dimensions; the predictor was "
            f"fitted to embeddings of {vectors.shape[1]}"
        )
    left = np.flatnonzero(~known & ~np.isnan(embeddings).any(axis=1))
    for first in range(0, len(left), ROWS_AT_ONCE):
        rows = left[first : first + ROWS_AT_ONCE]
        known[rows] = (embeddings[rows] @ vectors.T).max(axis=1) >= SAME
    return known
