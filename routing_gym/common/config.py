"""Config models and the named YAML files that hold every constant."""

from __future__ import annotations

import difflib
import hashlib
import json
import types
import typing
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

Model = TypeVar("Model", bound="FrozenModel")
LONGEST_VALUE = 300  # characters of a value that an error repeats


class ConfigError(ValueError):
    """A config that cannot be used; the message names each field, its value and what is allowed."""


class FrozenModel(BaseModel):
    """Base of all config models: immutable, JSON-able; unknown keys are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    def model_copy(self: Model, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Model:
        """Return a copy with some fields changed, without validation."""
        copied = super().model_copy(update=update, deep=deep)
        # Pydantic copies cached properties too, which would outlive the fields that they came from.
        for name in copied.__dict__.keys() - type(copied).model_fields.keys():
            del copied.__dict__[name]
        return copied


def configs_folder() -> Path:
    """Return the folder of named configs: inside the installed package, or beside it in a checkout."""
    package = Path(__file__).resolve().parents[1]
    # An editable install may leave stale copies of force-included files, so a checkout goes first.
    for folder in (package.parent / "configs", package / "configs"):
        if (folder / "cluster").is_dir():
            return folder
    raise FileNotFoundError(f"no configs folder beside or inside {package}")


def config_names(family: str) -> list[str]:
    """Return the names of the configs that ship for a family, such as `cluster`."""
    return sorted(path.stem for path in (configs_folder() / family).glob("*.yaml"))


class _Loader(yaml.SafeLoader):
    """Refuses a key that stands twice, of which YAML silently takes the last."""

    def compose_mapping_node(self, anchor: Any) -> Any:
        node = super().compose_mapping_node(anchor)
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and (key.tag, key.value) in seen:
                raise yaml.composer.ComposerError(
                    "in a mapping", node.start_mark, f"{key.value!r} stands twice", key.start_mark
                )
            seen.add((key.tag, key.value) if isinstance(key, yaml.ScalarNode) else id(key))
        return node


def load_yaml(family: str, name: str | Path) -> dict[str, Any]:
    """Read a config: the name of one that ships with `family`, or the path of a YAML file.

    Raises:
        ConfigError: there is no such config, or the file holds no mapping.
    """
    path = Path(name)
    if path.suffix not in {".yaml", ".yml", ".json"}:
        path = configs_folder() / family / f"{name}.yaml"
        if not path.is_file():
            known = config_names(family)
            near = difflib.get_close_matches(str(name), known, n=1)
            raise ConfigError(
                f"no {family} config is named {str(name)!r}; there are {', '.join(known)}"
                f"{f' (did you mean {near[0]}?)' if near else ''}, and a path must end in .yaml"
            )
    try:
        data = yaml.load(path.read_text(encoding="utf-8"), _Loader)
    except OSError as error:
        raise ConfigError(f"cannot read the config {path}: {error.strerror}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not valid YAML: {error}") from error
    if not isinstance(data, dict):
        raise ConfigError(f"{path} must hold a mapping of fields, not {type(data).__name__}")
    return data


@cache
def _packaged(family: str, name: str) -> str:
    return json.dumps(load_yaml(family, name))


def packaged(family: str, name: str) -> dict[str, Any]:
    """Return a fresh copy of a config that ships with the package (read from disk once)."""
    return json.loads(_packaged(family, name))


def merge(base: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return `base` with `overrides` laid over it, mapping by mapping; one of another `kind` replaces."""
    merged = dict(base)
    for key, value in overrides.items():
        old = merged.get(key)
        if isinstance(old, Mapping) and isinstance(value, Mapping) and _same_kind(old, value):
            value = merge(old, value)
        merged[key] = value
    return merged


def _same_kind(base: Mapping[str, Any], overrides: Mapping[str, Any]) -> bool:
    return "kind" not in overrides or base.get("kind", overrides["kind"]) == overrides["kind"]


def validate(model: type[Model], data: Mapping[str, Any]) -> Model:
    """Build `model` from `data`.

    Raises:
        ConfigError: names each bad field, the value given, and what is allowed there.
    """
    try:
        return model.model_validate(data)
    except ValidationError as error:
        lines = [_explain(model, item) for item in error.errors(include_url=False)]
        raise ConfigError(f"{model.__name__}: " + "; ".join(lines)) from None


def _explain(model: type[FrozenModel], item: Any) -> str:
    path, holder = _resolve(model, item["loc"])
    where = ".".join(path)
    if item["type"] == "union_tag_invalid":
        allowed, given = item["ctx"]["expected_tags"], item["ctx"]["tag"]
        return f"{where}.{_unquoted(item)} = {given!r}: must be one of {allowed}"
    if item["type"] == "union_tag_not_found":
        return f"{where}.{_unquoted(item)} is missing in {item['input']!r}"
    if item["type"] == "extra_forbidden":
        fields = list(holder.model_fields)
        near = difflib.get_close_matches(str(item["loc"][-1]), fields, n=3, cutoff=0.5)
        hint = f"did you mean {' or '.join(near)}?" if near else f"allowed: {', '.join(fields)}"
        return f"{where} is not a field ({hint})"
    if item["type"] == "missing":
        return f"{where} is missing in {item['input']!r}"
    message = item["msg"].removeprefix("Value error, ")
    if not where:
        return message
    value = repr(item["input"])
    # A whole workload would bury what is said of it.
    return f"{where} = {value}: {message}" if len(value) <= LONGEST_VALUE else f"{where}: {message}"


def _unquoted(item: Any) -> str:
    return str(item["ctx"]["discriminator"]).strip("'")


def _resolve(model: type[FrozenModel], where: tuple[Any, ...]) -> tuple[list[str], type[FrozenModel]]:
    """Return the path as a user writes it, and the model that holds its last part.

    Pydantic's path also names the member of a tagged union; a user's does not.
    """
    path: list[str] = []
    tagged: dict[str, type[FrozenModel]] = {}
    holder = model
    for part in where:
        if part in tagged:
            model = tagged[part]
            tagged = {}
            continue
        path.append(str(part))
        holder = model
        field = model.model_fields.get(part) if isinstance(part, str) else None
        if field is None:
            continue
        models = [
            m for m in _annotations(field.annotation) if isinstance(m, type) and issubclass(m, FrozenModel)
        ]
        tag = field.discriminator
        if isinstance(tag, str):
            tagged = {name: m for m in models for name in typing.get_args(m.model_fields[tag].annotation)}
        elif models:
            model = models[-1]
    return path, holder


def _annotations(annotation: Any) -> list[Any]:
    inner = typing.get_args(annotation)
    if not inner or (isinstance(annotation, types.GenericAlias) and not inner):
        return [annotation]
    return [leaf for part in inner for leaf in _annotations(part)]


def config_hash(config: BaseModel) -> str:
    """Return the first 16 hex digits of the SHA-256 of a config's canonical JSON."""
    text = json.dumps(config.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
