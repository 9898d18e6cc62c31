"""The synthetic workload: exact means, the fit to published figures, predictions, streams, and bounds."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from routing_gym.cloud_edge.contents import (
    ANSWER,
    DIFFICULTY,
    INPUT,
    MISREADING,
    OUTPUT,
    PREDICTION,
    QUALITY,
    TOPIC,
    Contents,
)
from routing_gym.cloud_edge.fit import area_under_curve, fit_table, mean_correlation, mean_success
from routing_gym.cloud_edge.synthetic import ROOT_12, SyntheticConfig, SyntheticContents
from routing_gym.common.config import ConfigError, load_yaml, merge, validate
from routing_gym.common.seeding import EpisodeStreams, new_generator

SHIPPED = ("routerbench-5node", "testbed-6node")
DRAWN = (TOPIC, DIFFICULTY, INPUT, OUTPUT, ANSWER, QUALITY, PREDICTION, MISREADING)
SMALL: dict[str, Any] = {
    "kind": "synthetic",
    "difficulty_sd": 1.3,
    "answer_sigma": 0.3,
    "prediction": {"topic_error": 0.2, "difficulty_correlation": 0.5, "scatter": 0.2, "output_sigma": 0.4},
    "topics": {
        "choice": {
            "share": 0.6,
            "ease": 0.7,
            "input_tokens": {"median": 90.0, "sigma": 0.5, "maximum": 300},
            "output_tokens": {"median": 1.5, "sigma": 0.2, "maximum": 2},
        },
        "worked": {
            "share": 0.4,
            "scores": [0.25, 0.75],
            "input_tokens": {"median": 250.0, "sigma": 0.2, "maximum": 400},
            "output_tokens": {"median": 120.0, "sigma": 0.4, "maximum": 500},
        },
    },
    "models": {
        "large": {"quality": 0.7, "verbosity": 1.4, "by_topic": {"choice": 0.85, "worked": 0.5}},
        "small": {"quality": 0.4, "verbosity": 0.6},
        "odd": {"quality": 0.35, "verbosity": 1.0, "by_topic": {"choice": 0.05}},
    },
}


def small(**overrides: Any) -> SyntheticConfig:
    return validate(SyntheticConfig, merge(SMALL, overrides))


def shipped(name: str) -> SyntheticConfig:
    return validate(SyntheticConfig, load_yaml("cloud_edge", name)["workload"])


def named(name: str) -> SyntheticConfig:
    return small() if name == "small" else shipped(name)


def draw(config: SyntheticConfig, count: int, seed: int = 0, tokens: Any = None) -> Contents:
    return SyntheticContents(config, list(config.models)).draw(
        EpisodeStreams(new_generator(seed)), count, tokens
    )


@cache
def sample(name: str) -> Contents:
    return draw(shipped(name), 60_000)


def same(one: Contents, other: Contents, *but: str) -> None:
    """Check that all columns are the same bytes, but those named, which must differ."""
    for name in Contents._fields:
        equal = getattr(one, name).tobytes() == getattr(other, name).tobytes()
        assert equal is (name not in but), name


# Success rates


def integral(intercept: float, beta: float) -> float:
    """Return E[sigmoid(intercept - β z)] by the trapezium rule, which is exact to rounding here."""
    z = np.linspace(-12, 12, 40_001)
    density = np.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)
    return float(np.trapezoid(density / (1 + np.exp(-(intercept - beta * z))), z))


@pytest.mark.parametrize("beta", [0.0, 0.5, 1.65, 4.0])
def test_the_quadrature_is_exact_enough(beta: float) -> None:
    for intercept in (-9.0, -1.0, 0.0, 2.5):
        assert mean_success(intercept, beta) == pytest.approx(integral(intercept, beta), abs=2e-5)


@pytest.mark.parametrize("name", ["small", *SHIPPED])
def test_mean_qualities_are_met_exactly_in_expectation(name: str) -> None:
    """Integrated once more, with other nodes."""
    config = named(name)
    models = list(config.models)
    intercepts = config.intercepts(models)
    for k, model in enumerate(models):
        mean = 0.0
        for t, topic in enumerate(config.topics.values()):
            success = integral(intercepts[t, k], config.difficulty_sd)
            mean += topic.share * (topic.scores[0] + (topic.scores[1] - topic.scores[0]) * success)
        assert mean == pytest.approx(config.models[model].quality, abs=1e-6)


def test_means_by_topic_are_moved_by_one_logit_and_eases_hold_elsewhere() -> None:
    """`large` states 0.85 and 0.5, of which 0.5 is half of the way from 0.25 to 0.75: a logit of 0."""
    config = small()
    intercepts = config.intercepts(["large", "small", "odd"])
    consistent = small(models={"large": {"quality": 0.6 * 0.85 + 0.4 * 0.5}})
    stated = SyntheticContents(consistent, ["large"])
    assert stated.topic_quality[:, 0] == pytest.approx([0.85, 0.5], abs=1e-9)
    assert consistent.intercepts(["large"])[1, 0] == pytest.approx(0, abs=1e-9)
    moved = intercepts[:, 0] - consistent.intercepts(["large"])[:, 0]
    assert moved[0] == pytest.approx(moved[1], abs=1e-9)
    assert moved[0] < 0  # 0.7 is less than 0.71
    assert intercepts[0, 1] - intercepts[1, 1] == pytest.approx(0.7, abs=1e-9)
    harder = small(topics={"worked": {"ease": -1.0}}).intercepts(["large", "small", "odd"])
    assert harder[:, 0] == pytest.approx(intercepts[:, 0], abs=1e-9)
    assert harder[0, 1] - harder[1, 1] == pytest.approx(1.7, abs=1e-9)
    assert harder[0, 2] - harder[1, 2] == pytest.approx(intercepts[0, 2] - intercepts[1, 2] + 1.0, abs=1e-9)


# One request at a time


def reference(config: SyntheticConfig, count: int, seed: int, tokens: Any = None) -> list[dict[str, Any]]:
    """Return the contents request by request, pair by pair, from the same draws."""
    streams, models, topics = (
        EpisodeStreams(new_generator(seed)),
        list(config.models),
        list(config.topics.values()),
    )
    profiles = [config.models[model] for model in models]
    alpha, beta, shown_by = config.intercepts(models), config.difficulty_sd, config.prediction
    rho = shown_by.difficulty_correlation
    flat = 1 / math.sqrt(1 + math.pi / 8 * beta**2 * (1 - rho**2))
    mean_verbosity = sum(profile.verbosity for profile in profiles) / len(profiles)
    pairs = count, len(models)

    def topic_of(chance: float) -> int:
        for t, topic in enumerate(topics):
            chance -= topic.share
            if chance < 0:
                return t
        return len(topics) - 1

    def score(t: int, success: float) -> float:
        low, high = topics[t].scores
        return low + (high - low) * success

    chance = streams[TOPIC].random(count)
    z = streams[DIFFICULTY].standard_normal(count, np.float32)
    success = streams[QUALITY].random(pairs, np.float32)
    uniform = streams[PREDICTION].random((count, len(models) + 1), np.float32)
    mistake, scatter = uniform[:, 0], uniform[:, 1:]
    normal = streams[MISREADING].standard_normal((count, 2))
    misreading, length_error = normal[:, 0], normal[:, 1]
    prompt, base = (
        (np.zeros(count), np.zeros(count))
        if tokens
        else (
            streams[INPUT].standard_normal(count),
            streams[OUTPUT].standard_normal(count),
        )
    )
    noise = streams[ANSWER].random(pairs, np.float32)
    rows = []
    for r in range(count):
        t = topic_of(chance[r])
        s = topic_of(mistake[r] / shown_by.topic_error) if mistake[r] < shown_by.topic_error else t
        lengths, shown_lengths = topics[t].output_tokens, topics[s].output_tokens
        if tokens:
            inputs, length = tokens[0][r], tokens[1][r]
            expected = length
        else:
            prompts = topics[t].input_tokens
            inputs = round(prompts.median * math.exp(prompts.sigma * prompt[r]))
            inputs = max(1, min(inputs, prompts.maximum))
            length = lengths.median * math.exp(lengths.sigma * base[r])
            expected = length if s == t else shown_lengths.median
        expected *= mean_verbosity * math.exp(shown_by.output_sigma * length_error[r])
        predicted = expected if tokens else min(expected, shown_lengths.maximum)
        reading = rho * z[r] + math.sqrt(1 - rho**2) * misreading[r]
        row: dict[str, Any] = {
            "input_tokens": inputs,
            "predicted_output_tokens": max(1, round(predicted)),
            "topic": t,
            "output_tokens": [],
            "quality": [],
            "predicted_quality": [],
            "cluster_error": [],
        }
        for k, profile in enumerate(profiles):
            answer = (
                length * profile.verbosity * math.exp(ROOT_12 * config.answer_sigma * (noise[r, k] - 0.5))
            )
            row["output_tokens"].append(max(1, round(answer if tokens else min(answer, lengths.maximum))))
            right = success[r, k] < 1 / (1 + math.exp(beta * z[r] - alpha[t, k]))
            row["quality"].append(score(t, float(right)))
            p = 1 / (1 + math.exp(-flat * (alpha[s, k] - beta * rho * reading)))
            p += ROOT_12 * shown_by.scatter * (scatter[r, k] - 0.5) * math.sqrt(p * (1 - p))
            row["predicted_quality"].append(score(s, min(max(p, 0), 1)))
            row["cluster_error"].append(1 - score(s, float(mean_success(alpha[s, k], beta))))
        rows.append(row)
    return rows


@pytest.mark.parametrize("given_tokens", [False, True])
@pytest.mark.parametrize("name", ["small", *SHIPPED])
def test_contents_equal_those_worked_out_pair_by_pair(name: str, given_tokens: bool) -> None:
    config, count, tokens = named(name), 250, None
    if given_tokens:
        rng = np.random.default_rng(1)
        tokens = rng.integers(0, 4000, count).astype(float), rng.integers(1, 900, count).astype(float)
    contents = draw(config, count, 3, tokens)
    expected = reference(config, count, 3, tokens)
    assert contents.predicted_by_model.size == 0  # one prediction of a length holds for all models
    for name in Contents._fields[:-1]:
        column = getattr(contents, name)
        other = np.array([row[name] for row in expected])
        assert column.shape == other.shape
        # Single precision may round a token count or decide a score the other way, very seldom.
        wrong = ~np.isclose(column, other, rtol=1e-5, atol=2e-6)
        allowed = {"output_tokens": 2, "quality": 1}.get(name, 0)
        assert wrong.sum() <= allowed, name


def test_types_and_ranges() -> None:
    contents = draw(small(), 500)
    for name in ("input_tokens", "predicted_output_tokens"):
        assert getattr(contents, name).dtype == np.float64
    for name in ("output_tokens", "quality", "predicted_quality", "cluster_error"):
        assert getattr(contents, name).dtype == np.float32
        assert getattr(contents, name).shape == (500, 3)
        assert getattr(contents, name).flags.c_contiguous
    assert contents.topic.dtype == np.int64
    assert set(np.unique(contents.quality)) == {0.0, 0.25, 0.75, 1.0}
    empty = draw(small(), 0)
    assert all(len(column) == 0 for column in empty)


# The fit


@pytest.mark.parametrize("name", SHIPPED)
def test_sample_means_are_the_configured_ones(name: str) -> None:
    """Within four standard errors, per model and per topic; so are the topics' shares."""
    config, contents = shipped(name), sample(name)
    source = SyntheticContents(config, list(config.models))
    count = len(contents.topic)
    means = [profile.quality for profile in config.models.values()]
    error = contents.quality.std(axis=0) / math.sqrt(count)
    assert (abs(contents.quality.mean(axis=0) - means) < 4 * error).all()
    for t, topic in enumerate(config.topics.values()):
        inside = contents.topic == t
        assert abs(inside.mean() - topic.share) < 4 * math.sqrt(topic.share / count)
        scores = contents.quality[inside]
        error = scores.std(axis=0) / math.sqrt(inside.sum()) + 1e-4
        assert (abs(scores.mean(axis=0) - source.topic_quality[t]) < 4 * error).all()


