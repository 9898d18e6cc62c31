"""What the two cloud–edge environments share."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from routing_gym.cloud_edge.config import DEFAULT, CloudEdgeConfig, resolve
from routing_gym.cloud_edge.engine import compiled
from routing_gym.cloud_edge.metrics import assignment_log, episode_metrics
from routing_gym.cloud_edge.state import CloudEdgeState
from routing_gym.cloud_edge.workload import EpisodeSource, Workload
from routing_gym.common.buffer import BufferLayout, Observation
from routing_gym.common.env import RoutingEnv

Given = CloudEdgeConfig | str | Path | Mapping[str, Any]


class CloudEdgeEnv(RoutingEnv):
    """A cloud–edge environment; a subclass says what a step is."""

    views: ClassVar[tuple[str, ...]] = ("_advance", "_arrays", "_row", "_reward", "_done", "_terms")

    def __init__(self, config: Given = DEFAULT, render_mode: str | None = None, **overrides: Any) -> None:
        """Build the environment; see the class for the arguments.

        Raises:
            ConfigError: names each bad field, its value and what is allowed.
            TraceError: the trace cannot be read.
            ValueError: an unknown render mode.
        """
        super().__init__(render_mode)
        self._source = EpisodeSource(resolve(config, **overrides))
        base = self._source.config
        self._width = base.destination_count
        self._build(self._source.workload)
        self._layout = self._make_layout(base)
        self._state = CloudEdgeState(1, base.destination_count, base.max_requests)
        self._bind()

    @abstractmethod
    def _build(self, workload: Workload) -> None:
        """Make the spaces."""

    @abstractmethod
    def _make_layout(self, config: CloudEdgeConfig) -> BufferLayout:
        """Return the layout of this environment's observations."""

    @abstractmethod
    def _kernel(self) -> Callable[..., None]:
        """Return the kernel that advances this environment."""

    def assignment_log(self) -> NDArray[Any]:
        """Return a row for each request that has arrived; see `metrics.assignment_log`."""
        return assignment_log(self._state, 0)

    def episode_metrics(self) -> dict[str, Any]:
        """Return the metrics of the episode so far, None where undefined (final once truncated)."""
        return episode_metrics(self._state, 0)

    def _make_renderer(self, render_mode: str) -> Any:
        from routing_gym.cloud_edge.rendering import make_renderer

        return make_renderer(render_mode, self.metadata["render_fps"])

    def _bind(self) -> None:
        self._advance = compiled(self._kernel())
        self._arrays = self._state.arguments
        rows = self._row = self._state.rows
        self._reward, self._done, self._terms = rows["reward"], rows["done"], rows["terms"][0]

    def _run(self, command: int) -> Observation:
        self._row["command"][0] = command
        buffer = np.empty(self._layout.size, np.float32)
        self._advance(self._arrays, buffer)
        return self._layout.single(buffer)
