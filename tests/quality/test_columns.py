"""Column mappings: what patterns fill in, where mappings are found, and what is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from routing_gym.common.config import ConfigError, packaged
from routing_gym.quality.columns import Columns, ModelColumns, load_columns

DATA = Path(__file__).resolve().parents[2].parent / "shared" / "data"

PATTERNS = {"score": "{model}", "completion_tokens": "{model}|tokens", "cost": "{model}|usd"}


def spelt_out(name: str, **prices: float) -> ModelColumns:
    return ModelColumns(score=name, completion_tokens=f"{name}|tokens", cost=f"{name}|usd", **prices)


@pytest.mark.parametrize(
    ("models", "expected"),
    [
        (["a", "b"], {"a": spelt_out("a"), "b": spelt_out("b")}),
        ({"a": "vendor/a"}, {"a": spelt_out("vendor/a")}),
        ({"a": {"name": "vendor/a"}, "b": "b"}, {"a": spelt_out("vendor/a"), "b": spelt_out("b")}),
        ({"a": {"price_in_usd": 2.0}}, {"a": spelt_out("a", price_in_usd=2.0)}),
        (
            {"a": {"name": "x", "score": "a is right", "cost": None}},
            {"a": ModelColumns(score="a is right", completion_tokens="x|tokens")},
        ),
        ({"a": spelt_out("b")}, {"a": spelt_out("b")}),
        ({"a": "{0}"}, {"a": spelt_out("{0}")}),
    ],
)
def test_patterns_fill_in_what_a_model_does_not_spell_out(models: Any, expected: dict[str, Any]) -> None:
    columns = load_columns({**PATTERNS, "models": models})
    assert columns.models == expected
    assert list(columns.models) == list(expected)
    assert Columns.model_validate_json(columns.model_dump_json()) == columns


def test_without_patterns_a_model_has_what_it_spells_out() -> None:
    columns = load_columns({"models": {"a": {"score": "right", "completion_tokens": "length"}}})
    assert columns.models == {"a": ModelColumns(score="right", completion_tokens="length")}
    assert columns.named() == {"models.a.score": "right", "models.a.completion_tokens": "length"}


@pytest.mark.parametrize(
    "layout", [lambda m: m, lambda m: {"columns": m}, lambda m: {"workload": {"columns": m}, "router": "x"}]
)
def test_where_columns_are_found(tmp_path: Path, layout: Any) -> None:
    mapping = {"prompt": "question", **PATTERNS, "models": ["a"]}
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(layout(mapping)))
    expected = Columns(prompt="question", models={"a": spelt_out("a")}, **PATTERNS)
    assert load_columns(path) == load_columns(str(path)) == load_columns(layout(mapping)) == expected
    assert load_columns(expected) is expected


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"models": ["a"]}, r"models\.a = \{\}: score is missing: state .* or the pattern `score`, such as"),
        ({"models": {"a": {"completion_tokens": "n"}}}, r"models\.a = .*: score is missing: .* the pattern"),
        ({"scores": "{model}", "models": ["a"]}, r"scores is not a field \(did you mean score"),
        ({"score": "model", "models": ["a"]}, r"""score = 'model': must hold "\{model\}\""""),
        ({"score": "{model}", "models": ["a", "b", "a"]}, "models lists a more than once"),
        ({"score": "{model}", "models": []}, r"models = \{\}: .*at least 1"),
        ({"score": "{model}"}, "models is missing"),
        ({"score": "{model}", "models": "a"}, r"models = 'a': .*valid dictionary"),
        ({"score": "{model}", "models": [{"name": "a"}]}, "models = .*valid dictionary"),
        ({"score": "{model}", "models": {"a": 3}}, r"models\.a = 3"),
        ({"score": 3, "models": ["a"]}, "score = 3: .*valid string"),
        (
            {"score": "{model}", "models": ["a"], "prompts": "q"},
            r"prompts is not a field \(did you mean prompt",
        ),
        ({"score": "{model}", "models": {"a": {"price_in": 1}}}, r"models\.a\.price_in is not a field"),
        (
            {"score": "{model}", "models": {"a": {"price_in_usd": -1}}},
            r"models\.a\.price_in_usd = -1: .*greater than or equal to 0",
        ),
        ({"score": "{model}", "models": ["a"], "missing": "drop"}, "missing = 'drop': .*'refuse' or 'allow'"),
        ({"score": "{model}", "models": ["a"], "id": "  "}, "id = '  ': .*at least 1 character"),
        ({"columns": ["a"]}, r"columns = \['a'\]: must be a mapping"),
        ("routerbanch", r"no workloads config is named 'routerbanch'.*did you mean routerbench"),
    ],
)
def test_what_is_refused(given: Any, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        load_columns(given)


def test_routerbench_covers_its_catalogue_at_its_prices() -> None:
    catalogue = packaged("cloud_edge", "routerbench-5node")["catalogue"]
    columns = load_columns("routerbench")
    placed = [name for node in catalogue["nodes"] for name in node["models"]]
    assert set(columns.models) == set(placed) == set(catalogue["models"])
    for name, model in columns.models.items():
        listed = catalogue["models"][name]
        assert (model.price_in_usd, model.price_out_usd) == (listed["price_in_usd"], listed["price_out_usd"])


@pytest.mark.skipif(not DATA.is_dir(), reason="../shared/data is not here")
def test_routerbench_s_names_and_prices_are_those_of_its_data() -> None:
    facts = json.loads((DATA / "routerbench_stats.json").read_text())["models"]
    columns = load_columns("routerbench")
    assert {model.score for model in columns.models.values()} == set(facts)
    for model in columns.models.values():
        fact = facts[model.score]
        assert (model.price_in_usd, model.price_out_usd) == (fact["prompt_per_1m"], fact["completion_per_1m"])
        assert model.cost == f"{model.score}|total_cost"
        assert model.completion_tokens == f"{model.score}|completion_tokens"


def test_gsm8k_s_models_are_named_after_their_runs() -> None:
    models = load_columns("gsm8k").models
    assert len({model.score for model in models.values()}) == len(models) == 11
    assert models["qwen2.5-7b"].score == "qwen2.5-7b-instruct@fs-early"
    for name, model in models.items():
        base, _, run = name.partition("@")
        if base != "qwen2.5-7b" or run:
            assert model.score == f"{base}-instruct{'@' if run else ''}{run}"
        assert re.fullmatch(rf"{re.escape(model.score)}\|completion_tokens", model.completion_tokens or "")
        assert model.cost is None