def table(name: str) -> dict[tuple[str, str], tuple[float, float | None]]:
    data = load_yaml("cloud_edge", name)
    config = shipped(name)
    models = list(config.models)
    prices = [
        (
            data["catalogue"]["models"][model]["price_in_usd"],
            data["catalogue"]["models"][model]["price_out_usd"],
        )
        for model in models
    ]
    rows = fit_table(sample(name), models, config.published_figures(models), prices)
    return {(row.quantity, row.of): (row.sample, row.published) for row in rows}


@pytest.mark.parametrize("name", SHIPPED)
def test_every_published_figure_is_in_the_table(name: str) -> None:
    config = shipped(name)
    found = {key: published for key, (_, published) in table(name).items() if published is not None}
    expected = {("quality", model): profile.quality for model, profile in config.models.items()}
    expected |= {(quantity, of): x for quantity, ofs in config.published.items() for of, x in ofs.items()}
    assert found == expected


def test_routerbench_is_near_what_is_published() -> None:
    """Tolerances in the figures' own units, or relative ones."""
    rows = table("routerbench-5node")
    for (quantity, of), (figure, published) in rows.items():
        if published is not None:
            absolute = {"quality": 0.01, "correlation": 0.02, "auc": 0.02}.get(quantity, 0.0)
            relative = {"cost_usd": 0.05, "input_tokens": 0.16, "output_tokens": 0.2}.get(quantity, 0.0)
            allowed = absolute + relative * published
            assert abs(figure - published) <= allowed, (quantity, of, figure, published)
    assert abs(rows["input_tokens", "ln_mean"][0] - 5.1) < 0.03
    assert abs(rows["input_tokens", "ln_sd"][0] - 0.6) < 0.03
    each = [figure for (quantity, of), (figure, _) in rows.items() if quantity == "auc" and of != "pooled"]
    assert len(each) == 11 and min(each) > 0.65 and max(each) < 0.86


