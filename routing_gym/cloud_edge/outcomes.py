"""Workloads of real outcomes: requests are the rows of a table of what models answered (DESIGN 4).

What happens is recorded: the score and the length of each model's answer. What a router is shown is predicted
from other prompts' outcomes, by `routing_gym.quality`; no prompt is on both sides.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import field_validator, model_validator

from routing_gym.cloud_edge.contents import TOPIC, Contents, ContentSource, Floats, Singles
from routing_gym.common.config import ConfigError, FrozenModel
from routing_gym.common.seeding import EpisodeStreams
from routing_gym.quality.columns import Columns, load_columns
from routing_gym.quality.folder import MANIFEST
from routing_gym.quality.predictor import QualityPredictor
from routing_gym.quality.settings import FitSettings
from routing_gym.quality.splits import prompt_keys, split_by_prompt
from routing_gym.quality.store import column_means
from routing_gym.quality.tables import OutcomeTable, read_table
from routing_gym.quality.vectors import read_embeddings

Prediction = Literal["store", "mean", "perfect"]


class OutcomesConfig(FrozenModel):
    """A workload whose requests are rows of a table of recorded outcomes.

    Fields left out take the values of `configs/workloads/outcomes.yaml`, and those of
    `configs/workloads/KIND.yaml` for the known tables.

    Attributes:
        kind: `outcomes` for any table, whose columns must then be stated; or a table that is known.
        table: path of a CSV (also .gz) or Parquet file (`quality.tables.read_table`).
        columns: what its columns hold; or the path of a YAML file that says so.
        prompts: path of a second file with the prompts' texts.
        embeddings: path of the prompts' embeddings (`quality.vectors.read_embeddings`).
        store: folder of `routing-gym quality build`; without it a predictor is fitted to the table.
        fit: how the table is split by prompt, and how quality is predicted from it.
        stand_ins: for models of the catalogue that the table lacks, the table's model whose outcomes they
            take.
        rows: which prompts are requests: `test`, or `validation`, from which errors by cluster are known.
        prediction: how a router knows qualities: from the `store` (retrieval, equation 1 of "CEMA-Router"),
            by each model's `mean`, or `perfect`.
        lengths: how it knows output tokens, in the same ways; null: as qualities.
    """

    kind: Literal["outcomes", "routerbench", "gsm8k"]
    table: str
    columns: Columns
    prompts: str | None
    embeddings: str | None
    store: str | None
    fit: FitSettings
    stand_ins: dict[str, str]
    rows: Literal["test", "validation"]
    prediction: Prediction
    lengths: Prediction | None

    @field_validator("table", "prompts", "embeddings", "store", mode="before")
    @classmethod
    def _path_as_text(cls, value: Any) -> Any:
        return os.fspath(value) if isinstance(value, Path) else value

    @field_validator("columns", mode="before")
    @classmethod
    def _read_columns(cls, value: Any) -> Any:
        return load_columns(value) if isinstance(value, (str, Path)) else value

    @model_validator(mode="after")
    def _consistent(self) -> OutcomesConfig:
        if self.store is not None and self.fit != FitSettings.model_validate({}):
            raise ValueError(f"fit: the settings are those of store = {self.store!r}; give one of the two")
        if self.embeddings is None and (self.store or "store" in (self.prediction, self.lengths)):
            raise ValueError(
                "embeddings = None: a store finds similar prompts by their embeddings. `routing-gym quality "
                "embed` makes them; or set prediction to 'mean' or 'perfect' and name no store"
            )
        return self

    def files(self) -> dict[str, str]:
        """Return the files that outcomes and predictions come from, by field."""
        named = {"table": self.table, "prompts": self.prompts, "embeddings": self.embeddings}
        if self.store is not None:
            named["store"] = os.fspath(Path(self.store, MANIFEST))
        return {name: path for name, path in named.items() if path is not None}

    def columns_of(self, models: Sequence[str]) -> list[str]:
        """Return the table's model for each of the catalogue's.

        Raises:
            ConfigError: the table has none for some of them.
        """
        names = [self.stand_ins.get(model, model) for model in models]
        known = self.columns.models
        missing = [
            model if model == name else f"{model} (its stand-in {name})"
            for model, name in zip(models, names, strict=True)
            if name not in known
        ]
        if missing:
            raise ConfigError(
                f"workload.table = {self.table}: has no outcomes of {', '.join(missing)}; name models that "
                "stand in for them (workload.stand_ins), or leave them out (drop). The table has "
                f"{', '.join(known)}"
            )
        estimated = self.columns.estimate_tokens
        lacking = [f"models.{name}.completion_tokens" for name in names if not known[name].completion_tokens]
        lacking = ([] if self.columns.prompt_tokens else ["prompt_tokens"]) + lacking
        if lacking and not estimated:
            raise ConfigError(
                f"workload.columns: names no {', '.join(dict.fromkeys(lacking))}; the length of each request "
                "and of each answer must be recorded"
            )
        return names


class _Rows(NamedTuple):
    """The requests there are (n,), and what the catalogue's models make of them (n, K)."""

    input_tokens: Floats
    predicted_output_tokens: Floats
    output_tokens: Singles
    quality: Singles
    predicted_quality: Singles
    cluster_error: Singles
    topic: NDArray[np.int64]
    predicted_by_model: Singles


