"""Workloads: everything about an episode that is drawn before the first decision (DESIGN 3).

A workload is built once per condition and drawn once per episode. What it draws depends on the
condition and on the episode's streams alone, so every router meets the same bytes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from routing_gym.cluster.config import ClusterConfig, TokenDistribution
from routing_gym.cluster.distribution import ClusterDistribution, Conditions
from routing_gym.common.config import ConfigError
from routing_gym.common.seeding import EpisodeStreams
from routing_gym.common.trace import read_trace

Floats = NDArray[np.float64]
# One stream per kind of draw, in the order in which the episode's seed spawns them.
GAPS, PROMPT, OUTPUT, JITTER, PREDICTION, CONFIG = range(6)


class Arrivals(NamedTuple):
    """An episode's requests, in order of arrival; every array has shape (n,), float64.

    `arrival_ms` lies in [0, cutoff]; token counts are whole numbers; `predicted_tokens` is what a router
    is shown of the output; `demand_ms` is the base service demand d and `jitter` the factor u.
    """

    arrival_ms: Floats
    prompt_tokens: Floats
    output_tokens: Floats
    predicted_tokens: Floats
    demand_ms: Floats
    jitter: Floats


class Workload(ABC):
    """Arrivals of one condition.

    Attributes:
        demand: (a, b, c), ms per request, per prompt token and per output token.
        mean_demand_ms: E[d].
        prompt_maximum: largest prompt, tokens.
        output_range: smallest and largest output, tokens; predictions are clipped to it.
        output_median: shown where predictions are hidden, tokens.
        rate_per_ms: mean arrival rate, events left aside.
        cutoff_ms: the episode's last boundary.
        expected_requests: mean number of arrivals in an episode.
        length_ms: how long the trace lasts at its load; None of synthetic arrivals.
    """

    demand: tuple[float, float, float]
    mean_demand_ms: float
    prompt_maximum: float
    output_range: tuple[float, float]
    output_median: float
    rate_per_ms: float
    cutoff_ms: float
    expected_requests: float
    length_ms: float | None = None

    def __init__(self, config: ClusterConfig) -> None:
        """Keep the condition."""
        self.config = config
        self.cutoff_ms = config.cutoff_ms

    @property
    def offered_load(self) -> float:
        """ρ = λ · E[d] / Σ(11/m_i), at the base rate with every replica healthy."""
        return self.rate_per_ms * self.mean_demand_ms / self.config.capacity_per_ms

    @abstractmethod
    def _requests(self, streams: EpisodeStreams) -> tuple[Floats, Floats, Floats]:
        """Return arrival times (ms), prompt and output tokens."""

    def draw(self, streams: EpisodeStreams) -> Arrivals:
        """Draw an episode from its streams."""
        arrival, prompt, output = self._requests(streams)
        base, per_prompt, per_output = self.demand
        demand = base + per_prompt * prompt + per_output * output
        low, width = self.config.jitter.low, self.config.jitter.width
        jitter = low + width * streams[JITTER].random(len(arrival))
        sigma = self.config.prediction_sigma
        if sigma is None:
            predicted = np.full(len(arrival), self.output_median)
        elif sigma == 0:
            predicted = output
        else:
            noise = streams[PREDICTION].standard_normal(len(arrival))
            predicted = np.clip(np.rint(output * np.exp(sigma * noise)), *self.output_range)
        return Arrivals(arrival, prompt, output, predicted, demand, jitter)


class SyntheticWorkload(Workload):
    """Poisson arrivals at a piecewise constant rate, log-normal token counts."""

    def __init__(self, config: ClusterConfig) -> None:
        """Work out the rate and where it changes."""
        super().__init__(config)
        self.demand = config.demand.coefficients
        base, per_prompt, per_output = self.demand
        self.mean_demand_ms = (
            base + per_prompt * config.prompt_tokens.mean + per_output * config.output_tokens.mean
        )
        self.prompt_maximum = float(config.prompt_tokens.maximum)
        self.output_range = (float(config.output_tokens.minimum), float(config.output_tokens.maximum))
        self.output_median = config.output_tokens.exact_median
        if config.load is None:
            self.rate_per_ms = config.rate_per_s / 1000.0
        else:
            self.rate_per_ms = config.load * config.capacity_per_ms / self.mean_demand_ms
        changes = [(0.0, 1.0)]
        changes += [(e.time_ms, e.factor or 0.0) for e in config.timeline if e.kind == "rate"]
        self._start_ms = np.array([time for time, _ in changes])
        self._rate = self.rate_per_ms * np.array([factor for _, factor in changes])
        widths = np.diff(np.append(self._start_ms, np.inf))
        self._hazard = np.concatenate([[0.0], np.cumsum(self._rate[:-1] * widths[:-1])])
        last = np.searchsorted(self._start_ms, self.cutoff_ms, side="right") - 1
        rest = self._rate[last] * (self.cutoff_ms - self._start_ms[last])
        self.expected_requests = float(self._hazard[last] + rest)

    def _requests(self, streams: EpisodeStreams) -> tuple[Floats, Floats, Floats]:
        arrival = self._arrivals(streams[GAPS])
        count = len(arrival)
        prompt = _tokens(self.config.prompt_tokens, streams[PROMPT], count)
        output = _tokens(self.config.output_tokens, streams[OUTPUT], count)
        return arrival, prompt, output

    def _arrivals(self, rng: np.random.Generator) -> Floats:
        """Map unit exponential gaps through the inverse of the cumulative rate.

        A rate change then rescales the gap that is left by λ_old/λ_new, without another draw.
        """
        total = self.expected_requests
        chunk = int(total + 6.0 * total**0.5) + 16
        hazard = np.cumsum(rng.standard_exponential(chunk))
        while hazard[-1] <= total:
            gaps = rng.standard_exponential(chunk)
            gaps[0] += hazard[-1]
            hazard = np.concatenate([hazard, np.cumsum(gaps)])
        hazard = hazard[: np.searchsorted(hazard, total, side="right")]
        if len(self._rate) == 1:
            arrival = hazard / self._rate[0]
        else:
            # side="left" passes over stretches at rate 0, in which nothing arrives
            piece = np.searchsorted(self._hazard, hazard, side="left") - 1
            arrival = self._start_ms[piece] + (hazard - self._hazard[piece]) / self._rate[piece]
        return arrival[: np.searchsorted(arrival, self.cutoff_ms, side="right")]


def _tokens(distribution: TokenDistribution, rng: np.random.Generator, count: int) -> Floats:
    """Draw token counts, in place: an episode's draws are much of the cost of a reset."""
    tokens = rng.standard_normal(count)
    tokens *= distribution.sigma
    np.exp(tokens, out=tokens)
    tokens *= distribution.median
    np.rint(tokens, out=tokens)
    np.minimum(tokens, distribution.maximum, out=tokens)
    return np.maximum(tokens, distribution.minimum, out=tokens)