def test_the_testbed_is_near_the_outcomes_of_gsm8k() -> None:
    contents, rows = sample("testbed-6node"), table("testbed-6node")
    models = list(shipped("testbed-6node").models)
    for quantity, of in (("input_tokens", "p50"), ("input_tokens", "p90"), ("input_tokens", "p99")):
        figure, published = rows[quantity, of]
        assert published is not None and abs(figure / published - 1) < 0.05
    for of in ("llama-3.1-8b", "qwen2.5-7b"):
        figure, published = rows["mean_output_tokens", of]
        assert published is not None and abs(figure / published - 1) < 0.02
    both = contents.quality[:, [models.index("llama-3.1-8b"), models.index("qwen2.5-7b")]]
    assert abs(mean_correlation(both.astype(float)) - 0.31) < 0.03
    each = [figure for (quantity, of), (figure, _) in rows.items() if quantity == "auc" and of != "pooled"]
    assert min(each) > 0.5 and max(each) < 0.7


# Predictions


@pytest.mark.parametrize("name", SHIPPED)
def test_predictions_inform_and_are_wrong(name: str) -> None:
    contents = sample(name)
    for k in range(contents.quality.shape[1]):
        truth, shown = contents.quality[:, k], contents.predicted_quality[:, k]
        assert 0.05 < np.corrcoef(truth, shown)[0, 1] < 0.8
        assert abs(shown.mean() - truth.mean()) < 0.015  # but not by being biased
    logs = np.log(contents.predicted_output_tokens), np.log(contents.output_tokens).mean(axis=1)
    assert 0.2 < np.corrcoef(*logs)[0, 1] < 0.97


