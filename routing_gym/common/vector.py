"""Vector environments over one kernel: seeding per row, autoreset in three modes, info batching."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.error import ResetNeeded
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from routing_gym.common.buffer import Observation
from routing_gym.common.config import ConfigError, config_hash
from routing_gym.common.env import check_actions, check_render_mode
from routing_gym.common.seeding import Seeds, new_generator, spread_seeds
from routing_gym.common.spaces import check_fits

Infos = dict[str, Any]


class RoutingVectorEnv(VectorEnv[Any, Any, Any]):
    """A vector environment whose rows are episodes in one set of arrays.

    Row i of `reset(seed=s)` is the single environment reset with s + i, also after autoreset. A subclass
    fills in the methods below; observations are fresh arrays at every step.

    Attributes:
        autoreset_mode: NEXT_STEP (default), SAME_STEP, or DISABLED with `options={"reset_mask": …}`.
        hold_finished: under DISABLED, whether a finished row may be stepped on: it keeps its closing
            observation, is paid 0 and stays truncated. Otherwise stepping it raises ResetNeeded.
    """

    state: Any  # the family's arrays, which a subclass makes

    def __init__(
        self,
        sources: Sequence[Any],
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        render_mode: str | None = None,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        hold_finished: bool = False,
    ) -> None:
        """Set up spaces and bookkeeping for as many rows as there are sources of episodes.

        Raises:
            ValueError: an unknown render or autoreset mode, or `hold_finished` under another than DISABLED.
        """
        check_render_mode(render_mode, self.metadata)
        self.render_mode = render_mode
        num_envs = len(sources)
        try:
            self.autoreset_mode = AutoresetMode(autoreset_mode)
        except ValueError:
            modes = ", ".join(mode.value for mode in AutoresetMode)
            raise ValueError(f"autoreset_mode = {autoreset_mode!r}: must be one of {modes}") from None
        self.hold_finished = hold_finished
        if hold_finished and self.autoreset_mode is not AutoresetMode.DISABLED:
            raise ValueError(
                f"hold_finished = True: needs autoreset_mode DISABLED, not {self.autoreset_mode.name}"
            )
        self.metadata = {**self.metadata, "autoreset_mode": self.autoreset_mode}
        self.num_envs = num_envs
        self._sources = list(sources)
        self._episodes: list[Any] = [None] * num_envs
        self._renderers: list[Any] = []
        self.single_observation_space = observation_space
        self.single_action_space = action_space
        self.observation_space = batch_space(observation_space, num_envs)
        self.action_space = batch_space(action_space, num_envs)
        self._generators: list[np.random.Generator | None] = [None] * num_envs
        self._finished = np.ones(num_envs, bool)  # nothing has been reset yet
        self._everyone = np.ones(num_envs, bool)

    # What a family fills in. `step` and `skip` are boolean masks (num_envs,), `rows` lists of indices.

    @abstractmethod
    def _advance(
        self, step: NDArray[np.bool_], skip: NDArray[np.bool_], actions: NDArray[Any] | None
    ) -> None:
        """Step the rows of `step` and observe all but those of `skip`, into a fresh buffer."""

    @abstractmethod
    def _start(self, rows: list[int]) -> NDArray[np.int8]:
        """Start rows that were loaded, observe them into the last buffer, and return their action masks."""

    @abstractmethod
    def _checked_actions(self, actions: Any, active: NDArray[np.bool_]) -> NDArray[Any]:
        """Return actions as an array, or raise naming the row, the bound and the value."""

    @abstractmethod
    def _outcome(self) -> tuple[NDArray[Any], NDArray[np.bool_], dict[str, NDArray[Any]]]:
        """Return rewards and truncations of the last step, and the per-row infos, all fresh."""

    @abstractmethod
    def _observation(self) -> Observation:
        """Return all rows' observations, over the buffer last written."""

    @abstractmethod
    def _make_renderer(self, render_mode: str) -> Any:
        """Return what draws one row's frames in this render mode."""

    @abstractmethod
    def episode_metrics(self, row: int) -> dict[str, Any]:
        """Return the metrics of a row's episode so far, None where undefined (final once truncated)."""

    @property
    def configs(self) -> list[Any]:
        """The condition of each row's current episode (before the first reset: its base condition)."""
        return [
            episode.config if episode else source.config
            for episode, source in zip(self._episodes, self._sources, strict=True)
        ]

    @property
    def episodes(self) -> list[Any]:
        """Each row's current episode; None before the first reset."""
        return self._episodes

    # The Gymnasium interface

    def reset(
        self, *, seed: Seeds = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, Infos]:
        """Reset all rows, or those of `options["reset_mask"]`.

        Args:
            seed: an integer s (row i gets s + i), a list with one seed or None per row, or None to let
                each row go on to its next episode.
            options: `reset_mask`, a bool array (num_envs,), resets only the rows that are True.

        Raises:
            ValueError, TypeError: a mask or a list of seeds of the wrong shape or type.
        """
        mask = self._reset_mask(options)
        for row, row_seed in enumerate(spread_seeds(seed, self.num_envs)):
            if mask[row] and (row_seed is not None or self._generators[row] is None):
                self._generators[row] = new_generator(row_seed)
        rows = self._load_rows(mask)
        # Nobody steps, but into a fresh buffer: the last observation is the caller's.
        self._advance(step=np.zeros_like(mask), skip=mask, actions=None)
        _, _, infos = self._outcome()
        infos["action_mask"][rows] = self._start(rows)
        self._finished &= ~mask
        infos["reward_terms"][:] = 0.0
        return self._observation(), self._with_masks(infos)

    def step(
        self, actions: Any
    ) -> tuple[Observation, NDArray[Any], NDArray[np.bool_], NDArray[np.bool_], Infos]:
        """Step all rows; see Gymnasium's `AutoresetMode` for what happens to finished ones.

        Raises:
            ValueError: an action outside the space.
            ResetNeeded: a finished row under DISABLED, or no reset yet.
        """
        stale = self._finished
        some_stale = bool(stale.any())
        if self._generators[0] is None or (
            some_stale and self.autoreset_mode is AutoresetMode.DISABLED and not self.hold_finished
        ):
            raise ResetNeeded(
                f"rows {np.flatnonzero(stale).tolist()} have no episode in progress; reset them first, with "
                'options={"reset_mask": mask} to leave the others alone'
            )
        restarted = stale if self.autoreset_mode is AutoresetMode.NEXT_STEP else np.zeros_like(stale)
        active = ~stale
        checked = self._checked_actions(actions, active)  # before anything changes
        begun = self._load_rows(restarted) if some_stale else []
        self._advance(active, restarted, checked)
        rewards, truncated, infos = self._outcome()
        if begun:
            infos["action_mask"][begun] = self._start(begun)
        if some_stale:
            rewards[stale] = 0.0
            infos["reward_terms"][stale] = 0.0
        ended = truncated & active
        batched = self._with_masks(infos)
        observation = self._observation()
        if ended.any():
            rows = np.flatnonzero(ended).tolist()
            final = batch_infos(self.num_envs, {r: self._defined_metrics(r) for r in rows})
            if self.autoreset_mode is AutoresetMode.SAME_STEP:
                batched = self._restart(rows, ended.copy(), observation, final, batched)
            else:
                batched |= {"episode_metrics": final, "_episode_metrics": ended.copy()}
        if self.autoreset_mode is AutoresetMode.SAME_STEP:
            self._finished = np.zeros(self.num_envs, bool)
        else:
            self._finished = truncated.copy()
        return observation, rewards, np.zeros(self.num_envs, bool), truncated, batched

    def _restart(
        self,
        rows: list[int],
        ended: NDArray[np.bool_],
        observation: Observation,
        final: Infos,
        infos: Mapping[str, NDArray[Any]],
    ) -> Infos:
        """Reset the rows that ended, in the same step; what they ended with goes to `final_…`."""
        final_obs = np.full(self.num_envs, None, dtype=object)
        for row in rows:
            final_obs[row] = {name: values[row].copy() for name, values in observation.items()}
        final_info: Infos = {"episode_metrics": final, "_episode_metrics": ended}
        for name, values in infos.items():
            final_info[name] = ended if name.startswith("_") else np.where(_column(ended, values), values, 0)
        self._load_rows(ended)
        mask, terms = infos["action_mask"].copy(), infos["reward_terms"].copy()
        mask[rows] = self._start(rows)
        terms[rows] = 0.0
        return {
            **self._with_masks({"action_mask": mask, "reward_terms": terms}),
            "final_obs": final_obs,
            "_final_obs": ended,
            "final_info": final_info,
            "_final_info": ended.copy(),
        }

    def _load_rows(self, mask: NDArray[np.bool_]) -> list[int]:
        rows = np.flatnonzero(mask).tolist()
        for row in rows:
            generator = self._generators[row]
            assert generator is not None
            self._episodes[row] = episode = self._sources[row].draw(generator)
            self.state.load(row, *episode)
        return rows

    def _defined_metrics(self, row: int) -> dict[str, Any]:
        return {name: value for name, value in self.episode_metrics(row).items() if value is not None}

    def _with_masks(self, infos: Mapping[str, Any]) -> Infos:
        return {**infos, **{f"_{name}": self._everyone.copy() for name in infos}}

    def _reset_mask(self, options: Mapping[str, Any] | None) -> NDArray[np.bool_]:
        if not options or options.get("reset_mask") is None:
            return self._everyone.copy()
        mask = options["reset_mask"]
        if not isinstance(mask, np.ndarray) or mask.dtype != np.bool_:
            raise TypeError(f"options['reset_mask'] = {mask!r}: must be a NumPy array of bool")
        if mask.shape != (self.num_envs,):
            raise ValueError(f"options['reset_mask'] has shape {mask.shape}; it must be ({self.num_envs},)")
        if not mask.any():
            raise ValueError("options['reset_mask'] is False everywhere; at least one row must be reset")
        fresh = [row for row, generator in enumerate(self._generators) if generator is None and not mask[row]]
        if fresh:
            raise ResetNeeded(f"rows {fresh} were never reset; reset all rows before some of them")
        return mask.copy()

    def render(self) -> Any:
        """Return a tuple of one frame (`rgb_array`) or text (`ansi`) per row."""
        if self.render_mode is None:
            gym.logger.warn("render() needs a render_mode; pass one to gym.make_vec")
            return None
        while len(self._renderers) < self.num_envs:
            self._renderers.append(self._make_renderer(self.render_mode))
        return tuple(
            renderer.render(self.state, row, config)
            for row, (renderer, config) in enumerate(zip(self._renderers, self.configs, strict=True))
        )

    # Saved states

    def get_state(self) -> dict[str, Any]:
        """Return a copy of everything that the rows' futures depend on, for `set_state`.

        Raises:
            ResetNeeded: there have been no episodes yet.
        """
        if None in self._episodes:
            raise ResetNeeded("there are no episodes to save; call reset first")
        return {
            "actions": type(self.single_action_space).__name__,
            "arrays": self.state.arrays(),
            "episodes": list(self._episodes),
            "finished": self._finished.copy(),
            "generators": [None if g is None else g.bit_generator.state for g in self._generators],
        }

    def set_state(self, state: Mapping[str, Any]) -> tuple[Observation, Infos]:
        """Go back to a state of this environment, or of one with the same arguments.

        Returns:
            Observations and infos of the pending decisions.

        Raises:
            ValueError: the state is of an environment with other spaces.
        """
        check_fits([episode.config for episode in state["episodes"]], self._sources[0].config)
        check_actions(state, self.single_action_space)
        self.state.restore(state["arrays"])
        self._episodes = list(state["episodes"])
        self._finished = state["finished"].copy()
        for row, saved in enumerate(state["generators"]):
            generator = self._generators[row] or new_generator(0)
            generator.bit_generator.state = saved
            self._generators[row] = generator
        nobody = np.zeros(self.num_envs, bool)
        self._advance(nobody, nobody, None)
        return self._observation(), self._with_masks(self._outcome()[2])


