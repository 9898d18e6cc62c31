"""Config models and named YAML files: merging, errors that help, hashes, copies."""

from __future__ import annotations

import json
import re
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field, ValidationError

from routing_gym.common.config import (
    ConfigError,
    FrozenModel,
    config_hash,
    config_names,
    configs_folder,
    load_yaml,
    merge,
    packaged,
    validate,
)


class Side(FrozenModel):
    length: int = Field(ge=0)


class Box(FrozenModel):
    base: Side
    walls: tuple[Side, ...] = ()
    named: dict[str, tuple[Side, ...]] | None = None
    lid: Side | None = None
    factor: float = 1.0

    @cached_property
    def area(self) -> float:
        return self.factor * self.base.length


json_values = st.recursive(
    st.none() | st.integers() | st.text(max_size=3),
    lambda inner: st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)
mappings = st.dictionaries(st.text(max_size=3), json_values, max_size=4)


def leaves(data: dict[str, Any], path: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
    """Return every value that is no mapping by its path."""
    found: dict[tuple[str, ...], Any] = {}
    for key, value in data.items():
        found |= leaves(value, (*path, key)) if isinstance(value, dict) else {(*path, key): value}
    return found


def test_merge_lays_mappings_over_mappings_and_replaces_the_rest() -> None:
    base = {"a": {"x": 1, "y": {"z": 2}}, "b": [1, 2], "c": 3}
    assert merge(base, {"a": {"y": {"w": 4}}, "b": [9], "d": {"e": 5}}) == {
        "a": {"x": 1, "y": {"z": 2, "w": 4}},
        "b": [9],
        "c": 3,
        "d": {"e": 5},
    }
    assert base == {"a": {"x": 1, "y": {"z": 2}}, "b": [1, 2], "c": 3}, "merge changed its argument"


@given(mappings, mappings)
def test_merge_keeps_every_override(base: dict[str, Any], overrides: dict[str, Any]) -> None:
    merged = leaves(merge(base, overrides))
    assert leaves(overrides).items() <= merged.items()
    assert set(merged) <= set(leaves(base)) | set(leaves(overrides))


@given(mappings)
def test_merge_with_nothing_changes_nothing(data: dict[str, Any]) -> None:
    assert merge(data, {}) == merge({}, data) == merge(data, data) == data


@pytest.mark.parametrize(
    ("data", "told"),
    [
        ({"base": {"length": -1}}, "base.length = -1: Input should be greater than or equal to 0"),
        ({"base": {"length": 1}, "walls": [{"length": "x"}]}, "walls.0.length = 'x': "),
        ({"base": {"length": 1}, "factor": float("inf")}, "factor = inf: Input should be a finite number"),
        ({"factor": 2.0}, "base is missing"),
        ({"base": {"length": 1}, "fctor": 2}, "fctor is not a field (did you mean factor?)"),
        ({"base": {"length": 1}, "q": 2}, "q is not a field (allowed: base, walls, named, lid, factor)"),
        ({"base": {"length": 1, "lenght": 2}}, "base.lenght is not a field (did you mean length?)"),
        ({"base": {"length": 1}, "lid": {"length": 1, "q": 2}}, "lid.q is not a field (allowed: length)"),
        ({"base": {"length": 1}, "walls": [{"lengt": 1, "length": 1}]}, "walls.0.lengt is not a field"),
        (
            {"base": {"length": 1}, "named": {"base": [{"length": 1, "q": 0}]}},
            "named.base.0.q is not a field (al",
        ),
    ],
)
def test_validate_names_field_value_and_what_is_allowed(data: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(told)) as caught:
        validate(Box, data)
    assert str(caught.value).startswith("Box: ")
    assert caught.value.__cause__ is None


def test_validate_tells_every_error_at_once() -> None:
    with pytest.raises(ConfigError, match=r"base\.length = -1: .*; factor = 'x': "):
        validate(Box, {"base": {"length": -1}, "factor": "x"})


def test_models_are_frozen() -> None:
    box = Box(base=Side(length=2))
    with pytest.raises(ValidationError, match="frozen"):
        box.factor = 2.0
    with pytest.raises(ValidationError, match="frozen"):
        box.base.length = 3


def test_a_copy_forgets_cached_properties() -> None:
    box = Box(base=Side(length=2))
    assert box.area == 2.0
    assert box.model_copy(update={"factor": 3.0}).area == 6.0
    assert box.model_copy(update={"factor": 3.0}, deep=True).area == 6.0
    assert box.area == 2.0


@given(st.integers(0, 9), st.floats(-9, 9), st.integers(0, 9), st.floats(-9, 9))
def test_hashes_are_equal_exactly_when_configs_are(a: int, x: float, b: int, y: float) -> None:
    first, second = Box(base=Side(length=a), factor=x + 0.0), Box(base=Side(length=b), factor=y + 0.0)
    assert (config_hash(first) == config_hash(second)) == (first == second)


def test_hash_is_that_of_the_canonical_json() -> None:
    assert config_hash(Side(length=3)) == "d58e52ff93b314f1"  # printf '{"length":3}' | sha256sum
    assert config_hash(Box(base=Side(length=3))) == config_hash(
        Box.model_validate({"factor": 1, "base": {"length": 3}})
    )


def test_packaged_returns_a_fresh_copy_each_time() -> None:
    first = packaged("cluster", "default")
    first["scenarios"]["burst"].clear()
    first["demand"]["base_ms"] = 0
    assert packaged("cluster", "default") == load_yaml("cluster", "default") != first


def test_every_shipped_config_loads() -> None:
    assert {"default", "training"} <= set(config_names("cluster"))
    assert (configs_folder() / "cluster").is_dir()
    for name in config_names("cluster"):
        assert load_yaml("cluster", name) == yaml.safe_load(
            (configs_folder() / "cluster" / f"{name}.yaml").read_text()
        )


def test_a_file_is_read_by_its_path(tmp_path: Path) -> None:
    for name, text in (
        ("mine.yaml", "a: {b: 1}"),
        ("mine.yml", "a: {b: 1}"),
        ("mine.json", '{"a": {"b": 1}}'),
    ):
        path = tmp_path / name
        path.write_text(text)
        assert load_yaml("cluster", path) == load_yaml("cluster", str(path)) == {"a": {"b": 1}}


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("defualt", None, r"no cluster config is named 'defualt'; there are default, .*must end in \.yaml"),
        ("gone.yaml", None, r"cannot read the config .*gone\.yaml: No such file"),
        ("list.yaml", "[1, 2]", r"list\.yaml must hold a mapping of fields, not list"),
        ("empty.yaml", "", r"empty\.yaml must hold a mapping of fields, not NoneType"),
        ("bad.yaml", "a: [1", r"bad\.yaml is not valid YAML: .*line 1"),
    ],
)
def test_what_is_no_config_is_refused(tmp_path: Path, name: str, text: str | None, told: str) -> None:
    path = tmp_path / name
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError, match=f"(?s){told}"):
        load_yaml("cluster", path if path.suffix else name)


def test_canonical_json_is_what_a_config_is_built_from() -> None:
    box = Box(base=Side(length=3), walls=(Side(length=1),), named={"a": (Side(length=2),)})
    assert validate(Box, json.loads(box.model_dump_json())) == box