def test_a_perfect_reading_gives_the_true_probability() -> None:
    """Then, of all answers with a prediction near q, a share of q is right; and lengths are exact."""
    perfect = {"topic_error": 0, "difficulty_correlation": 1, "scatter": 0, "output_sigma": 0}
    config = small(prediction=perfect, answer_sigma=0)
    source, contents = SyntheticContents(config, ["large", "small", "odd"]), draw(config, 40_000)
    choice = contents.topic == 0
    shown, truth = contents.predicted_quality[choice].ravel(), contents.quality[choice].ravel()
    for low in np.arange(0, 1, 0.1):
        near = (shown >= low) & (shown < low + 0.1)
        error = math.sqrt(0.25 / near.sum())
        assert abs(truth[near].mean() - shown[near].mean()) < 4 * error
    assert np.array_equal(contents.cluster_error, (1 - source.topic_quality).astype("f4")[contents.topic])
    mean = np.log(np.mean([1.4, 0.6, 1.0]) * contents.output_tokens[:, 2])  # `odd` has verbosity 1
    worked = (contents.topic == 1) & (contents.output_tokens[:, 2] < 500)
    assert np.log(contents.predicted_output_tokens[worked]) == pytest.approx(mean[worked], abs=0.06)


def test_mistaken_topics_are_as_many_as_asked() -> None:
    """A request is taken for another's topic when mistaken (0.2) and the fresh topic is the other one."""
    contents = draw(small(), 40_000)
    errors = 1 - SyntheticContents(small(), ["large", "small", "odd"]).topic_quality
    shown = abs(contents.cluster_error[:, None] - errors).sum(axis=2).argmin(axis=1)
    assert np.allclose(contents.cluster_error, errors[shown], atol=1e-6)
    for topic, other_share in ((0, 0.4), (1, 0.6)):
        inside = contents.topic == topic
        wrong = (shown[inside] != topic).mean()
        assert abs(wrong - 0.2 * other_share) < 4 * math.sqrt(0.2 / inside.sum())


