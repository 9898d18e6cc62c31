"""The synthetic workload: requests with topics and a latent difficulty, fitted to published facts (DESIGN 4).

Request r has a topic t and a difficulty z ~ N(0, 1). Model m answers it right with probability
sigmoid(α_mt - β z), where the α of a model are such that its mean quality is exactly the configured one.
A router is shown what a nearest-neighbour predictor would make of it: from a topic that may be mistaken,
from a noisy reading of z, and with the scatter of a mean over few neighbours.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

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
    ContentSource,
    Floats,
    Singles,
)
from routing_gym.cloud_edge.fit import mean_success, solve_intercepts
from routing_gym.common.config import ConfigError, FrozenModel
from routing_gym.common.jit import njit
from routing_gym.common.seeding import EpisodeStreams

Topics = NDArray[np.int64]
ROOT_12 = math.sqrt(12.0)  # the width of a uniform distribution of standard deviation 1
CUT = 4.0  # standard deviations of a predicted length, so that it is bounded


class TokenLengths(FrozenModel):
    """Log-normal token counts: clip(rint(median · exp(sigma · z)), 1, maximum)."""

    median: float = Field(gt=0)
    sigma: float = Field(ge=0, le=3)
    maximum: int = Field(ge=1, le=2**20)

    @model_validator(mode="after")
    def _ordered(self) -> TokenLengths:
        if self.median > self.maximum:
            raise ValueError(f"median {self.median:g} must not exceed maximum {self.maximum}")
        return self


class Topic(FrozenModel):
    """A kind of request.

    Attributes:
        share: of all requests.
        scores: of a wrong and of a right answer.
        ease: logit that it adds to the success of models that state no quality `by_topic`.
        input_tokens: prompt lengths.
        output_tokens: lengths of the answers of a model of verbosity 1, without its own noise; the maximum
            holds for every model.
    """

    share: float = Field(gt=0, le=1)
    scores: tuple[float, float] = (0.0, 1.0)
    ease: float = Field(default=0.0, ge=-10, le=10)
    input_tokens: TokenLengths
    output_tokens: TokenLengths

    @model_validator(mode="after")
    def _ordered(self) -> Topic:
        if not 0.0 <= self.scores[0] < self.scores[1] <= 1.0:
            raise ValueError(f"scores {self.scores} must rise, within 0 and 1")
        return self


class ModelProfile(FrozenModel):
    """How well and at what length a model answers.

    Attributes:
        quality: mean score over all requests, met exactly.
        verbosity: factor on the length of its answers.
        by_topic: mean score per topic; all logits are then moved alike so that `quality` is met.
    """

    quality: float
    verbosity: float = Field(gt=0, le=100)
    by_topic: dict[str, float] = Field(default_factory=dict)


class Prediction(FrozenModel):
    """How wrong a router's predictions are.

    Attributes:
        topic_error: probability that a request is taken for one of a topic drawn afresh.
        difficulty_correlation: ρ, between a request's difficulty and the reading of it.
        scatter: an estimated probability p strays by a standard deviation of scatter · sqrt(p (1 - p));
            1/√k for a mean over k neighbours.
        output_sigma: log-error of predicted output tokens.
    """

    topic_error: float = Field(ge=0, le=1)
    difficulty_correlation: float = Field(ge=0, le=1)
    scatter: float = Field(ge=0, le=1)
    output_sigma: float = Field(ge=0, le=3)


class SyntheticConfig(FrozenModel):
    """A synthetic workload.

    Attributes:
        difficulty_sd: β, what a standard deviation of difficulty takes off the logit of success.
        answer_sigma: standard deviation of the log-noise on one model's output tokens for one request; like
            `scatter` it is uniform, which is quick to draw and bounded.
        prediction: what routers know.
        topics: by name; their shares sum to 1.
        models: profiles by name.
        published: figures to print beside those of a sample, by quantity and of what (`fit.fit_table`).
    """

    kind: Literal["synthetic"]
    difficulty_sd: float = Field(ge=0, le=4)
    answer_sigma: float = Field(ge=0, le=3)
    prediction: Prediction
    topics: dict[str, Topic] = Field(min_length=1)
    models: dict[str, ModelProfile]
    published: dict[str, dict[str, float]] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _consistent(self) -> SyntheticConfig:
        total = math.fsum(topic.share for topic in self.topics.values())
        if abs(total - 1.0) > 1e-6:
            shares = ", ".join(f"{name} {topic.share:g}" for name, topic in self.topics.items())
            raise ValueError(f"topics: the shares must sum to 1; {shares} sum to {total:g}")
        for name, profile in self.models.items():
            for topic, mean in profile.by_topic.items():
                where = f"models.{name}.by_topic.{topic} = {mean:g}"
                if topic not in self.topics:
                    raise ValueError(f"{where}: there is no such topic; there are {', '.join(self.topics)}")
                _check_mean(where, mean, *self.topics[topic].scores)
            worst, best = self._mean_scores()
            _check_mean(f"models.{name}.quality = {profile.quality:g}", profile.quality, worst, best)
        return self

    def _mean_scores(self) -> tuple[float, float]:
        """Return the mean scores of always wrong and of always right answers."""
        topics = self.topics.values()
        worst, best = (math.fsum(topic.share * topic.scores[end] for topic in topics) for end in (0, 1))
        return worst, best

    def published_figures(self, models: Sequence[str]) -> dict[str, Mapping[str, float]]:
        """Return what is published beside a sample's fit, the mean quality of `models` included."""
        means = {model: self.models[model].quality for model in models}
        return {**self.published, "quality": {**self.published.get("quality", {}), **means}}

    def intercepts(self, models: Sequence[str]) -> Floats:
        """Return α (T, K): the means by topic, then one logit per model so that its mean quality is met."""
        topics, profiles = self.topics, [self.models[model] for model in models]
        low, high = np.array([topic.scores for topic in topics.values()]).T
        worst, best = self._mean_scores()
        overall = (np.array([one.quality for one in profiles]) - worst) / (best - worst)
        success, ease = np.tile(overall, (len(topics), 1)), np.zeros((len(topics), len(profiles)))
        for t, (name, topic) in enumerate(topics.items()):
            for k, profile in enumerate(profiles):
                if name in profile.by_topic:
                    success[t, k] = (profile.by_topic[name] - low[t]) / (high[t] - low[t])
                else:
                    ease[t, k] = topic.ease
        offsets = ease + solve_intercepts(success, np.zeros(1), np.ones(1), self.difficulty_sd)
        weights = np.array([topic.share for topic in topics.values()]) * (high - low)
        return offsets + solve_intercepts(overall, offsets.T, weights / weights.sum(), self.difficulty_sd)


