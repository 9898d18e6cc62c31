"""What a study file may say, and what becomes of it: routers, conditions, seeds."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing_gym.cluster.config import ClusterConfig
from routing_gym.cluster.workload import make_workload
from routing_gym.common.config import ConfigError, validate
from routing_gym.evaluation.arguments import routers_of
from routing_gym.evaluation.runner import DEVELOPMENT_SEEDS, VALIDATION_SEEDS, Router
from routing_gym.studies.config import Part, Study, choose_parts, expand

LEAST: dict[str, Any] = {
    "title": "some",
    "family": "cluster",
    "config": "default",
    "routers": {"documented": ["adaptive"]},
    "reference": "adaptive",
}
BATCHES: dict[str, Any] = {
    **LEAST,
    "family": "cloud_edge",
    "config": "routerbench-5node",
    "fields": {"windows": 1, "requests": 5},
    "routers": {"documented": ["cema"]},
    "reference": "cema",
}


def make_part(base: dict[str, Any] = LEAST, **fields: Any) -> Part:
    study = validate(Study, {"title": "a study", "parts": {"p": {**base, **fields}}})
    return study.parts["p"]


def refusal(base: dict[str, Any] = LEAST, **fields: Any) -> str:
    with pytest.raises(ConfigError) as error:
        make_part(base, **fields)
    return str(error.value)


# Routers


def test_an_entry_is_what_one_types() -> None:
    assert expand("adaptive:c=0.1", "cluster") == routers_of("adaptive:c=0.1", "cluster")
    assert [router.label for router in expand("random, adaptive", "cluster")] == ["random", "adaptive"]
    assert [router.name for router in expand("random", "cloud_edge")] == ["cloud_edge/random"]


def test_a_mapping_is_every_combination_in_order() -> None:
    """The same routers, labels included, as typing each of them."""
    grid = {"normalisation": ["fixed"], "population": [10, 30], "mutation": [0.05, 0.1]}
    found = expand({"cema": grid}, "cloud_edge")
    typed = [
        f"cema:normalisation=fixed:population={population}:mutation={mutation}"
        for population in (10, 30)
        for mutation in (0.05, 0.1)
    ]
    assert found == routers_of(",".join(typed), "cloud_edge")
    assert found[0] == Router(
        typed[0], "cloud_edge/cema", {"normalisation": "fixed", "population": 10, "mutation": 0.05}
    )


def test_a_mapping_may_name_several_routers_and_no_parameter() -> None:
    found = expand({"adaptive": {"c": [0.0, 0.5]}, "cluster/random": {}}, "cluster")
    assert [router.label for router in found] == ["adaptive:c=0.0", "adaptive:c=0.5", "random"]


@given(
    st.dictionaries(
        st.sampled_from(["population", "generations", "repair"]),
        st.lists(st.integers(1, 9), min_size=1, max_size=3, unique=True),
    )
)
def test_a_mapping_is_as_large_as_its_product(grid: dict[str, list[int]]) -> None:
    found = expand({"cema": grid}, "cloud_edge")
    assert [tuple(router.params.values()) for router in found] == list(itertools.product(*grid.values()))
    assert len({router.label for router in found}) == len(found)


def test_a_router_in_several_groups_is_in_the_first() -> None:
    part = make_part(
        routers={
            "documented": ["adaptive", "round_robin"],
            "fixed": ["random", "adaptive", {"adaptive": {"c": [0.1, 0.2]}}, "adaptive:c=0.2"],
            "yardsticks": ["bound"],
        }
    )
    labels = {group: [router.label for router in routers] for group, routers in part.groups().items()}
    assert labels == {
        "documented": ["adaptive", "round_robin"],
        "fixed": ["random", "adaptive:c=0.1", "adaptive:c=0.2"],
        "trained": [],
        "yardsticks": ["bound"],
    }


def test_a_reference_that_is_in_no_group_joins_the_fixed_ones() -> None:
    part = make_part(routers={"documented": ["adaptive"], "fixed": ["random"]})
    (chosen,) = expand("adaptive:c=0.1", "cluster")
    assert [router.label for router in part.groups(chosen)["fixed"]] == ["random", "adaptive:c=0.1"]
    (inside,) = expand("adaptive", "cluster")
    assert part.groups(inside) == part.groups()


def test_candidates_are_routers_in_order() -> None:
    part = make_part(candidates=[{"adaptive": {"c": [0.0, 0.1]}}, "adaptive"], reference=None)
    assert [router.label for router in part.candidates_played()] == [
        "adaptive:c=0.0",
        "adaptive:c=0.1",
        "adaptive",
    ]


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("adaptive:c", "adaptive:c: must be NAME=VALUE"),
        ("adptive", "no router is named 'adptive'; did you mean cluster/adaptive?"),
        ({"adptive": {"c": [1]}}, "no router is named 'adptive'"),
    ],
)
def test_a_router_that_is_none_is_refused(entry: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message.replace("?", r"\?")):
        expand(entry, "cluster")


# Conditions


def test_a_grid_is_crossed_over_the_fields_laid_under_it() -> None:
    part = make_part(
        fields={"prediction_sigma": 0.0, "scenario": "burst"},
        conditions={"rate_per_s": [100, 200], "scenario": ["steady", "failure"]},
    )
    conditions = part.conditions_played()
    assert [condition.name for condition in conditions] == [
        "rate_per_s 100, scenario steady",
        "rate_per_s 100, scenario failure",
        "rate_per_s 200, scenario steady",
        "rate_per_s 200, scenario failure",
    ]
    for condition in conditions:
        load = make_workload(condition.config).offered_load
        assert condition.labels == {
            "rate_per_s": condition.config.rate_per_s,
            "scenario": condition.config.scenario,
            "load": round(load, 4),
        }
        assert condition.config.prediction_sigma == 0.0
    assert conditions[0].config == ClusterConfig.create("default", prediction_sigma=0.0, rate_per_s=100)


def test_several_grids_come_one_after_another() -> None:
    part = make_part(conditions=[{"load": [0.5, 0.9]}, {"replicas": [4], "scenario": ["burst"]}, {}])
    names = [condition.name for condition in part.conditions_played()]
    assert names == ["load 0.5", "load 0.9", "replicas 4, scenario burst", "default"]


def test_without_conditions_the_config_is_one() -> None:
    (condition,) = make_part(BATCHES).conditions_played()
    assert (condition.name, condition.config.requests) == ("routerbench-5node", 5)
    assert condition.labels == {"destinations": 11}


def test_a_dotted_name_is_a_field_of_a_field() -> None:
    part = make_part(
        fields={"output_tokens": {"median": 50.0, "sigma": 0.1}},
        conditions={"output_tokens.sigma": [0.2, 0.9]},
    )
    conditions = part.conditions_played()
    tokens = [condition.config.output_tokens for condition in conditions]
    assert [(one.median, one.sigma) for one in tokens] == [(50.0, 0.2), (50.0, 0.9)]
    assert [condition.labels["output_tokens.sigma"] for condition in conditions] == [0.2, 0.9]


def test_config_as_a_condition_takes_others_by_name() -> None:
    part = make_part(
        BATCHES, conditions={"config": ["testbed-6node", "routerbench-5node"], "replicate": [1, 2]}
    )
    conditions = part.conditions_played()
    assert [condition.labels["destinations"] for condition in conditions] == [6, 12, 11, 22]
    assert [condition.config.destination_count for condition in conditions] == [6, 12, 11, 22]
    assert conditions[0].labels["config"] == "testbed-6node"
    assert {condition.config.requests for condition in conditions} == {5}


def test_the_load_of_so_many_replicas_is_that_of_the_rate() -> None:
    part = make_part(load_of_replicas=3, conditions={"replicas": [3, 6, 5], "rate_per_s": [180]})
    loads = [make_workload(condition.config).offered_load for condition in part.conditions_played()]
    usual = make_workload(ClusterConfig.create("default", rate_per_s=180)).offered_load
    assert loads == pytest.approx([usual] * 3)
    rates = [make_workload(condition.config).rate_per_ms for condition in part.conditions_played()]
    assert rates[:2] == pytest.approx([0.180, 0.360])


def test_a_trace_is_a_file_in_the_folder_of_data(tmp_path: Path) -> None:
    rows = "\n".join(f"{k * 0.01},{100 + k % 7},{50 + k % 5}" for k in range(3000))
    (tmp_path / "some.csv").write_text(f"arrival_s,prompt_tokens,output_tokens\n{rows}\n")
    part = make_part(fields={"load": 0.5}, conditions={"trace": ["some.csv"]})
    assert part.traces == ["some.csv"]
    (condition,) = part.conditions_played(tmp_path)
    assert condition.config.trace == str(tmp_path / "some.csv")
    assert condition.labels["trace"] == "some.csv"
    workload = make_workload(condition.config)
    assert workload.length_ms is not None
    assert condition.labels["trace_s"] == pytest.approx(workload.length_ms / 1000, abs=0.001)
    assert part.fields == {"load": 0.5}


@pytest.mark.parametrize(
    ("base", "conditions", "message"),
    [
        (LEAST, {"lod": [0.5]}, r"lod is not a field \(did you mean load\?\)"),
        (LEAST, {"load": [0.5, -1]}, "load = -1: Input should be greater than 0"),
        (LEAST, {"demand.bas_ms": [1.0]}, "demand.bas_ms is not a field"),
        (LEAST, {"config": ["nope"]}, "no cluster config is named 'nope'"),
        (BATCHES, {"replicate": [0]}, "replicate = 0: Input should be greater than or equal to 1"),
    ],
)
def test_a_condition_that_cannot_be_names_field_and_value(base: Any, conditions: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_part(base, conditions=conditions).conditions_played()


# Seeds


def test_seeds_are_the_validation_seeds_unless_told() -> None:
    assert make_part().seeds_played() == list(VALIDATION_SEEDS)
    assert make_part(seeds="3").seeds_played() == [30_000, 30_001, 30_002]
    assert make_part(seeds="20000-20002").seeds_played() == [20_000, 20_001, 20_002]
    assert make_part(seeds="7,5").seeds_played() == [7, 5]


def test_asking_for_so_many_seeds_takes_the_part_s_first() -> None:
    part = make_part(seeds="20003-20009")
    assert part.seeds_played("2") == [20_003, 20_004]
    assert part.seeds_played("99") == part.seeds_played()
    assert part.seeds_played("30000-30001") == [30_000, 30_001]
    assert part.selection_seeds() == part.selection_seeds("99") == list(DEVELOPMENT_SEEDS)
    assert part.selection_seeds("2") == list(DEVELOPMENT_SEEDS[:2])
    assert part.selection_seeds("30000-30001") == list(DEVELOPMENT_SEEDS)


@given(st.sampled_from([*DEVELOPMENT_SEEDS, 1_000_000, 1_234_567]))
def test_seeds_that_were_trained_on_or_chosen_by_are_refused(spent: int) -> None:
    message = rf"{spent} may have been seen .* 10000 to 10007, below 1000000"
    with pytest.raises(ConfigError, match=rf"seeds = 20000,{spent}: {message}"):
        make_part(seeds=f"20000,{spent}")
    with pytest.raises(ConfigError, match=rf"--seeds 20000,{spent}: {message}"):
        make_part().seeds_played(f"20000,{spent}")


# Files


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"famly": "cluster"}, "parts.p.famly is not a field (did you mean family?)"),
        ({"family": "clouds"}, "parts.p.family = 'clouds': Input should be 'cluster' or 'cloud_edge'"),
        ({"seeds": 100}, "parts.p.seeds = 100: Input should be a valid string"),
        ({"reference": None}, "reference is missing: name a router, or candidates"),
        ({"routers": {"fixd": []}}, "parts.p.routers.fixd is not a field (did you mean fixed?)"),
        ({"routers": {"fixed": [3]}}, "parts.p.routers.fixed.0.router = 3: Input should be a valid string"),
        (
            {"candidates": [{"adaptive": {"c": []}}]},
            "parts.p.candidates.0.grid.adaptive.c = []: Tuple should have at least 1 item",
        ),
        ({"conditions": {"load": 0.5}}, "parts.p.conditions.0.load = 0.5: Input should be a valid tuple"),
        ({"conditions": []}, "parts.p.conditions = []: Tuple should have at least 1 item"),
        ({"load_of_replicas": 0}, "parts.p.load_of_replicas = 0: Input should be greater than or equal to 1"),
        (
            {"published": {"adaptive": "x"}},
            "parts.p.published.adaptive = 'x': Input should be a valid number",
        ),
    ],
)
def test_a_part_that_cannot_be_names_field_value_and_what_is_allowed(fields: Any, message: str) -> None:
    assert message in refusal(**fields)


def test_load_of_replicas_is_of_the_cluster() -> None:
    assert "load_of_replicas = 3: " in refusal(BATCHES, load_of_replicas=3)


def test_a_study_is_a_file_or_one_that_ships(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(
        "title: mine\nparts:\n  p:\n    title: some\n    family: cluster\n    config: default\n"
        "    routers: {fixed: [random]}\n    reference: random\n"
    )
    study = Study.create(path)
    assert (study.title, list(study.parts)) == ("mine", ["p"])
    with pytest.raises(ConfigError, match=r"no studies config is named 'explore'; there are .*exploration"):
        Study.create("explore")
    path.write_text("title: mine\nparts: {}\n")
    with pytest.raises(ConfigError, match=r"parts = \{\}: Dictionary should have at least 1 item"):
        Study.create(path)


def test_parts_are_chosen_by_name_in_the_study_s_order() -> None:
    parts = {"a": make_part(), "b": make_part(), "c": make_part(BATCHES)}
    assert list(choose_parts(parts, None)) == ["a", "b", "c"]
    assert list(choose_parts(parts, ["c", "a"])) == ["a", "c"]
    with pytest.raises(ConfigError, match="--parts d: must be of a, b, c"):
        choose_parts(parts, ["a", "d"])