def test_the_last_topic_takes_what_rounding_leaves() -> None:
    """Shares that sum to a little less than 1, and the largest chance that a generator gives."""

    class Largest(EpisodeStreams):
        def __getitem__(self, stream: int) -> Any:
            return self if stream == TOPIC else super().__getitem__(stream)

        def random(self, count: int) -> np.ndarray:
            return np.full(count, np.nextafter(1.0, 0.0))

    source = SyntheticContents(small(topics={"worked": {"share": 0.3999995}}), ["small"])
    assert (source.draw(Largest(new_generator(0)), 5).topic == 1).all()


# Streams


def test_fewer_requests_are_the_first_of_more() -> None:
    few, many = draw(small(), 40), draw(small(), 400)
    for name in Contents._fields:
        np.testing.assert_array_equal(getattr(few, name), getattr(many, name)[:40], err_msg=name)


def test_episodes_are_drawn_from_their_own_streams_alone() -> None:
    used: set[int] = set()

    class Watched(EpisodeStreams):
        def __getitem__(self, stream: int) -> np.random.Generator:
            used.add(stream)
            return super().__getitem__(stream)

    config = small()
    contents = SyntheticContents(config, list(config.models)).draw(Watched(new_generator(0)), 50)
    assert used == set(DRAWN)
    same(contents, draw(config, 50))
    same(contents, draw(config, 50, 1), *Contents._fields[:-1])


@pytest.mark.parametrize(
    ("changes", "columns"),
    [
        ({"prediction": {"scatter": 0.3}}, ["predicted_quality"]),
        ({"prediction": {"output_sigma": 0.9}}, ["predicted_output_tokens"]),
        ({"prediction": {"difficulty_correlation": 0.9}}, ["predicted_quality"]),
        (
            {"prediction": {"topic_error": 0.9}},
            ["predicted_quality", "predicted_output_tokens", "cluster_error"],
        ),
        ({"answer_sigma": 0.6}, ["output_tokens"]),
        ({"models": {"small": {"verbosity": 2.0}}}, ["output_tokens", "predicted_output_tokens"]),
        ({"difficulty_sd": 2.5}, ["quality", "predicted_quality", "cluster_error"]),
        ({"topics": {"worked": {"input_tokens": {"median": 300.0}}}}, ["input_tokens"]),
    ],
)
def test_a_change_of_one_kind_leaves_the_others_as_they_are(changes: Any, columns: list[str]) -> None:
    """Cluster errors are means per topic, which the change of β moves for models that state no mean."""
    same(draw(small(), 400), draw(small(**changes), 400), *columns)


def test_columns_follow_the_order_of_the_models() -> None:
    config = small()
    for models in (["odd", "large"], ["small"]):
        contents = SyntheticContents(config, models).draw(EpisodeStreams(new_generator(0)), 20_000)
        means = [config.models[model].quality for model in models]
        assert contents.quality.mean(axis=0) == pytest.approx(means, abs=0.015)
        worked = contents.output_tokens[contents.topic == 1].mean(axis=0)
        ratio = worked / [config.models[model].verbosity for model in models]
        assert ratio == pytest.approx(ratio[0], rel=0.05)


# Bounds, and token counts of real arrivals


