"""Cloud–edge batches, many episodes at a time."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from routing_gym.cloud_edge.base_env import Given
from routing_gym.cloud_edge.config import DEFAULT, CloudEdgeConfig, resolve
from routing_gym.cloud_edge.engine import advance_batch, advance_request, start_batch, start_request
from routing_gym.cloud_edge.env import CloudEdgeBatch, reward_space
from routing_gym.cloud_edge.metrics import METRICS, assignment_log, episode_curves, episode_metrics
from routing_gym.cloud_edge.observation import batch_layout, request_layout
from routing_gym.cloud_edge.spaces import (
    batch_action_space,
    batch_observation_space,
    request_action_space,
    request_observation_space,
)
from routing_gym.cloud_edge.state import LEGAL, CloudEdgeState
from routing_gym.cloud_edge.workload import EpisodeSource, Workload
from routing_gym.common.buffer import BufferLayout, Observation
from routing_gym.common.commands import OBSERVE, SKIP, STEP
from routing_gym.common.spaces import common_space
from routing_gym.common.vector import RoutingVectorEnv, row_sources


class CloudEdgeVectorEnv(RoutingVectorEnv):
    """A cloud–edge environment, vectorised: the same kernel runs all rows in one call.

    Observations, masks and reward terms have a leading axis of rows; see `CloudEdgeBatch` for what they mean,
    and `RoutingVectorEnv` for seeding, autoreset and infos. Every row has its own episode, and with `configs`
    its own condition.

    ## Arguments

    | argument | default | what |
    |---|---|---|
    | `num_envs` | 1 | rows |
    | `config` | `"routerbench-5node"` | as for `CloudEdgeBatch`, for all rows |
    | `configs` | `None` | instead: one per row. All agree on `max_requests` and the number of destinations |
    | `autoreset_mode` | NEXT_STEP | an `AutoresetMode` or its value |
    | `hold_finished` | `False` | under DISABLED: finished rows wait instead of raising |
    | any field of `CloudEdgeConfig` | | laid over the config of each row |
    """

    metadata: dict[str, Any] = {  # noqa: RUF012 (declared so by Gymnasium)
        "render_modes": CloudEdgeBatch.metadata["render_modes"][:2],
        "render_fps": CloudEdgeBatch.metadata["render_fps"],
    }
    vector_reward: ClassVar[bool] = False

    def __init__(
        self,
        num_envs: int = 1,
        config: Given = DEFAULT,
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
            common_space([self._observation_space(source.workload) for source in unique]),
            self._action_space(first),
            render_mode,
            autoreset_mode,
            hold_finished,
        )
        self._width, self._slots = first.destination_count, first.max_requests
        self._layout = self._make_layout(first)
        most = max(source.workload.expected_requests for source in unique)
        models = max(len(source.config.served.hosted) for source in unique)
        self.state = CloudEdgeState(num_envs, self._width, self._slots, most, models)
        self._buffer = np.zeros(self._layout.size, np.float32)
        shape = (self._width,)
        by_request = self.single_action_space.shape == ()
        self._mask_shape = shape if by_request else (self._slots, *shape)
        if self.vector_reward:
            self.reward_space = reward_space(source.config for source in unique if by_request)

    @abstractmethod
    def _observation_space(self, workload: Workload) -> gym.spaces.Dict:
        """Return the space of one row's observations."""

    @abstractmethod
    def _action_space(self, config: CloudEdgeConfig) -> gym.spaces.Space[Any]:
        """Return the space of one row's actions."""

    @abstractmethod
    def _make_layout(self, config: CloudEdgeConfig) -> BufferLayout:
        """Return the layout of the observations."""

    @abstractmethod
    def _kernels(self) -> tuple[Any, Any]:
        """Return the kernels that advance all rows, and that start some."""

    @abstractmethod
    def _legal(self) -> NDArray[np.int8]:
        """Return the masks of all rows from the state, fresh."""

    def _action_mask(self, rows: Any = slice(None)) -> NDArray[np.int8]:
        """Return the masks of some rows from the observation that the kernel has just written, fresh."""
        legal = self._layout.batch(self._buffer)["legal"][rows]
        return (legal > 0).view(np.int8).reshape(-1, *self._mask_shape)  # nothing is said of skipped rows

    @property
    def undefined_metrics(self) -> dict[str, Any]:
        """Every metric's name, without a value: what a yardstick fills in a part of."""
        return dict.fromkeys(METRICS)

    def progress(self) -> NDArray[np.float64]:
        """Return the share of each row's episode that is over."""
        rows = self.state.rows
        return np.maximum(rows["window"], 0) / rows["window_count"]

    def episode_curves(self, row: int) -> dict[str, list[float]]:
        """Return a row's curves; see `metrics.episode_curves`."""
        return episode_curves(self.state, row)

    def action_masks(self) -> NDArray[np.bool_]:
        """Return the masks of valid actions, bool, flat in each row."""
        return self._legal().astype(bool).reshape(self.num_envs, -1)

    def assignment_log(self, row: int) -> NDArray[Any]:
        """Return a row for each request that has arrived; see `metrics.assignment_log`."""
        return assignment_log(self.state, row)

    def episode_metrics(self, row: int) -> dict[str, Any]:
        """Return the metrics of a row's episode so far, None where undefined (final once truncated)."""
        return episode_metrics(self.state, row)

    def _make_renderer(self, render_mode: str) -> Any:
        from routing_gym.cloud_edge.rendering import make_renderer

        return make_renderer(render_mode, self.metadata["render_fps"])

    def _advance(
        self, step: NDArray[np.bool_], skip: NDArray[np.bool_], actions: NDArray[Any] | None
    ) -> None:
        self.state.rows["command"] = np.where(step, STEP, np.where(skip, SKIP, OBSERVE))
        if actions is not None:
            self._place(step, actions)
        self._buffer = np.empty(self._layout.size, np.float32)
        self._kernels()[0](self.state.arguments, self._buffer)

    @abstractmethod
    def _place(self, step: NDArray[np.bool_], actions: NDArray[Any]) -> None:
        """Hand checked actions to the kernel; only rows of `step` may change."""

    def _start(self, rows: list[int]) -> NDArray[np.int8]:
        chosen = np.array(rows, np.int64)
        self._kernels()[1](chosen, self.state.arguments, self._buffer)
        return self._action_mask(chosen)

    def _outcome(self) -> tuple[NDArray[Any], NDArray[np.bool_], dict[str, NDArray[Any]]]:
        rows = self.state.rows
        terms = rows["terms"].copy()
        rewards = terms.copy() if self.vector_reward else rows["reward"].copy()
        return rewards, rows["done"] != 0, {"action_mask": self._action_mask(), "reward_terms": terms}

    def _checked_actions(self, actions: Any, active: NDArray[np.bool_]) -> NDArray[Any]:
        array = np.asarray(actions)
        if array.shape != self.action_space.shape or array.dtype.kind not in "iu":
            raise ValueError(
                f"actions have shape {array.shape} and type {array.dtype}; they must be whole numbers of "
                f"shape {self.action_space.shape}"
            )
        wrong = (array < 0) | (array >= self._width)
        if wrong.any():
            for place in np.argwhere(wrong).tolist():
                if active[place[0]]:
                    raise ValueError(
                        f"actions{place} = {array[tuple(place)]}: must be from 0 to {self._width - 1}"
                    )
        return array

    def _observation(self) -> Observation:
        return self._layout.batch(self._buffer)