def _check_mean(where: str, mean: float, worst: float, best: float) -> None:
    if not 0.001 <= (mean - worst) / (best - worst) <= 0.999:
        raise ValueError(f"{where}: must lie within {worst:g} and {best:g}, and not at the very ends")


class _Lengths(NamedTuple):
    """Token lengths by topic, arrays (T,)."""

    log_median: Floats
    sigma: Floats
    maximum: Floats

    @classmethod
    def of(cls, lengths: Sequence[TokenLengths]) -> _Lengths:
        median, sigma, maximum = np.array([(one.median, one.sigma, one.maximum) for one in lengths]).T
        return cls(np.log(median), sigma, maximum)

    def draw_log(self, rng: np.random.Generator, topic: Topics) -> Floats:
        """Return logarithms of drawn lengths, neither rounded nor clipped."""
        log = rng.standard_normal(len(topic))
        log *= self.sigma[topic]
        log += self.log_median[topic]
        return log


class _Tables(NamedTuple):
    """What the kernels look up, by topic (T,), by topic and model (T, K), or by model (K,).

    A right answer scores `low + width`; the other widths are those of uniform noise.
    """

    low: Singles
    width: Singles
    hardness: Singles
    shown_hardness: Singles
    cluster_error: Singles
    log_verbosity: Singles
    answer_width: np.float32
    scatter_width: np.float32


