"""The studies that ship: each can be played, on seeds that may be reported, and asks what it says it asks."""

from __future__ import annotations

import importlib.util
import itertools
import re
from pathlib import Path

import pytest

from routing_gym.common.config import config_names
from routing_gym.evaluation.decisions import missing_solver
from routing_gym.evaluation.runner import (
    DEVELOPMENT_SEEDS,
    TRAINING_SEEDS_FROM,
    VALIDATION_SEEDS,
    Router,
    make_jobs,
    run_jobs,
)
from routing_gym.policy import list_policies, make_policy, policy_class
from routing_gym.studies.config import Groups, Part, Study

DOCS = Path(__file__).resolve().parents[2] / "docs" / "studies.md"
NAMES = [
    *("exploration", "cema-hyperparameters", "requests", "destinations"),
    *("load", "fleet", "admission", "benchmark"),
]
STUDIES = {name: Study.create(name) for name in NAMES}
PARTS = {(name, part): study.parts[part] for name, study in STUDIES.items() for part in study.parts}
DOCUMENTED = {
    "cluster": ["round_robin", "least_queue", "latency_aware", "adaptive"],
    "cloud_edge": ["round_robin", "least_loaded", "cloud_only", "edge_only", "uniroute", "cema"],
}
SCENARIOS = ("steady", "burst", "straggler", "failure")
EXPLORATION = set(itertools.product((100.0, 180.0, 250.0), (0.5, 1.0), SCENARIOS))
each_part = pytest.mark.parametrize("part", PARTS.values(), ids=["-".join(key) for key in PARTS])


def routers_of(part: Part) -> list[Router]:
    return [router for routers in part.groups().values() for router in routers]


def labels(part: Part, group: str) -> list[str]:
    return [router.label for router in part.groups()[group]]


def explored(part: Part) -> set[tuple[float, float, str]]:
    return {
        (c.config.rate_per_s, c.config.heterogeneity, c.config.scenario) for c in part.conditions_played()
    }


# What each of them owes


def test_every_study_that_ships_is_looked_at_here() -> None:
    """`learned`, which needs traces, is looked at beside the routers that it is of."""
    assert sorted([*NAMES, "learned"]) == config_names("studies")


@each_part
def test_a_part_can_be_played(part: Part) -> None:
    """Its conditions exist, each once; its routers can be made, and know what to do there."""
    conditions = part.conditions_played()
    assert len({condition.name for condition in conditions}) == len(conditions) > 0
    assert len({repr(condition.config) for condition in conditions}) == len(conditions)
    for router in [*routers_of(part), *part.candidates_played()]:
        cls = policy_class(router.name)
        assert cls.family == part.family
        if router.name == "cloud_edge/optimal" and missing_solver():
            continue
        policy = make_policy(router.name, **router.params)
        if router.plays:
            for condition in conditions:
                policy.configure([condition.config])


@each_part
def test_a_part_s_routers_are_what_their_group_says(part: Part) -> None:
    groups = part.groups()
    for router in groups["documented"]:
        assert router.name.partition("/")[2] in DOCUMENTED[part.family]
    assert all(router.name.endswith("/learned") for router in groups["trained"])
    assert all(router.role == "yardstick" for router in groups["yardsticks"])
    for group in ("documented", "fixed", "trained"):
        assert all(router.role == "router" for router in groups[group])
    known = {router.label for router in [*routers_of(part), *part.candidates_played()]}
    assert part.reference in known or part.reference is None
    assert set(part.published) <= known


@each_part
def test_a_part_s_seeds_may_be_reported_and_are_enough_for_intervals(part: Part) -> None:
    seeds = part.seeds_played()
    assert not set(seeds) & set(DEVELOPMENT_SEEDS)
    assert max(seeds) < TRAINING_SEEDS_FROM
    assert len(set(seeds)) == len(seeds) >= 8


