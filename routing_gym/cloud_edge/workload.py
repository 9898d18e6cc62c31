"""Workloads: everything about an episode that is drawn before the first decision (DESIGN 4).

What is drawn depends on the condition and on the episode's streams alone, so every router meets the same
batches: which requests are dispatched together never depends on where earlier ones went.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from routing_gym.cloud_edge.catalogue import physics_table
from routing_gym.cloud_edge.config import CloudEdgeConfig
from routing_gym.cloud_edge.contents import ARRIVALS, LEGALITY, OUTAGE, RTT, Contents, ContentSource
from routing_gym.cloud_edge.outcomes import OutcomeContents
from routing_gym.cloud_edge.synthetic import SyntheticConfig, SyntheticContents
from routing_gym.common.config import ConfigError
from routing_gym.common.seeding import EpisodeStreams
from routing_gym.common.trace import read_trace

Floats = NDArray[np.float64]
RTT_CUT = 4.0  # standard deviations, so that an observation's bounds are finite


class Arrivals(NamedTuple):
    """An episode's requests, in order of arrival.

    `arrival_s` (n,) in [0, windows · Δ), and `edge_only` (n,) bool; `contents` says what they are.
    """

    arrival_s: Floats
    edge_only: NDArray[np.bool_]
    contents: Contents


class Surroundings(NamedTuple):
    """What holds in each window: `rtt_s` and `up` (bool), shape (windows, M)."""

    rtt_s: Floats
    up: NDArray[np.bool_]


class Workload:
    """Arrivals and surroundings of one condition.

    Attributes:
        config: the condition.
        contents: where the requests' contents come from.
        physics: (M,) `catalogue.PHYSICS`.
        horizon_s: the episode's length.
        expected_requests: mean number of arrivals in an episode.
        rate_per_s: mean arrival rate.
        input_maximum, output_maximum, predicted_maximum: largest token counts of a request.
        rtt_maximum_s: longest round trip per destination (M,).
        length_ms: how long the trace lasts at its rate; None of other arrivals.
    """

    length_ms: float | None = None

    def __init__(self, config: CloudEdgeConfig) -> None:
        """Prepare what does not change from episode to episode.

        Raises:
            ConfigError: the workload does not know a model, or the trace is shorter than an episode.
            TraceError, TableError, FolderError: a file cannot be used.
            ImportError: recorded outcomes with embeddings need the extra `quality`.
        """
        self.config = config
        models = config.served.hosted
        self.contents: ContentSource
        if isinstance(config.workload, SyntheticConfig):
            self.contents = SyntheticContents(config.workload, models)
        else:
            self.contents = OutcomeContents(config.workload, models)
        self.physics = physics_table(config.destinations, models)
        self.horizon_s = config.windows * config.window_s
        # Where each window ends, by the same product as the kernel's.
        self._ends_s = np.arange(1, config.windows + 1) * config.window_s
        nodes = config.served.node_names(config.replicate)
        self._node = np.array([nodes.index(d.node) for d in config.destinations])
        self._node_count = len(nodes)
        self._rtt_s = np.array([d.path.rtt_ms for d in config.destinations]) / 1000.0
        self.rtt_maximum_s = self._rtt_s * np.exp(RTT_CUT * config.rtt_sigma)
        self._scheduled_up = np.ones((config.windows, len(nodes)), bool)
        for outage in config.outages:
            down = slice(outage.window, outage.window + outage.windows)
            self._scheduled_up[down, nodes.index(outage.node)] = False
        self.input_maximum = self.contents.input_maximum
        self.output_maximum = self.contents.output_maximum
        self.predicted_maximum = self.contents.predicted_maximum
        if config.trace is not None:
            self._read_trace(config.trace)
        elif config.requests is not None:
            self.rate_per_s = config.requests / config.window_s
        else:
            assert config.rate_per_s is not None
            self.rate_per_s = config.rate_per_s
        self.expected_requests = self.rate_per_s * self.horizon_s

    def _read_trace(self, path: str) -> None:
        trace = read_trace(path)
        natural = trace.rate_per_ms * 1000.0
        self.rate_per_s = self.config.rate_per_s or natural
        self._trace_s = trace.arrival_ms / 1000.0 * (natural / self.rate_per_s)
        self._trace_input = trace.prompt_tokens.astype(np.float64)
        self._trace_output = np.maximum(trace.output_tokens.astype(np.float64), 1.0)
        length = float(self._trace_s[-1])
        self.length_ms = 1000.0 * length
        if length < self.horizon_s:
            raise ConfigError(
                f"trace = {path}: lasts {length:.1f} s at {self.rate_per_s:.6g} requests/s; an episode takes "
                f"{self.horizon_s:g} s. Lower rate_per_s or windows"
            )
        largest = float(self._trace_input.max()), float(self._trace_output.max())
        self.input_maximum, self.output_maximum, self.predicted_maximum = self.contents.maxima(*largest)

    def draw(self, streams: EpisodeStreams) -> tuple[Arrivals, Surroundings]:
        """Draw an episode from its streams."""
        arrival, tokens = self._arrivals(streams[ARRIVALS])
        count = len(arrival)
        contents = self.contents.draw(streams, count, tokens)
        share = self.config.edge_only_share
        edge_only = streams[LEGALITY].random(count) < share if share else np.zeros(count, bool)
        return Arrivals(arrival, edge_only, contents), self._surroundings(streams)

    def _arrivals(self, rng: np.random.Generator) -> tuple[Floats, tuple[Floats, Floats] | None]:
        config = self.config
        if config.requests is not None:
            shares = np.sort(rng.random((config.windows, config.requests)), axis=1)
            starts = np.arange(config.windows)[:, None] * config.window_s
            arrival = starts + shares * config.window_s
            # Rounding must not carry an arrival into the next window.
            return np.minimum(arrival, np.nextafter(self._ends_s, 0.0)[:, None]).ravel(), None
        if config.trace is not None:
            start = rng.random() * (self._trace_s[-1] - self.horizon_s)
            first = np.searchsorted(self._trace_s, start, side="left")
            last = np.searchsorted(self._trace_s, start + self.horizon_s, side="left")
            arrival = np.minimum(self._trace_s[first:last] - start, np.nextafter(self._ends_s[-1], 0.0))
            return arrival, (self._trace_input[first:last], self._trace_output[first:last])
        total = self.expected_requests
        if total == 0:
            return np.zeros(0), None
        chunk = int(total + 6.0 * total**0.5) + 16
        hazard = np.cumsum(rng.standard_exponential(chunk))
        while hazard[-1] < total:
            hazard = np.concatenate([hazard, hazard[-1] + np.cumsum(rng.standard_exponential(chunk))])
        arrival = hazard / self.rate_per_s
        return arrival[: np.searchsorted(arrival, self._ends_s[-1], side="left")], None

    def _surroundings(self, streams: EpisodeStreams) -> Surroundings:
        config = self.config
        shape = config.windows, self._node_count
        rtt = np.broadcast_to(self._rtt_s, (config.windows, len(self._rtt_s)))
        if config.rtt_sigma:
            noise = np.clip(streams[RTT].standard_normal(shape), -RTT_CUT, RTT_CUT)
            rtt = rtt * np.exp(config.rtt_sigma * noise)[:, self._node]
        up = self._scheduled_up
        if config.outage_probability:
            chance = streams[OUTAGE].random(shape)
            random_up, healthy = np.empty(shape, bool), np.ones(shape[1], bool)
            for window in range(config.windows):
                # A healthy node fails with the given probability, a failed one recovers so that outages
                # last as long as asked on average.
                stays_down = chance[window] >= 1.0 / config.outage_mean_windows
                healthy = np.where(healthy, chance[window] >= config.outage_probability, ~stays_down)
                random_up[window] = healthy
            up = up & random_up
        return Surroundings(rtt, up[:, self._node])


class Episode(NamedTuple):
    """One drawn episode: its condition, the workload it came from, and what was drawn."""

    config: CloudEdgeConfig
    workload: Workload
    arrivals: Arrivals
    surroundings: Surroundings


class EpisodeSource:
    """Draws episodes of a condition.

    Attributes:
        config: the condition.
        workload: its workload.
    """

    def __init__(self, config: CloudEdgeConfig) -> None:
        """Prepare the workload; raises as `Workload`."""
        self.config = config
        self.workload = Workload(config)

    def draw(self, np_random: np.random.Generator) -> Episode:
        """Draw the next episode; consumes one draw of `np_random`."""
        return Episode(self.config, self.workload, *self.workload.draw(EpisodeStreams(np_random)))