class SyntheticContents(ContentSource):
    """Draws requests of a synthetic workload.

    Attributes:
        config: the workload.
        models: names of the columns.
        topic_quality: (T, K), the exact mean quality of each model on each topic.
    """

    def __init__(self, config: SyntheticConfig, models: Sequence[str]) -> None:
        """Solve for the intercepts α.

        Raises:
            ConfigError: the workload has no profile of some model.
        """
        missing = [model for model in models if model not in config.models]
        if missing:
            raise ConfigError(
                f"workload.models: has no {', '.join(missing)}; there are {', '.join(config.models)}"
            )
        self.config, self.models = config, tuple(models)
        topics, prediction = list(config.topics.values()), config.prediction
        self._upper_share = np.cumsum([topic.share for topic in topics])
        self._upper_share[-1] = np.inf  # whatever the rounding of the sum

        intercepts = config.intercepts(models)
        scores = np.array([topic.scores for topic in topics])
        low, width = scores[:, :1], np.diff(scores)
        self.topic_quality = low + width * mean_success(intercepts, config.difficulty_sd)
        # Given a reading of correlation ρ, z ~ N(ρ · reading, 1 - ρ²); the mean of a sigmoid over a normal is
        # very nearly a flatter sigmoid of the normal's mean.
        self._rho = rho = prediction.difficulty_correlation
        flatter = 1.0 / math.sqrt(1.0 + math.pi / 8.0 * config.difficulty_sd**2 * (1.0 - rho**2))
        self._reading_slope = flatter * config.difficulty_sd * rho
        verbosity = np.array([config.models[model].verbosity for model in models])
        self._tables = _Tables(
            low[:, 0].astype(np.float32),
            width[:, 0].astype(np.float32),
            (-intercepts).astype(np.float32),
            (-flatter * intercepts).astype(np.float32),
            (1.0 - self.topic_quality).astype(np.float32),
            np.log(verbosity).astype(np.float32),
            np.float32(ROOT_12 * config.answer_sigma),
            np.float32(ROOT_12 * prediction.scatter),
        )
        self._log_mean_verbosity = math.log(verbosity.mean())
        self._longest = verbosity.max() * math.exp(ROOT_12 / 2.0 * config.answer_sigma)
        self._longest_predicted = verbosity.mean() * math.exp(CUT * prediction.output_sigma)
        self._input = _Lengths.of([topic.input_tokens for topic in topics])
        self._output = _Lengths.of([topic.output_tokens for topic in topics])
        self.input_maximum = float(self._input.maximum.max())
        self.output_maximum = self.predicted_maximum = float(self._output.maximum.max())

    def maxima(self, input_tokens: float, output_tokens: float) -> tuple[float, float, float]:
        """Return the three maxima where token counts are given to `draw`, from the largest ones given."""
        longest = math.ceil(output_tokens * self._longest)
        return float(input_tokens), float(longest), float(math.ceil(output_tokens * self._longest_predicted))

    def draw(
        self, streams: EpisodeStreams, count: int, tokens: tuple[Floats, Floats] | None = None
    ) -> Contents:
        """Draw `count` requests; the arguments are those of `ContentSource.draw`."""
        pairs, prediction = (count, len(self.models)), self.config.prediction
        chance = streams[TOPIC].random(count)
        difficulty = streams[DIFFICULTY].standard_normal(count, np.float32)
        success = streams[QUALITY].random(pairs, np.float32)
        answers = streams[ANSWER].random(pairs, np.float32)
        predicted = streams[PREDICTION].random((count, len(self.models) + 1), np.float32)
        mistake, scatter = predicted[:, 0], predicted[:, 1:]
        misreading, length_error = streams[MISREADING].standard_normal((count, 2)).T

        topic, shown = _topics(chance, mistake, prediction.topic_error, self._upper_share)
        if tokens is None:
            input_tokens = np.exp(self._input.draw_log(streams[INPUT], topic))
            input_tokens = _round_within(input_tokens, self._input.maximum[topic])
            log_base = self._output.draw_log(streams[OUTPUT], topic)
            limit, predicted_limit = self._output.maximum[topic], self._output.maximum[shown]
            # Whoever mistakes the topic expects one of its usual answers.
            log_shown = np.where(shown == topic, log_base, self._output.log_median[shown])
        else:
            input_tokens, log_base = tokens[0], np.log(tokens[1])
            limit = np.ceil(tokens[1] * self._longest)
            predicted_limit = np.ceil(tokens[1] * self._longest_predicted)
            log_shown = log_base
        length_error = prediction.output_sigma * length_error
        predicted_output = np.exp(log_shown + self._log_mean_verbosity + length_error)

        reading = self._rho * difficulty + math.sqrt(1.0 - self._rho**2) * misreading
        harder = np.stack((self.config.difficulty_sd * difficulty, self._reading_slope * reading))
        harder = harder.astype(np.float32)
        exponents = _exponents(self._tables, topic, shown, harder, log_base.astype(np.float32), answers)
        np.exp(exponents, out=exponents)
        odds, shown_odds, answers = exponents
        tables = _pairs(self._tables, topic, shown, odds, success, shown_odds, scatter, answers, limit)
        output, quality, predicted_quality, cluster_error = tables
        return Contents(
            input_tokens,
            _round_within(predicted_output, predicted_limit),
            output,
            quality,
            predicted_quality,
            cluster_error,
            topic,
        )