configs = st.fixed_dictionaries(
    {
        "difficulty_sd": st.floats(0, 4),
        "answer_sigma": st.floats(0, 3),
        "prediction": st.fixed_dictionaries(
            {
                "topic_error": st.floats(0, 1),
                "difficulty_correlation": st.floats(0, 1),
                "scatter": st.floats(0, 1),
                "output_sigma": st.floats(0, 3),
            }
        ),
        "models": st.fixed_dictionaries(
            {
                "small": st.fixed_dictionaries(
                    {"quality": st.floats(0.11, 0.89), "verbosity": st.floats(0.01, 100)}
                )
            }
        ),
    }
)


@settings(max_examples=80)
@given(configs, st.integers(0, 10**6), st.none() | st.tuples(st.integers(0, 2**15), st.integers(1, 2**15)))
def test_contents_keep_within_their_bounds(
    changes: dict[str, Any], seed: int, largest: tuple[int, int] | None
) -> None:
    source = SyntheticContents(small(**changes), ["large", "small", "odd"])
    count, tokens = 60, None
    bounds = source.input_maximum, source.output_maximum, source.predicted_maximum
    if largest is not None:
        rng = np.random.default_rng(seed)
        low_high = zip((0, 1), largest, strict=True)
        tokens = tuple(rng.integers(low, top, count, endpoint=True).astype(float) for low, top in low_high)
        tokens[0][0], tokens[1][0] = largest
        bounds = source.maxima(*map(float, largest))
    contents = source.draw(EpisodeStreams(new_generator(seed)), count, tokens)
    lows = (0 if tokens else 1), 1, 1
    columns = contents.input_tokens, contents.output_tokens, contents.predicted_output_tokens
    for column, low, high in zip(columns, lows, bounds, strict=True):
        assert np.isfinite(column).all()
        assert (column == np.rint(column)).all()
        assert column.min() >= low and column.max() <= high
    for column in (contents.quality, contents.predicted_quality, contents.cluster_error):
        assert column.min() >= 0 and column.max() <= 1


def test_bounds_are_reached() -> None:
    source = SyntheticContents(small(), ["large", "small", "odd"])
    contents = draw(small(), 40_000)
    assert contents.input_tokens[contents.topic == 1].max() == source.input_maximum == 400
    assert contents.output_tokens.max() == source.output_maximum == 500
    assert contents.predicted_output_tokens.max() == source.predicted_maximum == 500
    assert contents.output_tokens[contents.topic == 0].max() == 2


def test_given_token_counts_replace_drawn_ones() -> None:
    """Inputs as they are; outputs scaled by verbosity; qualities and topics as they would be."""
    rng = np.random.default_rng(0)
    tokens = rng.integers(1, 5000, 2000).astype(float), rng.integers(1, 900, 2000).astype(float)
    config = small(answer_sigma=0)
    contents = draw(config, 2000, tokens=tokens)
    same(contents, draw(config, 2000), "input_tokens", "output_tokens", "predicted_output_tokens")
    assert np.array_equal(contents.input_tokens, tokens[0])
    scaled = tokens[1][:, None] * [1.4, 0.6, 1.0]
    assert abs(contents.output_tokens - scaled).max() <= 0.51 and contents.output_tokens.min() == 1
    noise = np.log(contents.predicted_output_tokens / tokens[1])[tokens[1] > 100]
    assert noise.std() == pytest.approx(0.4, rel=0.1) and noise.mean() == pytest.approx(0, abs=0.05)
    noisy = draw(small(), 2000, tokens=tokens)
    spread = np.log(noisy.output_tokens / scaled)[tokens[1] > 100]
    assert spread.std(axis=0) == pytest.approx(0.3, rel=0.1)