def row_sources(
    num_envs: int,
    config: Any,
    configs: Sequence[Any] | None,
    resolve: Callable[[Any], Any],
    make_source: Callable[[Any], Any],
) -> list[Any]:
    """Return one source of episodes per row; rows of the same condition share theirs.

    Args:
        num_envs: rows.
        config: what the user gave for all rows.
        configs: or for each.
        resolve: turns what was given into a condition.
        make_source: makes the source of a condition; its `config` has `space_fields`, in which all rows must
            agree.

    Raises:
        ValueError: not one config per row, or rows that do not fit together.
    """
    if num_envs < 1:
        raise ValueError(f"num_envs = {num_envs}: must be at least 1")
    if configs is not None and len(configs) != num_envs:
        raise ValueError(f"configs has {len(configs)} entries; num_envs is {num_envs}")
    given = [config] * num_envs if configs is None else list(configs)
    by_object: dict[int, Any] = {}
    by_value: dict[str, Any] = {}
    for item in given:
        if id(item) not in by_object:
            conditions = resolve(item)
            key = config_hash(conditions)
            if key not in by_value:
                by_value[key] = make_source(conditions)
            by_object[id(item)] = by_value[key]
    sources = [by_object[id(item)] for item in given]
    first = sources[0].config
    for row, source in enumerate(sources):
        for field in first.space_fields:
            value, needed = getattr(source.config, field), getattr(first, field)
            if value != needed:
                raise ConfigError(f"configs[{row}].{field} = {value!r}: must be {needed!r}, as in configs[0]")
    return sources