class OutcomeContents(ContentSource):
    """Draws requests from recorded outcomes, without replacement until all have been drawn.

    Attributes:
        config: the workload.
        models: names of the columns.
        ids: (n,) the rows' ids in the table.
        groups: names of the topics.
        notes: what reading the table had to assume.
    """

    def __init__(self, config: OutcomesConfig, models: Sequence[str]) -> None:
        """Read the table and predict every row.

        Raises:
            ConfigError: the table lacks a model, or has no row to play.
            TableError, FolderError: a file cannot be used.
            ImportError: with embeddings, the extra `quality` is needed.
        """
        self.config, self.models = config, tuple(models)
        stamps = tuple(_stamp(path) for path in config.files().values())
        prepared = _prepare(config.model_dump_json(), self.models, stamps)
        self.ids, self.groups, self.notes, self._rows = prepared
        self.input_maximum = float(self._rows.input_tokens.max())
        self.output_maximum = float(self._rows.output_tokens.max())
        self.predicted_maximum = float(self._rows.predicted_by_model.max())

    def maxima(self, input_tokens: float, output_tokens: float) -> tuple[float, float, float]:
        """Return the table's own maxima: rows have their own token counts."""
        return self.input_maximum, self.output_maximum, self.predicted_maximum

    def draw(
        self, streams: EpisodeStreams, count: int, tokens: tuple[Floats, Floats] | None = None
    ) -> Contents:
        """Draw `count` requests; the arguments are those of `ContentSource.draw`."""
        total, rng = len(self.ids), streams[TOPIC]
        turns = [rng.permutation(total) for _ in range(-(-count // total))]
        drawn = np.concatenate([np.zeros(0, np.int64), *turns])[:count]
        return Contents(*(column[drawn] for column in self._rows))


def _stamp(path: str) -> tuple[int, int]:
    """Return what changes with a file."""
    try:
        status = os.stat(path)
    except OSError:
        return 0, 0  # whoever reads it says what is wrong
    return status.st_mtime_ns, status.st_size


class _Prepared(NamedTuple):
    ids: tuple[str, ...]
    groups: tuple[str, ...]
    notes: tuple[str, ...]
    rows: _Rows


@lru_cache(maxsize=8)
def _prepare(settings: str, models: tuple[str, ...], stamps: tuple[Any, ...]) -> _Prepared:
    """Read and predict. Environments of one process share what comes of it, until a file changes."""
    config = OutcomesConfig.model_validate_json(settings)
    names = config.columns_of(models)
    # Of the models that nobody asks for, a table need not have the columns.
    asked = {name: config.columns.models[name] for name in dict.fromkeys(names)}
    columns = config.columns.model_copy(update={"models": asked})
    table = read_table(config.table, columns, config.prompts)
    embeddings = None if config.embeddings is None else read_embeddings(config.embeddings, table)
    predictor, playable, profile = _sides(config, table, embeddings)
    column = table.index(names)
    outcomes = np.stack((table.scores[:, column], table.completion_tokens[:, column]))
    recorded = np.isfinite(table.prompt_tokens) & np.isfinite(outcomes).all(axis=(0, 2))
    chosen = np.flatnonzero(playable & recorded)
    if not len(chosen):
        raise ConfigError(
            f"workload.table = {config.table}: of its {playable.sum()} {config.rows} prompts none has "
            f"recorded outcomes of all of {', '.join(names)}, and a recorded length"
        )
    known = {"perfect": outcomes[:, chosen]}
    if predictor is None:
        means = np.stack([column_means(outcomes[k][profile]) for k in (0, 1)])
        errors = np.broadcast_to(1.0 - means[0], known["perfect"].shape[1:])
    else:
        assert embeddings is not None
        place = _places(predictor, names, config)
        means = np.stack(predictor.store.means)[:, place]
        found = predictor.predict(embeddings[chosen])
        known["store"] = np.stack((found.scores[:, place], found.tokens[:, place]))
        errors = predictor.cluster_error(embeddings[chosen])[:, place]
    unknown = [names[k] for k in np.flatnonzero(np.isnan(means).any(axis=0)).tolist()]
    if unknown:
        source = f"table = {config.table}" if config.store is None else f"store = {config.store}"
        raise ConfigError(
            f"workload.{source}: no profiled prompt has a score, or none a length, of {', '.join(unknown)}"
        )
    known["mean"] = np.broadcast_to(means[:, None], known["perfect"].shape)
    quality = known[config.prediction][0]
    tokens = np.maximum(np.rint(known[config.lengths or config.prediction][1]), 1.0)
    groups, topic = np.unique([table.groups[row] for row in chosen], return_inverse=True)
    rows = _Rows(
        table.prompt_tokens[chosen],
        np.maximum(np.rint(tokens.mean(axis=1)), 1.0),
        known["perfect"][1].astype(np.float32),
        known["perfect"][0].astype(np.float32),
        quality.astype(np.float32),
        errors.astype(np.float32),
        topic.astype(np.int64),
        tokens.astype(np.float32),
    )
    ids = tuple(table.ids[row] for row in chosen)
    return _Prepared(ids, tuple(map(str, groups)), table.notes, rows)


def _sides(
    config: OutcomesConfig, table: OutcomeTable, embeddings: Singles | None
) -> tuple[QualityPredictor | None, NDArray[np.bool_], NDArray[np.int64]]:
    """Return the predictor there is, which rows may be requests, and the profiled rows of this table."""
    nobody = np.zeros(0, np.int64)
    if config.store is not None:
        predictor = QualityPredictor.load(config.store)
        asks = predictor.held_out if config.rows == "test" else predictor.validated
        return predictor, asks(table, embeddings), nobody
    split = split_by_prompt(prompt_keys(table, embeddings), config.fit)
    playable = np.zeros(len(table.ids), bool)
    playable[getattr(split, config.rows)] = True
    fitted = None if embeddings is None else QualityPredictor.fit(table, embeddings, config.fit)
    return fitted, playable, split.profile


def _places(predictor: QualityPredictor, names: Sequence[str], config: OutcomesConfig) -> list[int]:
    """Return the models' columns in what a predictor returns."""
    missing = [name for name in names if name not in predictor.models]
    if missing:
        raise ConfigError(
            f"workload.store = {config.store}: does not predict {', '.join(missing)}; it predicts "
            f"{', '.join(predictor.models)}"
        )
    return [predictor.models.index(name) for name in names]