class TraceWorkload(Workload):
    """Arrivals replayed from a trace, its time scaled to a load, its demand scaled to a mean of 11 ms."""

    def __init__(self, config: ClusterConfig) -> None:
        """Read and scale the trace.

        Raises:
            TraceError: the file is no trace.
            ConfigError: the scaled trace is shorter than an episode.
        """
        super().__init__(config)
        assert config.trace is not None
        trace = read_trace(config.trace)
        self._prompt = trace.prompt_tokens.astype(np.float64)
        self._output = trace.output_tokens.astype(np.float64)
        base, per_prompt, per_output = config.demand.coefficients
        raw = base + per_prompt * self._prompt.mean() + per_output * self._output.mean()
        k = float(config.reference_ms / raw)
        self.demand = (k * base, k * per_prompt, k * per_output)
        self.mean_demand_ms = config.reference_ms
        self.prompt_maximum = float(self._prompt.max())
        self.output_range = (float(self._output.min()), float(self._output.max()))
        self.output_median = float(np.median(self._output))
        natural = trace.rate_per_ms * self.mean_demand_ms / config.capacity_per_ms
        self.time_scale = 1.0 if config.load is None else natural / config.load
        self.rate_per_ms = trace.rate_per_ms / self.time_scale
        self._arrival_ms = trace.arrival_ms * self.time_scale
        length = self.length_ms = float(self._arrival_ms[-1])
        if config.trace_full:
            # Every request gets its deadline's time before the episode ends.
            step = config.time_step_ms
            self.cutoff_ms = float(np.ceil((length + config.deadline_ms) / step) * step)
            if self.cutoff_ms <= config.warmup_ms:
                raise ConfigError(
                    f"trace = {config.trace}: lasts {length / 1000:.1f} s at this load, which is within the "
                    f"warm-up of {config.warmup_s:g} s; lower the load or warmup_s"
                )
        elif length < self.cutoff_ms:
            raise ConfigError(
                f"trace = {config.trace}: lasts {length / 1000:.1f} s at this load; an episode takes "
                f"{self.cutoff_ms / 1000:g} s. Lower the load or measured_s, or replay it whole (trace_full)"
            )
        self.expected_requests = self.rate_per_ms * self.cutoff_ms

    def _requests(self, streams: EpisodeStreams) -> tuple[Floats, Floats, Floats]:
        start = 0.0
        if not self.config.trace_full:
            start = float(streams[GAPS].random()) * (float(self._arrival_ms[-1]) - self.cutoff_ms)
        first = np.searchsorted(self._arrival_ms, start, side="left")
        last = np.searchsorted(self._arrival_ms, start + self.cutoff_ms, side="right")
        # Rounding of the subtraction must not carry an arrival past the cutoff.
        arrival = np.minimum(self._arrival_ms[first:last] - start, self.cutoff_ms)
        return arrival, self._prompt[first:last], self._output[first:last]


def make_workload(config: ClusterConfig) -> Workload:
    """Return the workload of a condition.

    Raises:
        ConfigError: the condition and its trace do not fit.
        TraceError: the file is no trace.
    """
    return SyntheticWorkload(config) if config.trace is None else TraceWorkload(config)


class Episode(NamedTuple):
    """One drawn episode: its condition, the workload it came from, and its requests."""

    config: ClusterConfig
    workload: Workload
    arrivals: Arrivals


class EpisodeSource:
    """Draws episodes of a condition, or of a distribution of conditions.

    Attributes:
        conditions: what was given.
        workload: the condition's, or that of the distribution's base.
    """

    def __init__(self, conditions: Conditions) -> None:
        """Prepare what does not change from episode to episode.

        Raises:
            ConfigError: the condition and its trace do not fit.
            TraceError: the trace cannot be read.
        """
        self.conditions = conditions
        if isinstance(conditions, ClusterConfig):
            self.workload = make_workload(conditions)
            return
        self.workload = make_workload(conditions.base)
        if conditions.load:
            # The highest load leaves least of a trace: too short must be said now, not at some reset.
            make_workload(conditions.base.replace(load=conditions.load[1]))

    @property
    def config(self) -> ClusterConfig:
        """The condition, or the base of the distribution."""
        return self.workload.config

    def draw(self, np_random: np.random.Generator) -> Episode:
        """Draw the next episode; consumes one draw of `np_random`."""
        streams = EpisodeStreams(np_random)
        config, workload = self.config, self.workload
        if isinstance(self.conditions, ClusterDistribution):
            config = self.conditions.sample(streams[CONFIG])
            workload = make_workload(config)
        return Episode(config, workload, workload.draw(streams))