class CloudEdgeBatchVector(CloudEdgeVectorEnv):
    """`CloudEdgeBatch`, vectorised; see `CloudEdgeVectorEnv`."""

    def _observation_space(self, workload: Workload) -> gym.spaces.Dict:
        return batch_observation_space(workload)

    def _action_space(self, config: CloudEdgeConfig) -> gym.spaces.MultiDiscrete:
        return batch_action_space(config)

    def _make_layout(self, config: CloudEdgeConfig) -> BufferLayout:
        return batch_layout(self.num_envs, config.max_requests, config.destination_count)

    def _kernels(self) -> tuple[Any, Any]:
        return advance_batch, start_batch

    def _legal(self) -> NDArray[np.int8]:
        return self.state.tables[:, :, LEGAL].astype(np.int8)

    def _place(self, step: NDArray[np.bool_], actions: NDArray[Any]) -> None:
        self.state.slots["choice"][step] = actions[step]


class CloudEdgeRequestVector(CloudEdgeVectorEnv):
    """`CloudEdgeRequest`, vectorised; see `CloudEdgeVectorEnv`."""

    def _observation_space(self, workload: Workload) -> gym.spaces.Dict:
        return request_observation_space(workload)

    def _action_space(self, config: CloudEdgeConfig) -> gym.spaces.Discrete:
        return request_action_space(config)

    def _make_layout(self, config: CloudEdgeConfig) -> BufferLayout:
        return request_layout(self.num_envs, config.destination_count)

    def _kernels(self) -> tuple[Any, Any]:
        return advance_request, start_request

    def _legal(self) -> NDArray[np.int8]:
        state, rows = self.state, np.arange(self.num_envs)
        slots = state.slots["order"][rows, state.rows["position"]]
        mask = state.tables[rows, slots, LEGAL].astype(np.int8)
        mask[state.rows["batch"] == 0] = 1  # at an episode's end any answer will do
        return mask

    def _place(self, step: NDArray[np.bool_], actions: NDArray[Any]) -> None:
        self.state.rows["action"] = actions


class MOCloudEdgeBatchVector(CloudEdgeBatchVector):
    """`MOCloudEdgeBatch`, vectorised: rewards are `(num_envs, 4)`, the four reward terms of each row."""

    vector_reward: ClassVar[bool] = True


class MOCloudEdgeRequestVector(CloudEdgeRequestVector):
    """`MOCloudEdgeRequest`, vectorised: rewards are `(num_envs, 4)`, the four reward terms of each row."""

    vector_reward: ClassVar[bool] = True
