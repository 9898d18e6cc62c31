"""The inference cluster, many episodes at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from routing_gym.cluster.distribution import Conditions, resolve
from routing_gym.cluster.engine import advance, start
from routing_gym.cluster.env import InferenceCluster
from routing_gym.cluster.metrics import METRICS, Horizon, episode_curves, episode_metrics
from routing_gym.cluster.observation import observation_layout
from routing_gym.cluster.spaces import action_space, observation_space, reward_space
from routing_gym.cluster.state import ClusterState
from routing_gym.cluster.workload import EpisodeSource
from routing_gym.common.buffer import Observation
from routing_gym.common.commands import OBSERVE, SKIP, STEP
from routing_gym.common.spaces import common_space
from routing_gym.common.vector import RoutingVectorEnv, row_sources

Given = Conditions | str | Path | Mapping[str, Any]


class InferenceClusterVector(RoutingVectorEnv):
    """`InferenceCluster`, vectorised: the same kernel runs all rows in one call.

    Observations, masks and reward terms have a leading axis of rows; see `InferenceCluster` for what they
    mean, and `RoutingVectorEnv` for seeding, autoreset and infos. Every row has its own episode, and with
    `configs` its own condition.

    ## Arguments

    | argument | default | what |
    |---|---|---|
    | `num_envs` | 1 | rows |
    | `config` | `"default"` | as for `InferenceCluster`, for all rows |
    | `configs` | `None` | instead: one per row. All must agree on replicas, admission and observation |
    | `autoreset_mode` | NEXT_STEP | an `AutoresetMode` or its value |
    | `hold_finished` | `False` | under DISABLED: finished rows wait instead of raising |
    | any field of `ClusterConfig` | | laid over the config of each row |
    """

    metadata: dict[str, Any] = {  # noqa: RUF012 (declared so by Gymnasium)
        "render_modes": InferenceCluster.metadata["render_modes"][:2],
        "render_fps": InferenceCluster.metadata["render_fps"],
    }
    vector_reward: ClassVar[bool] = False

    def __init__(
        self,
        num_envs: int = 1,
        config: Given = "default",
        configs: Sequence[Given] | None = None,
        render_mode: str | None = None,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        hold_finished: bool = False,
        **overrides: Any,
    ) -> None:
        """Build the environment; see the class for the arguments.

        Raises:
            ConfigError: names each bad field, its value and what is allowed.
            ValueError: rows that do not fit together, or an unknown render mode.
        """
        sources = row_sources(
            num_envs, config, configs, lambda given: resolve(given, **overrides), EpisodeSource
        )
        first = sources[0].config
        unique = {id(source): source for source in sources}.values()
        super().__init__(
            sources,
            common_space([observation_space(s.conditions, s.workload) for s in unique]),
            action_space(first),
            render_mode,
            autoreset_mode,
            hold_finished,
        )
        self._replicas = first.replicas
        self._actions = first.replicas + first.admission
        self._layout = observation_layout(num_envs, first.replicas, first.observation == "full")
        most = max(source.workload.expected_requests for source in unique)
        self.state = ClusterState(num_envs, first.replicas, most)
        self._buffer = np.zeros(self._layout.size, np.float32)
        if self.vector_reward:
            self.reward_space = reward_space([source.config for source in unique])

    @property
    def undefined_metrics(self) -> dict[str, Any]:
        """Every metric's name, without a value: what a yardstick fills in a part of."""
        return dict.fromkeys(METRICS)

    def progress(self) -> NDArray[np.float64]:
        """Return the share of each row's episode that is over."""
        return self.state.rows["tick"] / self.state.rows["cutoff"]

    def episode_curves(self, row: int) -> dict[str, list[float]]:
        """Return a row's curves; see `metrics.episode_curves`."""
        episode = self._episodes[row]
        assert episode is not None
        return episode_curves(self.request_log(row), Horizon.of(episode.workload))

    def action_masks(self) -> NDArray[np.bool_]:
        """Return the masks of valid actions, bool `(num_envs, N)` or `(num_envs, N + 1)`."""
        return self._action_mask().astype(bool)

    def request_log(self, row: int) -> NDArray[Any]:
        """Return a row's request log; see `ClusterState.request_log`."""
        return self.state.request_log(row)

    def episode_metrics(self, row: int) -> dict[str, Any]:
        """Return the metrics of a row's episode so far, None where undefined (final once truncated)."""
        episode = self._episodes[row]
        workload = episode.workload if episode else self._sources[row].workload
        invalid = int(self.state.rows["invalid_actions"][row])
        return episode_metrics(self.state.outcome(row), Horizon.of(workload), invalid)

    def _make_renderer(self, render_mode: str) -> Any:
        from routing_gym.cluster.rendering import make_renderer

        return make_renderer(render_mode, self.metadata["render_fps"])

    def _advance(
        self, step: NDArray[np.bool_], skip: NDArray[np.bool_], actions: NDArray[Any] | None
    ) -> None:
        state = self.state
        state.rows["command"] = np.where(step, STEP, np.where(skip, SKIP, OBSERVE))
        if actions is not None:
            state.rows["action"] = actions
        self._buffer = np.empty(self._layout.size, np.float32)
        advance(state.rows, state.replicas, state.requests, state.events, self._buffer)

    def _start(self, rows: list[int]) -> NDArray[np.int8]:
        state = self.state
        chosen = np.array(rows, np.int64)
        start(chosen, state.rows, state.replicas, state.requests, state.events, self._buffer)
        return self._action_mask(chosen)

    def _checked_actions(self, actions: Any, active: NDArray[np.bool_]) -> NDArray[Any]:
        array = np.asarray(actions)
        if array.shape != (self.num_envs,) or array.dtype.kind not in "iu":
            raise ValueError(
                f"actions have shape {array.shape} and type {array.dtype}; they must be whole numbers of "
                f"shape ({self.num_envs},)"
            )
        wrong = (array < 0) | (array >= self._actions)
        if wrong.any() and (wrong & active).any():
            row = int(np.flatnonzero(wrong & active)[0])
            raise ValueError(f"actions[{row}] = {array[row]}: must be from 0 to {self._actions - 1}")
        return array

    def _outcome(self) -> tuple[NDArray[Any], NDArray[np.bool_], dict[str, NDArray[Any]]]:
        rows = self.state.rows
        terms = rows["terms"].copy()
        rewards = terms.copy() if self.vector_reward else rows["reward"].copy()
        return rewards, rows["done"] != 0, {"action_mask": self._action_mask(), "reward_terms": terms}

    def _action_mask(self, rows: Any = slice(None)) -> NDArray[np.int8]:
        mask = self.state.replicas["offered"][rows].copy()
        if self._actions > self._replicas:  # rejecting is always allowed
            mask = np.pad(mask, ((0, 0), (0, 1)), constant_values=1)
        return mask

    def _observation(self) -> Observation:
        return self._layout.batch(self._buffer)


class MOInferenceClusterVector(InferenceClusterVector):
    """`MOInferenceCluster`, vectorised: rewards are `(num_envs, 5)`, the five reward terms of each row."""

    vector_reward: ClassVar[bool] = True
