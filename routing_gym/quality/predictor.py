"""Quality prediction fitted to a table of outcomes: retrieval, errors by cluster, and what must not leak."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from routing_gym.quality import folder as saved
from routing_gym.quality.clusters import ClusterPredictor
from routing_gym.quality.settings import FitSettings
from routing_gym.quality.splits import prompt_keys, prompt_marks, split_by_prompt
from routing_gym.quality.store import Prediction, RetrievalStore
from routing_gym.quality.tables import OutcomeTable

Floats = NDArray[np.float64]

KIND = "quality predictor"


@dataclass(frozen=True)
class QualityPredictor:
    """What is predicted of prompts from the profile and validation rows of a table.

    Attributes:
        store: holds the profile rows.
        clusters: k-means on the profile rows, errors from the validation rows.
        settings: how the table was split, and how it is predicted.
        marks: by which the prompts of the profile and validation rows are known again
            (`routing_gym.quality.splits.prompt_marks`).
    """

    store: RetrievalStore
    clusters: ClusterPredictor
    settings: FitSettings
    marks: frozenset[str]

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
        used = frozenset().union(*(marks[row] for row in (*split.profile, *split.validation)))
        return cls(store, clusters, settings, used)

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

    def held_out(
        self, table: OutcomeTable, embeddings: NDArray[np.float32] | None = None
    ) -> NDArray[np.bool_]:
        """Return (n,) whether the prompt of each of n rows, of any table, is one that was not fitted to."""
        return np.array(
            [self.marks.isdisjoint(own) for own in prompt_marks(table, embeddings)], dtype=np.bool_
        )

    def save(self, folder: str | Path, *, overwrite: bool = False) -> None:
        """Write all of it to a folder; see `routing_gym.quality.folder.save`."""
        details, arrays, index = self.store.contents()
        found = self.clusters
        details |= {
            "settings": self.settings.model_dump(mode="json"),
            "clusters": len(found.centroids),
            "marks": len(self.marks),
        }
        arrays |= {
            "centroids": found.centroids,
            "errors": found.errors,
            "counts": found.counts,
            "mean_errors": found.mean_errors,
            "marks": np.array(sorted(self.marks), dtype=np.str_),
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
        clusters, count = details["clusters"], len(details["models"])
        shapes = {
            "centroids": (clusters, details["dimension"]),
            "errors": (clusters, count),
            "counts": (clusters, count),
            "mean_errors": (count,),
            "marks": (details["marks"],),
        }
        saved.check_shapes(folder, contents, shapes)
        return cls(
            RetrievalStore.from_contents(contents, folder),
            ClusterPredictor(*(arrays[name] for name in ("centroids", "errors", "counts", "mean_errors"))),
            FitSettings.model_validate(details["settings"]),
            frozenset(arrays["marks"].tolist()),
        )