def _round_within(tokens: Floats, limit: Floats) -> Floats:
    """Round token counts to whole numbers from 1 to `limit`, in place."""
    np.rint(tokens, out=tokens)
    np.minimum(tokens, limit, out=tokens)
    return np.maximum(tokens, 1.0, out=tokens)


@njit
def _topic_at(chance: float, upper_share: Floats) -> int:
    topic = 0
    while chance >= upper_share[topic]:
        topic += 1
    return topic


@njit
def _topics(chance: Floats, mistake: Singles, error: float, upper_share: Floats) -> tuple[Topics, Topics]:
    """Return the topics of requests, and those that they are taken for."""
    topic, shown = np.empty(len(chance), np.int64), np.empty(len(chance), np.int64)
    for r in range(len(chance)):
        topic[r] = shown[r] = _topic_at(chance[r], upper_share)
        if mistake[r] < error:
            shown[r] = _topic_at(mistake[r] / error, upper_share)
    return topic, shown


@njit
def _exponents(
    tables: _Tables, topic: Topics, shown: Topics, harder: Singles, log_base: Singles, noise: Singles
) -> Singles:
    """Return logarithms (3, n, K): of the odds of failure, as they are and as read, and of output tokens.

    NumPy's exponential of all of them at once is much faster than one at a time.
    """
    count, models = noise.shape
    logs = np.empty((3, count, models), np.float32)
    half = np.float32(0.5)
    for r in range(count):
        t, s = topic[r], shown[r]
        for k in range(models):
            logs[0, r, k] = tables.hardness[t, k] + harder[0, r]
            logs[1, r, k] = tables.shown_hardness[s, k] + harder[1, r]
            logs[2, r, k] = log_base[r] + tables.log_verbosity[k] + tables.answer_width * (noise[r, k] - half)
    return logs


@njit
def _pairs(
    tables: _Tables,
    topic: Topics,
    shown: Topics,
    odds: Singles,
    success: Singles,
    shown_odds: Singles,
    scatter: Singles,
    answers: Singles,
    limit: Floats,
) -> tuple[Singles, Singles, Singles, Singles]:
    """Return output tokens, quality, predicted quality and cluster error, (n, K) each."""
    shape = odds.shape
    output, quality = np.empty(shape, np.float32), np.empty(shape, np.float32)
    predicted, error = np.empty(shape, np.float32), np.empty(shape, np.float32)
    zero, half, one = np.float32(0.0), np.float32(0.5), np.float32(1.0)
    for r in range(shape[0]):
        t, s = topic[r], shown[r]
        low, right = tables.low[t], tables.low[t] + tables.width[t]
        longest = np.float32(limit[r])
        for k in range(shape[1]):
            output[r, k] = max(min(np.rint(answers[r, k]), longest), one)
            quality[r, k] = right if success[r, k] * (one + odds[r, k]) < one else low
            p = one / (one + shown_odds[r, k])
            p += tables.scatter_width * (scatter[r, k] - half) * np.sqrt(p * (one - p))
            predicted[r, k] = tables.low[s] + tables.width[s] * max(min(p, one), zero)
            error[r, k] = tables.cluster_error[s, k]
    return output, quality, predicted, error