def _column(mask: NDArray[np.bool_], values: NDArray[Any]) -> NDArray[np.bool_]:
    """Shape a mask over rows so that it broadcasts against `values`."""
    return mask.reshape(-1, *[1] * (values.ndim - 1))


def batch_infos(rows: int, infos: Mapping[int, Mapping[str, Any]]) -> Infos:
    """Batch the infos of some rows: an array per key, and under `_key` a mask of the rows that have it.

    Numbers become float64 whatever their type, so that a whole number in one row truncates no other's.
    """
    names = list(dict.fromkeys(name for info in infos.values() for name in info))
    # One block for all keys: an episode's end would otherwise cost a hundred small allocations.
    values, masks = np.zeros((len(names), rows)), np.zeros((len(names), rows), bool)
    batched: Infos = dict(zip(names, values, strict=True))
    batched |= {f"_{name}": mask for name, mask in zip(names, masks, strict=True)}
    place = {name: k for k, name in enumerate(names)}
    for row, info in infos.items():
        scalars = {place[name]: value for name, value in info.items() if not isinstance(value, np.ndarray)}
        values[list(scalars), row] = list(scalars.values())
        masks[[place[name] for name in info], row] = True
        for name, value in info.items():
            if place[name] in scalars:
                continue
            if batched[name].ndim == 1:
                batched[name] = np.zeros((rows, *np.shape(value)))
            batched[name][row] = value
    return batched
