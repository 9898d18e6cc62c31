"""Conditions of the cluster: what is refused, where the constants are, what distributions sample."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from routing_gym.cluster.config import (
    ClusterConfig,
    Demand,
    Event,
    Jitter,
    TokenDistribution,
)
from routing_gym.cluster.distribution import ClusterDistribution, resolve
from routing_gym.common.config import ConfigError, config_hash, configs_folder, load_yaml

DEFAULT_YAML = configs_folder() / "cluster" / "default.yaml"
SCENARIOS = ("steady", "burst", "straggler", "failure")


# What is refused


def event(**changes: Any) -> dict[str, Any]:
    """Return an override with one event: a failure of replica 0 at 1 s, but for the changes."""
    fields = {"time_s": 1.0, "kind": "failure", "replica": 0} | changes
    return {"events": [{key: value for key, value in fields.items() if value != ...}]}


# What is given, and the field, the value and what is allowed as the message must say them.
BAD = [
    ({"replicas": 0}, "replicas = 0: Input should be greater than or equal to 1"),
    ({"replicas": 257}, "replicas = 257: Input should be less than or equal to 256"),
    ({"rate_per_s": -1.0}, "rate_per_s = -1.0: Input should be greater than or equal to 0"),
    ({"rate_per_s": math.nan}, "rate_per_s = nan: Input should be a finite number"),
    ({"load": 0.0}, "load = 0.0: Input should be greater than 0"),
    ({"queue_capacity": 0}, "queue_capacity = 0: Input should be greater than or equal to 1"),
    ({"deadline_ms": 0}, "deadline_ms = 0: Input should be greater than 0"),
    ({"measured_s": 0}, "measured_s = 0: Input should be greater than 0"),
    ({"warmup_s": -1}, "warmup_s = -1: Input should be greater than or equal to 0"),
    ({"prediction_sigma": -0.1}, "prediction_sigma = -0.1: Input should be greater than or equal to 0"),
    ({"ewma_alpha": 1.5}, "ewma_alpha = 1.5: Input should be less than or equal to 1"),
    ({"observation": "all"}, "observation = 'all': Input should be 'full' or 'router'"),
    ({"service_ms": []}, "service_ms = []: Tuple should have at least 1 item"),
    ({"service_ceiling_ms": 10}, "service_ceiling_ms = 10: must be at least reference_ms, 11"),
    (
        {"heterogeneity": 4.0},
        "heterogeneity = 4.0: gives replica 0 a mean service of -1 ms; every mean must be above 0",
    ),
    ({"heterogeneity": -2.2}, "heterogeneity = -2.2: gives replica 2 a mean service of "),
    (
        {"scenario": "stragler"},
        "scenario = 'stragler': must be one of steady, burst, straggler, failure (did you mean straggler?)",
    ),
    ({"rate": 100}, "rate is not a field (did you mean trace or rate_per_s?)"),
    ({"demand": {"base": 1.0}}, "demand.base is not a field (did you mean base_ms?)"),
    ({"jitter": {"high": 1.1}}, "jitter.high is not a field (allowed: low, width)"),
    (
        {"scenarios": {"mine": [{"time_s": 1, "kind": "failure", "repica": 0}]}},
        "scenarios.mine.0.repica is not",
    ),
    (
        {"reward": "goodput"},
        "reward = 'goodput': must be one of on_time, slo, latency, weighted, or five weights",
    ),
    (
        {"reward": [1, 0, 0, 0]},
        "reward = [1, 0, 0, 0]: must be one of on_time, slo, latency, weighted, or five",
    ),
    (
        {"reward": [1, 0, 0, 0, "x"]},
        "reward = [1, 0, 0, 0, 'x']: must be one of on_time, slo, latency, weighted,",
    ),
    ({"reward": 1.0}, "reward = 1.0: must be one of on_time, slo, latency, weighted, or five weights"),
    ({"time_step_ms": 0.3}, "time_step_ms = 0.3: must be a power of two (such as 0.25, 0.5 or 1)"),
    ({"time_step_ms": 3}, "time_step_ms = 3: must be a power of two"),
    ({"signal_interval_ms": 0.75}, "signal_interval_ms = 0.75: must be a multiple of the time step, 0.5 ms"),
    ({"warmup_s": 0.00025}, "warmup_s = 0.00025: must be a multiple of the time step, 0.5 ms"),
    ({"measured_s": 1.0001}, "measured_s = 1.0001: must be a multiple of the time step, 0.5 ms"),
    ({"measured_s": 1e9}, "measured_s = 1e+09: must take fewer than 2^30 time steps"),
    ({"measured_s": 1e308}, "measured_s = 1e+308: must take fewer than 2^30 time steps"),
    ({"trace_full": True}, "trace_full = True: needs a trace"),
    (
        {"trace": "arrivals.csv", "scenario": "burst"},
        "trace = 'arrivals.csv': brings its own arrivals, so no rate event is allowed; scenario 'burst' with "
        "events has one at 6 s",
    ),
    (
        {"trace": "arrivals.csv"} | event(kind="rate", replica=..., factor=1.0),
        "trace = 'arrivals.csv': brings its own arrivals, so no rate event is allowed",
    ),
    ({"demand": {"base_ms": 0}}, "base_ms must be above 0, so that every request takes time"),
    ({"demand": {"output_ms": -1}}, "demand.output_ms = -1: Input should be greater than or equal to 0"),
    ({"jitter": {"low": 0}}, "jitter.low = 0: Input should be greater than 0"),
    ({"prompt_tokens": {"median": 0}}, "prompt_tokens.median = 0: Input should be greater than 0"),
    ({"output_tokens": {"minimum": 600}}, "minimum 600 must not exceed maximum 512"),
    (event(time_s=-0.5), "events.0.time_s = -0.5: Input should be greater than or equal to 0"),
    (event(time_s=...), "events.0.time_s is missing"),
    (
        event(kind="crash"),
        "events.0.kind = 'crash': Input should be 'rate', 'slowdown', 'failure' or 'recovery'",
    ),
    (event(replica=-1), "events.0.replica = -1: Input should be greater than or equal to 0"),
    (event(replica=3), "events: a failure event names replica 3; there are replicas 0 to 2"),
    (event(replica=...), "a failure event needs a replica"),
    (event(factor=2.0), "a failure event takes no factor"),
    (event(kind="recovery", replica=...), "a recovery event needs a replica"),
    (event(kind="slowdown"), "a slowdown event needs a factor"),
    (event(kind="slowdown", factor=0.0), "a slowdown event's factor must be above 0"),
    (event(kind="slowdown", factor=2.0, replica=...), "a slowdown event needs a replica"),
    (event(kind="rate", replica=...), "a rate event needs a factor"),
    (event(kind="rate", factor=2.0), "a rate event takes no replica"),
    (
        event(kind="rate", factor=-1.0, replica=...),
        "events.0.factor = -1.0: Input should be greater than or equal",
    ),
]


@pytest.mark.parametrize(("given_fields", "told"), BAD, ids=[told.split(":")[0] for _, told in BAD])
def test_a_bad_condition_is_refused_with_one_clear_error(given_fields: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(told)):
        ClusterConfig.create(**given_fields)
    with pytest.raises(ConfigError, match=re.escape(told)):
        ClusterConfig.create().replace(**given_fields)
    with pytest.raises(ValidationError) as caught:
        ClusterConfig(**given_fields)
    assert caught.value.error_count() == 1


@pytest.mark.parametrize(
    ("given_fields", "told"),
    [
        (
            {"rate_per_s": [200, 100]},
            "rate_per_s = [200, 100]: the first number of a range must not exceed the second",
        ),
        ({"rate_per_s": [-5, 100]}, "rate_per_s = -5.0: Input should be greater than or equal to 0"),
        ({"rate_per_s": 100}, "rate_per_s = 100: Input should be a valid tuple"),
        ({"load": [0.0, 1.0]}, "load = 0.0: Input should be greater than 0"),
        ({"heterogeneity": [0.0, 4.0]}, "heterogeneity = 4.0: gives replica 0 a mean service of -1 ms"),
        ({"heterogeneity": [-3.0, 1.0]}, "heterogeneity = -3.0: gives replica 2 a mean service of -4 ms"),
        ({"event_start_s": [-1, 2]}, "event_start_s = (-1.0, 2.0): must not be negative"),
        ({"event_duration_s": [-2, -1]}, "event_duration_s = (-2.0, -1.0): must not be negative"),
        (
            {"event_duration_s": [3, 1]},
            "event_duration_s = [3, 1]: the first number of a range must not exceed",
        ),
        ({"scenarios": []}, "scenarios = []: Tuple should have at least 1 item"),
        (
            {"scenarios": ["steady", "flood"]},
            "scenario = 'flood': must be one of steady, burst, straggler, failure",
        ),
        ({"replicas": 0}, "replicas = 0: Input should be greater than or equal to 1"),
        ({"base": {"replicas": 0}}, "base.replicas = 0: Input should be greater than or equal to 1"),
        ({"base": {"replica": 3}}, "base.replica is not a field (did you mean replicas?)"),
        ({"any_replicas": True}, "any_replicas is not a field"),
        (
            {"trace": "arrivals.csv"},
            "trace = 'arrivals.csv': brings its own arrivals, so no rate event is allowed",
        ),
    ],
)
def test_a_bad_distribution_is_refused(given_fields: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(told)):
        ClusterDistribution.create(**given_fields)


def test_what_looks_odd_but_is_sound_is_allowed() -> None:
    two = ClusterConfig.create(replicas=2, heterogeneity=-2.2)  # only a third replica would be at -0.0 ms
    assert min(two.replica_service_ms) > 0
    ClusterConfig.create(rate_per_s=0)
    ClusterConfig.create(trace="arrivals.csv", scenario="straggler")
    ClusterConfig.create(**event(kind="rate", replica=..., factor=0.0))
    ClusterConfig.create(time_step_ms=2.0**-10, signal_interval_ms=2.0**-10)
    ClusterConfig.create(reward=[1, -1, 0.5, 0, 0])


@given(st.integers(0, 100), st.integers(1, 300), st.sampled_from([0.25, 0.5, 1.0, 2.0]))
def test_times_in_decimal_fractions_of_a_second_are_whole_boundaries(
    warmup: int, measured: int, step: float
) -> None:
    """0.1 s + 0.2 s is not 0.3 s in binary, but it is 300 ms."""
    config = ClusterConfig.create(warmup_s=warmup / 10, measured_s=measured / 10, time_step_ms=step)
    assert config.warmup_ms == warmup * 100
    assert config.cutoff_ms == (warmup + measured) * 100


# Where values come from


def test_every_constant_is_in_the_yaml_and_none_in_the_code() -> None:
    data = yaml.safe_load(DEFAULT_YAML.read_text())
    assert set(data) == set(ClusterConfig.model_fields)
    assert ClusterConfig.create() == ClusterConfig.model_validate(data) == ClusterConfig.create("default")
    training = load_yaml("cluster", "training")
    assert set(training) == set(ClusterDistribution.model_fields)
    for model in (ClusterConfig, ClusterDistribution, TokenDistribution, Demand, Jitter):
        assert all(field.is_required() for field in model.model_fields.values()), model


def comments_on(key: str) -> str:
    """Return the comments on a top-level key of default.yaml: on its line, and over its paragraph."""
    for paragraph in DEFAULT_YAML.read_text().split("\n\n"):
        lines = paragraph.splitlines()
        for line in lines:
            if line.startswith(f"{key}:"):
                above = [other for other in lines[: lines.index(line)] if other.startswith("#")]
                return " ".join([*above, line.partition("#")[2]]).lower()
    raise AssertionError(f"{key} is not in default.yaml")


@pytest.mark.parametrize(
    "key",
    # DESIGN 3 calls these ours: token counts and demand, prediction, the interpolation of means, L, the
    # scenarios' figures, the rate; and what the source does not have at all: admission, signal age, rewards.
    [
        "prompt_tokens",
        "output_tokens",
        "demand",
        "prediction_sigma",
        "heterogeneity",
        "service_ceiling_ms",
        "scenarios",
        "rate_per_s",
        "admission",
        "signal_interval_ms",
        "reward",
        "credit",
    ],
)
def test_our_own_constants_are_marked(key: str) -> None:
    assert re.search(r"\bours\b", comments_on(key)), comments_on(key)


@pytest.mark.parametrize(
    "key",
    [
        "replicas",
        "service_ms",
        "queue_capacity",
        "time_step_ms",
        "deadline_ms",
        "warmup_s",
        "measured_s",
        "ewma_alpha",
    ],
)
def test_the_source_s_constants_are_not(key: str) -> None:
    assert not re.search(r"\bours\b", comments_on(key))


def test_the_training_distribution_is_all_ours() -> None:
    text = (configs_folder() / "cluster" / "training.yaml").read_text()
    assert "All of it is ours" in text.splitlines()[0]


def test_values_of_the_design() -> None:
    config = ClusterConfig.create()
    assert (config.replicas, config.replica_service_ms) == (3, (8.0, 11.0, 16.0))
    assert (config.time_step_ms, config.deadline_ms, config.queue_capacity) == (0.5, 50.0, 50)
    assert (config.warmup_ms, config.cutoff_ms, config.rate_per_s) == (3000.0, 15000.0, 180.0)
    assert (config.ewma_alpha, config.service_ceiling_ms, config.prediction_sigma) == (0.15, 60.0, 0.5)
    assert (config.jitter.low, config.jitter.width) == (0.9, 0.2)
    assert config.prompt_tokens == TokenDistribution(median=180, sigma=0.8, minimum=16, maximum=2048)
    assert config.output_tokens == TokenDistribution(median=60, sigma=0.7, minimum=4, maximum=512)
    assert config.capacity_per_ms == pytest.approx(11 / 8 + 1 + 11 / 16, rel=1e-15)
    assert not config.admission
    assert config.observation == "full"


@pytest.mark.parametrize(
    ("scenario", "expected"),
    [
        ("steady", []),
        ("burst", [(6.0, "rate", None, 1.8), (9.0, "rate", None, 1.0)]),
        ("straggler", [(6.0, "slowdown", 0, 3.0), (10.0, "slowdown", 0, 1.0)]),
        ("failure", [(6.0, "failure", 0, None), (10.0, "recovery", 0, None)]),
    ],
)
def test_scenarios_of_the_design(scenario: str, expected: list[tuple[Any, ...]]) -> None:
    timeline = ClusterConfig.create(scenario=scenario).timeline
    assert [(e.time_s, e.kind, e.replica, e.factor) for e in timeline] == expected


def test_mappings_merge_and_lists_replace() -> None:
    default = ClusterConfig.create()
    config = ClusterConfig.create(
        demand={"base_ms": 2.0},
        scenarios={"mine": [{"time_s": 1, "kind": "failure", "replica": 1}]},
        service_ms=[5],
    )
    assert config.demand == default.demand.model_copy(update={"base_ms": 2.0})
    assert config.service_ms == (5.0,)
    assert config.scenarios == {**default.scenarios, "mine": (Event(time_s=1, kind="failure", replica=1),)}
    assert config.replace(demand={"prompt_ms": 0.5}).demand.coefficients == (
        2.0,
        0.5,
        default.demand.output_ms,
    )
    # Constructed directly, as pydantic does it, it is the same.
    assert ClusterConfig(demand={"base_ms": 2.0}).demand == config.demand


def test_events_are_laid_over_the_scenario_s_in_order_of_time() -> None:
    config = ClusterConfig.create(
        scenario="failure",
        events=[
            {"time_s": 10, "kind": "slowdown", "replica": 1, "factor": 2},
            {"time_s": 10, "kind": "failure", "replica": 1},
            {"time_s": 0, "kind": "slowdown", "replica": 2, "factor": 5},
            {"time_s": 6, "kind": "recovery", "replica": 1},
        ],
    )
    assert [(e.time_s, e.kind, e.replica) for e in config.timeline] == [
        (0, "slowdown", 2),
        (6, "failure", 0),
        (6, "recovery", 1),
        (10, "recovery", 0),
        (10, "slowdown", 1),
        (10, "failure", 1),
    ]


# Round trips

# Another value for every field, given beside it what it needs to be valid.
ALTERNATIVES: dict[str, dict[str, Any]] = {
    "replicas": {"replicas": 5},
    "service_ms": {"service_ms": [8, 11]},
    "reference_ms": {"reference_ms": 12},
    "heterogeneity": {"heterogeneity": 0.5},
    "queue_capacity": {"queue_capacity": 7},
    "admission": {"admission": True},
    "time_step_ms": {"time_step_ms": 0.25},
    "deadline_ms": {"deadline_ms": 51.5},
    "warmup_s": {"warmup_s": 0.1},
    "measured_s": {"measured_s": 0.2},
    "rate_per_s": {"rate_per_s": 1 / 3},
    "load": {"load": 0.9},
    "trace": {"trace": "arrivals.csv"},
    "trace_full": {"trace_full": True, "trace": "arrivals.csv"},
    "prompt_tokens": {"prompt_tokens": {"sigma": 0.7}},
    "output_tokens": {"output_tokens": {"maximum": 511}},
    "demand": {"demand": {"prompt_ms": 0.1}},
    "jitter": {"jitter": {"width": 0.0}},
    "prediction_sigma": {"prediction_sigma": None},
    "ewma_alpha": {"ewma_alpha": 0.1},
    "service_ceiling_ms": {"service_ceiling_ms": 100},
    "signal_interval_ms": {"signal_interval_ms": 20},
    "observation": {"observation": "router"},
    "reward": {"reward": [1, 2, 3, 4, 5]},
    "credit": {"credit": "decision"},
    "scenario": {"scenario": "burst"},
    "events": event(),
    "scenarios": {"scenarios": {"mine": []}},
}


def test_alternatives_cover_every_field() -> None:
    assert set(ALTERNATIVES) == set(ClusterConfig.model_fields)


@pytest.mark.parametrize("field", ALTERNATIVES)
def test_every_field_survives_json_and_moves_the_hash(field: str) -> None:
    default, changed = ClusterConfig.create(), ClusterConfig.create(**ALTERNATIVES[field])
    assert getattr(changed, field) != getattr(default, field)
    assert changed != default
    assert config_hash(changed) != config_hash(default)
    again = ClusterConfig.create(json.loads(changed.model_dump_json()))
    assert again == changed
    assert config_hash(again) == config_hash(changed)


@st.composite
def conditions(draw: st.DrawFn) -> ClusterConfig:
    replicas = draw(st.integers(1, 8))
    time_s, replica = st.floats(0, 20), st.integers(0, replicas - 1)
    events = st.one_of(
        st.builds(Event, time_s=time_s, kind=st.just("rate"), factor=st.floats(0, 3)),
        st.builds(Event, time_s=time_s, kind=st.just("slowdown"), replica=replica, factor=st.floats(0.1, 9)),
        st.builds(Event, time_s=time_s, kind=st.sampled_from(["failure", "recovery"]), replica=replica),
    )
    return ClusterConfig.create(
        replicas=replicas,
        heterogeneity=draw(st.floats(-2, 3)),
        rate_per_s=draw(st.floats(0, 1e4)),
        load=draw(st.none() | st.floats(1e-3, 5)),
        prediction_sigma=draw(st.none() | st.floats(0, 2)),
        reward=draw(st.sampled_from(["slo", "latency"]) | st.tuples(*[st.floats(-1e9, 1e9)] * 5)),
        scenario=draw(st.sampled_from(SCENARIOS)),
        events=draw(st.lists(events, max_size=4)),
        demand={"base_ms": draw(st.floats(1e-3, 1e3))},
    )


@given(conditions())
def test_json_gives_back_an_equal_condition(config: ClusterConfig) -> None:
    again = ClusterConfig.create(json.loads(config.model_dump_json()))
    assert again == config
    assert config_hash(again) == config_hash(config)
    assert again.timeline == config.timeline
    assert again.replica_service_ms == config.replica_service_ms


def test_a_distribution_survives_json() -> None:
    for distribution in (
        ClusterDistribution.create(),
        ClusterDistribution.create(
            load=[0.3, 1.1], scenarios=["failure"], replicas=5, shuffle_replicas=False
        ),
    ):
        again = ClusterDistribution.create(json.loads(distribution.model_dump_json()))
        assert again == distribution
        assert config_hash(again) == config_hash(distribution)
    assert config_hash(ClusterDistribution.create()) != config_hash(ClusterDistribution.create(replicas=4))


def test_configs_are_frozen() -> None:
    config = ClusterConfig.create()
    for change in ("replicas", "rate_per_s", "demand"):
        with pytest.raises(ValidationError, match="frozen"):
            setattr(config, change, getattr(config, change))
    with pytest.raises(ValidationError, match="frozen"):
        config.demand.base_ms = 1.0
    with pytest.raises(ValidationError, match="frozen"):
        ClusterDistribution.create().any_replica = False


# What a user may give as a config


def test_names_paths_mappings_and_objects_resolve_alike(tmp_path: Path) -> None:
    fields = {"rate_per_s": 99.5, "demand": {"base_ms": 2.0}, "events": event()["events"]}
    config = ClusterConfig.create(**fields)
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(fields))
    (tmp_path / "whole.json").write_text(config.model_dump_json())
    for source in (
        fields,
        tmp_path / "mine.yaml",
        str(tmp_path / "mine.yaml"),
        tmp_path / "whole.json",
        config,
    ):
        assert resolve(source) == config
        assert resolve(source, replicas=4, demand={"output_ms": 1}) == ClusterConfig.create(
            {**fields, "replicas": 4, "demand": {"base_ms": 2.0, "output_ms": 1}}
        )
    assert resolve(config) is config
    assert resolve() == resolve("default") == ClusterConfig.create()
    assert resolve(trace=Path("arrivals.csv")) == ClusterConfig.create(trace="arrivals.csv")


def test_a_base_makes_it_a_distribution(tmp_path: Path) -> None:
    fields = {"base": {"replicas": 4}, "rate_per_s": [50.0, 60.0]}
    distribution = ClusterDistribution.create(fields)
    assert distribution.base == ClusterConfig.create(replicas=4)
    assert distribution.heterogeneity == (0.0, 1.0)
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(fields))
    for source in (fields, tmp_path / "mine.yaml", distribution, {**fields, "base": distribution.base}):
        assert resolve(source) == distribution
        changed = resolve(source, any_replica=False, admission=True)
        assert isinstance(changed, ClusterDistribution)
        assert not changed.any_replica
        assert changed.base == ClusterConfig.create(replicas=4, admission=True)
        assert changed.rate_per_s == (50.0, 60.0)
    assert resolve(distribution) is distribution
    assert resolve("training") == ClusterDistribution.create()


@pytest.mark.parametrize("given_config", [3, None, [1]])
def test_what_is_no_config_is_refused(given_config: Any) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"config = {given_config!r}: must be a config, a name")):
        resolve(given_config)


def test_an_unknown_name_is_answered_with_the_known_ones() -> None:
    with pytest.raises(
        ConfigError, match=r"no cluster config is named 'defaults'; there are default, training"
    ):
        resolve("defaults")


# Demand


def summed_mean(tokens: TokenDistribution) -> float:
    """Return the mean by summing value × probability over every count."""

    def below(count: int) -> float:  # P(rint(X) <= count)
        return NormalDist().cdf(math.log((count + 0.5) / tokens.median) / tokens.sigma)

    low, high = tokens.minimum, tokens.maximum
    if low == high:
        return low
    inner = [count * (below(count) - below(count - 1)) for count in range(low + 1, high)]
    return math.fsum([low * below(low), *inner, high * (1.0 - below(high - 1))])


@given(
    st.floats(0.5, 400), st.floats(0.05, 2), st.integers(0, 60), st.integers(1, 300),
)  # fmt: skip
def test_mean_of_token_counts_is_their_sum_over_probabilities(
    median: float, sigma: float, minimum: int, span: int
) -> None:
    tokens = TokenDistribution(median=median, sigma=sigma, minimum=minimum, maximum=minimum + span)
    assert tokens.mean == pytest.approx(summed_mean(tokens), rel=1e-11)


@pytest.mark.parametrize(
    ("median", "mean"), [(59.5, 60.0), (60.5, 60.0), (61.4, 61.0), (2.0, 4.0), (900.0, 512.0), (60.0, 60.0)]
)
def test_mean_without_spread_is_the_rounded_median(median: float, mean: float) -> None:
    tokens = TokenDistribution(median=median, sigma=0, minimum=4, maximum=512)
    assert tokens.mean == mean == np.clip(np.rint(median), 4, 512)


@pytest.mark.parametrize("kind", ["prompt_tokens", "output_tokens"])
def test_mean_is_that_of_a_large_sample(kind: str) -> None:
    tokens = getattr(ClusterConfig.create(), kind)
    z = np.random.default_rng(1).standard_normal(400_000)
    sample = np.clip(np.rint(tokens.median * np.exp(tokens.sigma * z)), tokens.minimum, tokens.maximum)
    assert abs(sample.mean() - tokens.mean) < 4 * sample.std() / math.sqrt(len(sample))
    assert tokens.mean == pytest.approx(summed_mean(tokens), rel=1e-12)


def test_mean_demand_is_11_from_the_literals() -> None:
    config = ClusterConfig.create()
    a, b, c = config.demand.coefficients
    assert a + b * config.prompt_tokens.mean + c * config.output_tokens.mean == pytest.approx(11, abs=1e-12)
    assert a + b * summed_mean(config.prompt_tokens) + c * summed_mean(config.output_tokens) == pytest.approx(
        11, abs=1e-10
    )
    # One k in (a, b, c) = k (1.5, .012, .085).
    assert b / a == pytest.approx(0.012 / 1.5, rel=1e-14)
    assert c / a == pytest.approx(0.085 / 1.5, rel=1e-14)


# Replicas


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"replicas": 7}, (8, 11, 16, 8, 11, 16, 8)),
        ({"replicas": 1}, (8,)),
        ({"heterogeneity": 0.5}, (9.5, 11, 13.5)),
        ({"heterogeneity": 0}, (11, 11, 11)),
        ({"heterogeneity": 2}, (5, 11, 21)),
        ({"heterogeneity": -1}, (14, 11, 6)),
        ({"service_ms": [10, 20], "replicas": 3, "reference_ms": 12, "heterogeneity": 0.5}, (11, 16, 11)),
    ],
)
def test_mean_services_interpolate_from_the_reference(
    fields: dict[str, Any], expected: tuple[float, ...]
) -> None:
    config = ClusterConfig.create(**fields)
    assert config.replica_service_ms == pytest.approx(expected, rel=1e-15)
    reference = config.reference_ms
    assert config.capacity_per_ms == pytest.approx(sum(reference / mean for mean in expected), rel=1e-15)


@pytest.mark.parametrize(
    ("reward", "weights"),
    [
        ("on_time", (1, 0, 0, 0, 0)),
        ("slo", (1, -1, -1, 0, 0)),
        ("latency", (0, 0, -10, -1 / 80, 0)),
        ("weighted", (1, -1, -1, 0, -1 / 1000)),
        ((1, 2, 3, 4, 5), (1, 2, 3, 4, 5)),
    ],
)
def test_reward_weights(reward: Any, weights: tuple[float, ...]) -> None:
    assert ClusterConfig.create(reward=reward, deadline_ms=80).reward_weights == weights


def test_slowest_pace_is_that_of_the_slowest_replica_in_the_worst_event() -> None:
    assert ClusterConfig.create().slowest_pace == pytest.approx(16 / 11)
    assert ClusterConfig.create(scenario="straggler").slowest_pace == pytest.approx(3 * 16 / 11)
    quick = ClusterConfig.create(**event(kind="slowdown", factor=0.5))
    assert quick.slowest_pace == pytest.approx(16 / 11), "a speed-up makes nothing slower"
    assert ClusterDistribution.create(heterogeneity=[0, 0.5]).slowest_pace == pytest.approx(3 * 13.5 / 11)


# Distributions


def samples(count: int, seed: int = 0, **fields: Any) -> list[ClusterConfig]:
    distribution, rng = ClusterDistribution.create(**fields), np.random.default_rng(seed)
    return [distribution.sample(rng) for _ in range(count)]


def test_samples_lie_within_the_ranges_and_fill_them() -> None:
    drawn = samples(400, rate_per_s=[50, 60], heterogeneity=[0.2, 0.8], load=[0.5, 0.9])
    for field, (low, high) in {
        "rate_per_s": (50, 60),
        "heterogeneity": (0.2, 0.8),
        "load": (0.5, 0.9),
    }.items():
        values = np.array([getattr(config, field) for config in drawn])
        assert low <= values.min() < low + 0.02 * (high - low)
        assert high >= values.max() > high - 0.02 * (high - low)
        assert abs(values.mean() - (low + high) / 2) < 5 * (high - low) / math.sqrt(12 * len(values))
    counts = {name: sum(config.scenario == name for config in drawn) for name in SCENARIOS}
    assert min(counts.values()) > 60, counts
    assert all(config.load is None for config in samples(3))


def test_a_sample_acts_as_the_condition_that_it_states() -> None:
    """Nothing worked out for the base condition may outlive the change."""
    for config in samples(50, replicas=4):
        same = ClusterConfig.create(json.loads(config.model_dump_json()))
        assert same == config
        assert repr(same) == repr(config), "a sample holds plain numbers, as a validated condition does"
        assert same.replica_service_ms == config.replica_service_ms
        assert same.timeline == config.timeline
        assert same.capacity_per_ms == config.capacity_per_ms
        assert same.slowest_pace == config.slowest_pace <= ClusterDistribution.create(replicas=4).slowest_pace


@pytest.mark.parametrize("scenario", ["burst", "straggler", "failure"])
def test_events_are_stretched_over_start_and_duration(scenario: str) -> None:
    fixed = ClusterConfig.create(scenario=scenario).timeline
    for config in samples(40, scenarios=[scenario], event_start_s=[2, 5], event_duration_s=[1, 3]):
        first, last = config.timeline
        assert 2 <= first.time_s <= 5
        assert 1 - 1e-9 <= last.time_s - first.time_s <= 3 + 1e-9
        assert [(e.kind, e.factor) for e in config.timeline] == [(e.kind, e.factor) for e in fixed]
        assert first.replica == last.replica
        assert (first.replica is None) == (scenario == "burst")


def test_longer_scenarios_keep_their_proportions() -> None:
    times = [(1, "failure"), (2, "recovery"), (5, "failure")]
    mine = [{"time_s": time, "kind": kind, "replica": 1} for time, kind in times]
    base = {"scenarios": {"mine": mine, "once": mine[:1]}}
    for config in samples(20, base=base, scenarios=["mine"], event_start_s=[3, 3], event_duration_s=[2, 2]):
        assert [e.time_s for e in config.timeline] == pytest.approx([3, 3.5, 5])
        assert [e.kind for e in config.timeline] == ["failure", "recovery", "failure"]
    (only,) = samples(1, base=base, scenarios=["once"], event_start_s=[3, 3])[0].timeline
    assert (only.time_s, only.kind) == (3, "failure")


def test_events_hit_any_replica_or_the_one_that_they_name() -> None:
    def hit(**fields: Any) -> set[int | None]:
        return {e.replica for c in samples(60, scenarios=["failure"], **fields) for e in c.timeline}

    assert hit(any_replica=True) == {0, 1, 2}
    assert hit(any_replica=False) == {0}
    assert hit(any_replica=True, replicas=1) == {0}


def test_replicas_are_shuffled_or_left_in_order() -> None:
    orders = {config.service_ms for config in samples(80)}
    assert len(orders) == 6
    assert all(sorted(order) == [8, 11, 16] for order in orders)
    assert {config.service_ms for config in samples(20, shuffle_replicas=False)} == {(8, 11, 16)}
    for config in samples(20, replicas=5, heterogeneity=[1, 1]):
        assert sorted(config.replica_service_ms) == [8, 8, 11, 11, 16]
    for config in samples(20, replicas=2, heterogeneity=[1, 1]):
        assert sorted(config.replica_service_ms) == [8, 11]


def test_samples_depend_on_the_generator_alone() -> None:
    assert samples(20, seed=5) == samples(20, seed=5)
    assert samples(5, seed=5) != samples(5, seed=6)


@pytest.mark.parametrize(
    "fields",
    [
        {"rate_per_s": [1, 1]},
        {"load": [0.2, 0.3]},
        {"heterogeneity": [0.5, 0.5]},
        {"event_start_s": [0, 0], "event_duration_s": [0, 0]},
        {"any_replica": False},
        {"shuffle_replicas": False},
    ],
)
def test_the_number_of_draws_does_not_depend_on_the_ranges(fields: dict[str, Any]) -> None:
    usual, changed = ClusterDistribution.create(), ClusterDistribution.create(**fields)
    for seed in range(5):
        one, other = np.random.default_rng(seed), np.random.default_rng(seed)
        first, second = usual.sample(one), changed.sample(other)
        assert one.bit_generator.state == other.bit_generator.state
        assert first.scenario == second.scenario
        if "rate_per_s" not in fields:
            assert first.rate_per_s == second.rate_per_s
        if "shuffle_replicas" not in fields:
            assert first.service_ms == second.service_ms
