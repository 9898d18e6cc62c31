"""Which column of a table of outcomes holds what."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints, field_validator, model_validator

from routing_gym.common.config import ConfigError, FrozenModel, load_yaml, validate

MODEL = "{model}"  # what a pattern holds in place of a model's name

Name = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]


class ModelColumns(FrozenModel):
    """The columns of one model.

    Attributes:
        score: column of scores in [0, 1].
        completion_tokens: column of the lengths of answers, if there is one.
        cost: column of what each answer cost, in USD, if there is one.
        price_in_usd: USD per 1M prompt tokens, with which tokens are estimated from costs.
        price_out_usd: USD per 1M completion tokens.
    """

    score: Name
    completion_tokens: Name | None = None
    cost: Name | None = None
    price_in_usd: float | None = Field(default=None, ge=0)
    price_out_usd: float | None = Field(default=None, ge=0)

    @model_validator(mode="before")
    @classmethod
    def _has_a_score(cls, data: Any) -> Any:
        if isinstance(data, Mapping) and "score" not in data:
            raise ValueError(
                f'score is missing: state its column here, or the pattern `score`, such as "{MODEL}", for all'
            )
        return data


class Columns(FrozenModel):
    """The columns of a table that has one row per prompt.

    `models` maps a model's name to its `ModelColumns`, to the name that the table has for it, or to a mapping
    with that name as `name`; a list gives names that are the table's own. The patterns `score`,
    `completion_tokens` and `cost` then fill in the columns that a model does not spell out (null: it has
    none).

    Attributes:
        id: column of unique ids; without it rows are numbered from 1.
        prompt: column of prompt text.
        group: column of the task that a prompt belongs to.
        prompt_tokens: column of prompt lengths.
        score: pattern of score columns, such as "{model}".
        completion_tokens: pattern of completion token columns, such as "{model}|completion_tokens".
        cost: pattern of cost columns, such as "{model}|total_cost".
        models: the models' columns by model, in the order in which a table holds them.
        missing: whether empty cells and NaN are allowed, and a table without the column of prompt text.
        estimate_tokens: whether token columns that a table lacks are estimated from text and costs.
    """

    id: Name | None = None
    prompt: Name | None = None
    group: Name | None = None
    prompt_tokens: Name | None = None
    score: Name | None = None
    completion_tokens: Name | None = None
    cost: Name | None = None
    models: dict[str, ModelColumns] = Field(min_length=1)
    missing: Literal["refuse", "allow"] = "refuse"
    estimate_tokens: bool = False

    @model_validator(mode="before")
    @classmethod
    def _fill_in_patterns(cls, data: Any) -> Any:
        models = data.get("models") if isinstance(data, Mapping) else None
        if isinstance(models, list) and all(isinstance(name, str) for name in models):
            twice = sorted({name for name in models if models.count(name) > 1})
            if twice:
                raise ValueError(f"models lists {', '.join(twice)} more than once")
            models = {name: name for name in models}
        if not isinstance(models, Mapping):
            return data
        patterns = {field: data.get(field) for field in ("score", "completion_tokens", "cost")}
        return {**data, "models": {key: _spelt_out(key, given, patterns) for key, given in models.items()}}

    @field_validator("score", "completion_tokens", "cost")
    @classmethod
    def _is_a_pattern(cls, pattern: str | None) -> str | None:
        if pattern is not None and MODEL not in pattern:
            raise ValueError(f'must hold "{MODEL}", in place of which the name of each model is put')
        return pattern

    def named(self) -> dict[str, str]:
        """Return the columns that a table should have, by field, such as `models.gpt-4.score`."""
        fields = {field: getattr(self, field) for field in ("id", "prompt", "group", "prompt_tokens")}
        for name, model in self.models.items():
            for field in ("score", "completion_tokens", "cost"):
                fields[f"models.{name}.{field}"] = getattr(model, field)
        return {field: column for field, column in fields.items() if column is not None}


def _spelt_out(key: Any, given: Any, patterns: Mapping[str, Any]) -> Any:
    if isinstance(given, str):
        given = {"name": given}
    if not isinstance(given, Mapping):
        return given
    spelt_out = {field: value for field, value in given.items() if field != "name"}
    name = str(given.get("name", key))
    for field, pattern in patterns.items():
        if isinstance(pattern, str):
            spelt_out.setdefault(field, pattern.replace(MODEL, name))
    return spelt_out


def load_columns(given: str | Path | Mapping[str, Any] | Columns) -> Columns:
    """Return the columns that a workload's config names.

    Args:
        given: the name of a workload that ships, such as `routerbench`; the path of a YAML file; or a
            mapping. The columns are the mapping itself, or stand in it under `columns` or
            `workload: {columns: ...}`.

    Raises:
        ConfigError: there is no such config, or a field of it is wrong.
    """
    if isinstance(given, Columns):
        return given
    data: Any = given if isinstance(given, Mapping) else load_yaml("workloads", given)
    if isinstance(data.get("workload"), Mapping):
        data = data["workload"]
    data = data.get("columns", data)
    if not isinstance(data, Mapping):
        raise ConfigError(f"columns = {data!r}: must be a mapping such as {{prompt: question, models: ...}}")
    return validate(Columns, data)
