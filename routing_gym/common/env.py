"""A single environment over a family's kernel: episodes, masks, saved states, copies, rendering."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
from gymnasium.error import ResetNeeded
from numpy.typing import NDArray

from routing_gym.common.buffer import Observation
from routing_gym.common.commands import OBSERVE, START, STEP
from routing_gym.common.spaces import check_fits


class RoutingEnv(gym.Env[Any, Any]):
    """One episode at a time, in row 0 of a family's state.

    A subclass builds `observation_space`, `action_space`, `_source` (which draws episodes), `_state` (their
    arrays) and whatever else it needs, calls `_bind` at the end of its constructor, and fills in the methods
    below.
    """

    metadata: dict[str, Any] = {"render_modes": ["ansi", "rgb_array", "human"], "render_fps": 30}  # noqa: RUF012 (as Gymnasium)
    vector_reward: ClassVar[bool] = False
    # Attributes that `_bind` makes: views into the arrays, which copies must make anew.
    views: ClassVar[tuple[str, ...]] = ()

    _source: Any
    _state: Any
    _terms: NDArray[np.float64]  # views of the single row
    _reward: NDArray[np.float64]
    _done: NDArray[np.int8]

    def __init__(self, render_mode: str | None) -> None:
        """Check the render mode.

        Raises:
            ValueError: an unknown one.
        """
        check_render_mode(render_mode, self.metadata)
        self.render_mode = render_mode
        self._episode: Any = None
        self._finished = False
        self._renderer: Any = None

    @abstractmethod
    def _bind(self) -> None:
        """Keep views of the single row's fields: making them at each step would cost more than the step."""

    @abstractmethod
    def _run(self, command: int) -> Observation:
        """Carry out a command and return the observation, over a fresh buffer."""

    @abstractmethod
    def _mask(self) -> NDArray[np.int8]:
        """Return the pending decision's mask of valid actions, fresh."""

    @abstractmethod
    def _checked(self, action: Any) -> Any:
        """Return an action as the kernel takes it, or raise naming the bound and the value."""

    @abstractmethod
    def _place(self, choice: Any) -> None:
        """Hand a checked action to the kernel."""

    @abstractmethod
    def _make_renderer(self, render_mode: str) -> Any:
        """Return what draws frames in this render mode."""

    @abstractmethod
    def episode_metrics(self) -> dict[str, Any]:
        """Return the metrics of the episode so far, None where undefined (final once truncated)."""

    @property
    def config(self) -> Any:
        """The condition of the current episode (before the first reset: the base condition)."""
        return self._episode.config if self._episode else self._source.config

    @property
    def episode(self) -> Any:
        """All that was drawn for the current episode; None before the first reset."""
        return self._episode

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Draw a new episode and go to its first decision; `options` has no effect."""
        super().reset(seed=seed)
        self._episode = self._source.draw(self.np_random)
        self._state.load(0, *self._episode)
        self._finished = False
        self._bind()
        observation = self._run(START)
        if self.render_mode == "human":
            self.render()
        return observation, {"action_mask": self._mask(), "reward_terms": np.zeros(len(self._terms))}

    def step(self, action: Any) -> tuple[Observation, Any, bool, bool, dict[str, Any]]:
        """Carry out an action and go on to the next decision.

        Raises:
            ValueError: the action lies outside the space.
            ResetNeeded: no episode is in progress.
        """
        choice = self._checked(action)
        if self._finished or self._episode is None:
            raise ResetNeeded("no episode is in progress; call reset first")
        self._place(choice)
        observation = self._run(STEP)
        terms = self._terms.copy()
        info = {"action_mask": self._mask(), "reward_terms": terms}
        if self._done[0]:
            self._finished = True
            metrics = self.episode_metrics()
            info["episode_metrics"] = {k: v for k, v in metrics.items() if v is not None}
        if self.render_mode == "human":
            self.render()
        reward = terms.copy() if self.vector_reward else self._reward.item(0)
        return observation, reward, False, self._finished, info

    def action_masks(self) -> NDArray[np.bool_]:
        """Return the mask of valid actions, flat bool, as MaskablePPO asks for it."""
        return self._mask().astype(bool).ravel()

    def get_state(self) -> dict[str, Any]:
        """Return a copy of everything that the episode's future depends on, for `set_state`.

        Raises:
            ResetNeeded: there has been no episode yet.
        """
        if self._episode is None:
            raise ResetNeeded("there is no episode to save; call reset first")
        return {
            "actions": type(self.action_space).__name__,
            "arrays": self._state.arrays(),
            "episode": self._episode,
            "finished": self._finished,
            "np_random": self.np_random.bit_generator.state,
        }

    def set_state(self, state: Mapping[str, Any]) -> tuple[Observation, dict[str, Any]]:
        """Go back to a state of this environment, or of one with the same arguments.

        Returns:
            What `reset` and `step` return of the pending decision: its observation and info.

        Raises:
            ValueError: the state is of an environment with other spaces.
        """
        check_fits([state["episode"].config], self._source.config)
        check_actions(state, self.action_space)
        self._state.restore(state["arrays"])
        self._episode = state["episode"]
        self._finished = state["finished"]
        self.np_random.bit_generator.state = state["np_random"]
        self._bind()
        observation = self._run(OBSERVE)
        return observation, {"action_mask": self._mask(), "reward_terms": self._terms.copy()}

    def render(self) -> Any:
        """Return a frame (`rgb_array`), a text (`ansi`), or show a window (`human`)."""
        if self.render_mode is None:
            gym.logger.warn("render() needs a render_mode; pass one to gym.make")
            return None
        if self._renderer is None:
            self._renderer = self._make_renderer(self.render_mode)
        return self._renderer.render(self._state, 0, self.config)

    def close(self) -> None:
        """Close the window, if there is one."""
        if self._renderer is not None:
            self._renderer.close()
            self._renderer = None

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the views into the arrays and the renderer; both are made again."""
        state = {name: value for name, value in self.__dict__.items() if name not in self.views}
        return {**state, "_renderer": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore, and bind the views to the restored arrays."""
        self.__dict__.update(state)
        self._bind()


def check_actions(state: Mapping[str, Any], own: gym.Space[Any]) -> None:
    """Refuse a saved state of an environment with another kind of actions, whose arrays may be just alike.

    Raises:
        ValueError: names both kinds.
    """
    kind = type(own).__name__
    if state["actions"] != kind:
        raise ValueError(
            f"the state is of an environment with {state['actions']} actions; this one's are {kind}"
        )


def check_render_mode(render_mode: str | None, metadata: Mapping[str, Any]) -> None:
    """Raise a ValueError for a render mode that `metadata` does not list."""
    if render_mode is not None and render_mode not in metadata["render_modes"]:
        modes = ", ".join(metadata["render_modes"])
        raise ValueError(f"render_mode = {render_mode!r}: must be None or one of {modes}")