# Configs


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kind": "table"}, "kind = 'table'"),
        ({"topics": {"choice": {"share": 0.7}}}, "shares must sum to 1; choice 0.7, worked 0.4 sum to 1.1"),
        ({"topics": {"choice": {"scores": [0.5, 0.5]}}}, "scores (0.5, 0.5) must rise, within 0 and 1"),
        ({"topics": {"choice": {"scores": [0, 1.5]}}}, "scores (0.0, 1.5) must rise, within 0 and 1"),
        (
            {"topics": {"choice": {"output_tokens": {"median": 3.0}}}},
            "topics.choice.output_tokens = {'median': 3.0, 'sigma': 0.2, 'maximum': 2}: median 3 must not "
            "exceed maximum 2",
        ),
        ({"difficulty_sd": 5}, "difficulty_sd = 5"),
        ({"prediction": {"topic_error": 1.2}}, "prediction.topic_error = 1.2"),
        (
            {"models": {"small": {"quality": 0.95}}},
            "models.small.quality = 0.95: must lie within 0.1 and 0.9",
        ),
        ({"models": {"small": {"quality": 0.1}}}, "models.small.quality = 0.1: must lie within 0.1 and 0.9"),
        (
            {"models": {"small": {"by_topic": {"worked": 0.9}}}},
            "models.small.by_topic.worked = 0.9: must lie within 0.25 and 0.75",
        ),
        (
            {"models": {"small": {"by_topic": {"maths": 0.5}}}},
            "models.small.by_topic.maths = 0.5: there is no such topic; there are choice, worked",
        ),
        ({"models": {"small": {"verbose": 1}}}, "did you mean verbosity"),
    ],
)
def test_bad_configs_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        small(**changes)
    assert message in str(refused.value)


def test_models_without_a_profile_are_named() -> None:
    with pytest.raises(
        ConfigError, match=r"workload\.models: has no huge, tiny; there are large, small, odd"
    ):
        SyntheticContents(small(), ["huge", "large", "tiny"])


# The table


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=2, max_size=40))
def test_the_area_under_the_curve_counts_pairs(scored: list[tuple[int, bool]]) -> None:
    scores = np.array([score for score, _ in scored], np.float32)
    positive = np.array([right for _, right in scored])
    pairs = [float(a > b) + 0.5 * float(a == b) for a in scores[positive] for b in scores[~positive]]
    area = area_under_curve(scores, positive)
    if pairs:
        assert area == pytest.approx(np.mean(pairs))
    else:
        assert math.isnan(area)


def test_the_mean_correlation_is_over_pairs_of_columns_that_vary() -> None:
    columns = np.random.default_rng(0).normal(size=(50, 4)) @ np.random.default_rng(1).normal(size=(4, 4))
    expected = np.corrcoef(columns.T)[np.triu_indices(4, 1)].mean()
    assert mean_correlation(columns) == pytest.approx(expected)
    assert mean_correlation(np.column_stack([columns, np.ones(50)])) == pytest.approx(expected)
    assert math.isnan(mean_correlation(columns[:, :1]))


def test_the_table_of_a_hand_made_sample() -> None:
    contents = Contents(
        input_tokens=np.array([0.0, 400.0]),
        predicted_output_tokens=np.array([3.0, 5.0]),
        output_tokens=np.array([[1, 3], [1, 5]], np.float32),
        quality=np.array([[0, 1], [0.75, 0.25]], np.float32),
        predicted_quality=np.array([[0.2, 0.6], [0.5, 0.7]], np.float32),
        cluster_error=np.zeros((2, 2), np.float32),
        topic=np.zeros(2, np.int64),
    )
    published = {"quality": {"a": 0.4}, "auc": {"pooled": 0.7}}
    rows = {
        (row.quantity, row.of): row for row in fit_table(contents, ["a", "b"], published, [(1, 2), (10, 30)])
    }
    assert rows["quality", "a"][2:] == (0.375, 0.4)
    assert rows["quality", "b"][2:] == (0.625, None)
    assert rows["quality", "best"].sample == 0.875
    assert rows["correlation", "models"].sample == pytest.approx(-1)
    assert rows["input_tokens", "p50"].sample == 200
    assert rows["input_tokens", "ln_mean"].sample == pytest.approx(math.log(400) / 2)
    assert rows["output_tokens", "p50"].sample == 2
    assert rows["output_tokens", "ln_mean"].sample == pytest.approx(math.log(15) / 4)
    assert rows["mean_output_tokens", "b"].sample == 4
    assert rows["cost_usd", "a"].sample == pytest.approx(202e-6)
    assert rows["cost_usd", "b"].sample == pytest.approx(2120e-6)
    assert rows["auc", "a"].sample == 1 and rows["auc", "b"].sample == 0
    assert rows["auc", "pooled"][2:] == (0.5, 0.7)
    assert all(row.quantity != "cost_usd" for row in fit_table(contents, ["a", "b"], {}))