@each_part
def test_a_part_s_axis_is_a_number_that_varies(part: Part) -> None:
    if part.axis is not None:
        values = [condition.labels[part.axis] for condition in part.conditions_played()]
        assert len(set(values)) > 1
        assert all(isinstance(value, (int, float)) for value in values)


@pytest.mark.parametrize("name", NAMES)
def test_the_page_gives_a_study_s_sizes(name: str) -> None:
    """Parts and episodes, those of a selection included."""
    parts = STUDIES[name].parts.values()
    reported = [
        len(routers_of(part)) * len(part.conditions_played()) * len(part.seeds_played()) for part in parts
    ]
    chosen = [
        len(part.candidates_played()) * len(part.conditions_played()) * len(part.selection_seeds())
        for part in parts
    ]
    # The chosen candidate is played where it is in no group.
    extra = sum(len(part.conditions_played()) * len(part.seeds_played()) for part in parts if part.candidates)
    row = re.search(rf"^\| `{name}` \|.*\| (\d+) \| ([\d,]+) \|", DOCS.read_text(encoding="utf-8"), re.M)
    assert row is not None
    assert (int(row[1]), int(row[2].replace(",", ""))) == (len(parts), sum(reported) + sum(chosen) + extra)


def test_the_page_s_example_is_a_study_that_can_be_played(tmp_path: Path) -> None:
    blocks = re.findall(r"```yaml\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.S)
    assert blocks
    for block in blocks:
        path = tmp_path / "example.yaml"
        path.write_text(block, encoding="utf-8")
        for part in Study.create(path).parts.values():
            test_a_part_can_be_played(part)


def test_the_page_has_every_field() -> None:
    text = DOCS.read_text(encoding="utf-8")
    for field in [*Part.model_fields, *Groups.model_fields]:
        assert f"`{field}`" in text


# What they ask


def test_exploration_is_the_source_s_study() -> None:
    (part,) = STUDIES["exploration"].parts.values()
    assert len(part.conditions_played()) == 24
    assert explored(part) == EXPLORATION
    assert labels(part, "documented") == DOCUMENTED["cluster"]
    weights = [make_policy(router.name, **router.params).c for router in part.candidates_played()]
    assert weights == [0.0, 0.05, 0.1, 0.2, 0.35, 0.5]
    assert part.selection_seeds() == list(DEVELOPMENT_SEEDS)
    assert part.seeds_played() == list(VALIDATION_SEEDS)
    assert part.published == {"adaptive": 0.7242, "latency_aware": 0.7239}
    assert make_policy("cluster/adaptive").c == 0.35


def test_cema_hyperparameters_cover_the_source_s_ranges() -> None:
    """Table IV, with both normalisations, one at a time and population by generations."""
    study = STUDIES["cema-hyperparameters"]
    assert list(study.parts) == ["published", "fixed", "grid"]
    ranges = {
        "population": (10, 240),
        "generations": (20, 120),
        "crossover": (0.8, 0.9),
        "mutation": (0.05, 0.2),
        "repair": (0.0, 1.0),
    }
    selected = make_policy("cloud_edge/cema").parameters
    for name in ("published", "fixed"):
        played = [
            make_policy(router.name, **router.params).parameters
            for router in routers_of(study.parts[name])
            if router.name == "cloud_edge/cema"
        ]
        searched = [one for one in played if one.normalisation != selected.normalisation] or played
        assert {one.normalisation for one in searched} == {"fixed" if name == "fixed" else "population"}
        for parameter, (low, high) in ranges.items():
            values = {getattr(one, parameter) for one in searched}
            assert min(values) <= low
            assert max(values) >= high
            assert len(values) > 2
        centre = selected.model_copy(update={"normalisation": searched[0].normalisation})
        assert centre in searched
        for one in searched:
            differing = [field for field in ranges if getattr(one, field) != getattr(centre, field)]
            assert len(differing) <= 1
    grid = [router.params for router in routers_of(study.parts["grid"]) if "population" in router.params]
    corners = set(itertools.product((10, 30, 240), (20, 120)))
    for normalisation in (None, "fixed"):
        found = {
            (params["population"], params["generations"])
            for params in grid
            if params.get("normalisation") == normalisation
        }
        assert corners <= found


def test_generations_5_to_20_tell_when_the_search_has_converged() -> None:
    """Section V-C1: generation 15 has 93.5 to 98.8 % of the reduction at 20; and R to 1.5 R is 30 to 45."""
    part = STUDIES["cema-hyperparameters"].parts["published"]
    params = [router.params for router in part.groups()["fixed"]]
    assert {"generations": 15} in params
    assert {"population": 45} in params
    assert part.fields["requests"] == 30
    assert part.gap


def test_requests_and_destinations_are_the_source_s() -> None:
    (part,) = STUDIES["requests"].parts.values()
    found = {(c.labels["config"], c.config.requests) for c in part.conditions_played()}
    assert found == set(itertools.product(("routerbench-5node", "testbed-6node"), (10, 30, 50)))
    for condition in part.conditions_played():
        assert condition.config.max_requests >= condition.config.requests
    (part,) = STUDIES["destinations"].parts.values()
    assert [c.labels["destinations"] for c in part.conditions_played()] == [11, 22, 44, 88]
    assert {c.config.requests for c in part.conditions_played()} == {30}


def test_load_and_fleet_vary_one_thing() -> None:
    (part,) = STUDIES["load"].parts.values()
    loads = {condition.labels["load"] for condition in part.conditions_played()}
    assert (min(loads), max(loads)) == (0.3, 1.2)
    fleet = STUDIES["fleet"].parts["fleet"]
    replicas = [condition.config.replicas for condition in fleet.conditions_played()]
    assert sorted(set(replicas)) == [3, 4, 8, 16, 32, 64]
    for part in STUDIES["fleet"].parts.values():
        by_rate: dict[float, set[float]] = {}
        for condition in part.conditions_played():
            by_rate.setdefault(condition.labels["rate_per_s"], set()).add(condition.labels["load"])
        assert all(len(loads) == 1 for loads in by_rate.values())


def test_admission_is_a_part_of_its_own() -> None:
    for study in STUDIES.values():
        for part in study.parts.values():
            if part.family == "cluster":
                assert len({condition.config.admission for condition in part.conditions_played()}) == 1
    without, rejecting = STUDIES["admission"].parts.values()
    assert explored(without) == explored(rejecting) == EXPLORATION
    assert without.seeds_played() == rejecting.seeds_played()
    assert [part.conditions_played()[0].config.admission for part in (without, rejecting)] == [False, True]


def test_the_benchmark_has_every_router() -> None:
    """And what scores are normalised by: a random router, the documented ones, and the clairvoyant."""
    study = STUDIES["benchmark"]
    played = {router.name for part in study.parts.values() for router in routers_of(part)}
    assert played == {*list_policies("cluster"), *list_policies("cloud_edge")}
    assert explored(study.parts["cluster"]) == EXPLORATION
    for name, part in study.parts.items():
        assert "random" in labels(part, "fixed")
        if name != "frontier":
            assert labels(part, "documented") == DOCUMENTED[part.family]
        if part.family == "cluster":
            assert labels(part, "yardsticks") == ["clairvoyant", "bound"]
            assert part.seeds_played() == list(VALIDATION_SEEDS)


@pytest.mark.skipif(
    importlib.util.find_spec("highspy") is None, reason='needs highspy: pip install "routing-gym[optimal]"'
)
def test_batches_are_played_by_every_router() -> None:
    (part,) = STUDIES["requests"].parts.values()
    jobs = make_jobs(routers_of(part), part.conditions_played()[-1:], part.seeds_played()[:1])
    results = list(run_jobs(jobs, gap=True))
    assert {result.job.key for result in results} == {job.key for job in jobs}
    for result in results:
        assert result.metrics["objective"] >= 0.0
        assert result.metrics["gap"] >= -1e-9
