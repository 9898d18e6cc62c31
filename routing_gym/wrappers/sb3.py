"""Vector environments for Stable-Baselines3, which has a vector interface of its own (DESIGN 9)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from numpy.typing import NDArray

from routing_gym.wrappers.features import VectorFeatureObservation
from routing_gym.wrappers.routers import as_sb3 as as_sb3

try:
    from stable_baselines3.common.vec_env import VecEnv, VecMonitor
except ImportError as error:
    raise ImportError(
        'this needs Stable-Baselines3: pip install "routing-gym[agents]"', name=error.name
    ) from error


class SB3VecEnv(VecEnv):
    """A Gymnasium vector environment with same-step autoreset, as Stable-Baselines3 wants it.

    All rows step in one call. Otherwise it is the equal of a `DummyVecEnv` of single environments, but that
    the info of a row is empty while its episode goes on. An ended row's is that of its last step, with
    `terminal_observation` and `TimeLimit.truncated`; the info of its reset is in `reset_infos`. MaskablePPO
    finds `action_masks`; VecMonitor and VecNormalize go on top.

    Attributes:
        vector_env: the Gymnasium vector environment.
    """

    def __init__(self, vector_env: VectorEnv[Any, Any, Any]) -> None:
        """Wrap a vector environment: this package's, under `VectorFeatureObservation` or not, or another.

        Raises:
            ValueError: another autoreset mode.
        """
        mode = vector_env.metadata.get("autoreset_mode")
        if mode is not AutoresetMode.SAME_STEP:
            raise ValueError(
                f"autoreset_mode = {mode}: Stable-Baselines3 needs SAME_STEP; pass "
                "autoreset_mode=gymnasium.vector.AutoresetMode.SAME_STEP to gym.make_vec"
            )
        self.vector_env = vector_env
        self._actions: Any = None
        super().__init__(
            vector_env.num_envs, vector_env.single_observation_space, vector_env.single_action_space
        )

    def reset(self) -> Any:
        """Reset all rows, with the seeds and options set before."""
        options = self._options[0]
        if any(each != options for each in self._options):
            raise ValueError("set_options: the rows of a vector environment share their options")
        seeds = None if None in self._seeds else self._seeds
        observation, infos = self.vector_env.reset(seed=seeds, options=options or None)  # type: ignore[arg-type]
        self.reset_infos = [_row_info(infos, row) for row in range(self.num_envs)]
        self._reset_seeds()
        self._reset_options()
        return observation

    def step_async(self, actions: NDArray[Any]) -> None:
        """Keep the actions for `step_wait`."""
        self._actions = actions

    def step_wait(self) -> tuple[Any, NDArray[np.float32], NDArray[np.bool_], list[dict[str, Any]]]:
        """Step all rows."""
        observation, rewards, terminated, truncated, batch = self.vector_env.step(self._actions)
        dones = terminated | truncated
        # To split what a batch holds into a thousand dicts would cost more than the step.
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        for row in np.flatnonzero(dones).tolist():
            infos[row] = {
                **_row_info(batch["final_info"], row),
                "TimeLimit.truncated": bool(truncated[row] and not terminated[row]),
                "terminal_observation": batch["final_obs"][row],
            }
            self.reset_infos[row] = _row_info(batch, row)
        return observation, rewards.astype(np.float32), dones, infos

    def close(self) -> None:
        """Close the vector environment."""
        self.vector_env.close()

    def action_masks(self) -> NDArray[np.bool_]:
        """Return which actions are valid, (rows, actions)."""
        return np.asarray(self.env_method("action_masks"))

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        """Return an attribute of the vector environment, or else of its single ones, once per row.

        Raises:
            AttributeError: there is none of that name.
        """
        holder = self._holder(attr_name)
        rows = self._get_indices(indices)
        if holder is None:
            every = self._single_envs("get_attr", attr_name)(attr_name)
            return [every[row] for row in rows]
        return [getattr(holder, attr_name) for _ in rows]

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        """Refuse: rows are no objects.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError(f"set_attr({attr_name!r}): the rows of a vector environment are no objects")

    def env_method(
        self, method_name: str, *method_args: Any, indices: Any = None, **method_kwargs: Any
    ) -> Any:
        """Return rows of what a method such as `action_masks` answers for all rows, or else for single ones.

        Raises:
            AttributeError: there is none of that name.
        """
        holder = self._holder(method_name)
        if holder is None:
            answer = self._single_envs("call", method_name)(method_name, *method_args, **method_kwargs)
        else:
            answer = getattr(holder, method_name)(*method_args, **method_kwargs)
        return [answer[row] for row in self._get_indices(indices)]

    def env_is_wrapped(self, wrapper_class: type[gym.Wrapper], indices: Any = None) -> list[bool]:
        """Return False for each row: wrappers of single environments cannot be around a row."""
        return [False for _ in self._get_indices(indices)]

    def get_images(self) -> list[Any]:
        """Return a frame per row."""
        return list(self.vector_env.render() or ())

    def _holder(self, name: str) -> Any:
        """Return the outermost wrapper, or the environment, that has an attribute; None where none has."""
        env: Any = self.vector_env
        while not hasattr(env, name):
            if env is env.unwrapped:
                return None
            env = env.env
        return env

    def _single_envs(self, verb: str, name: str) -> Any:
        """Return how a vector of single environments asks them all."""
        ask = getattr(self.vector_env.unwrapped, verb, None)
        if ask is None:
            raise AttributeError(f"{self.vector_env} has no attribute {name!r}")
        return ask


def make_sb3_env(
    env_id: str,
    rows: int,
    seed: int | None = None,
    features: bool = True,
    monitor: bool = True,
    reward_weights: bool = False,
    **kwargs: Any,
) -> VecEnv:
    """Make an environment for Stable-Baselines3.

    Args:
        env_id: such as `routing_gym/InferenceCluster-v0`.
        rows: episodes side by side.
        seed: row i is first reset with seed + i.
        features: whether to show features (see `VectorFeatureObservation`) or the fields as they are.
        monitor: whether to count episode returns and lengths, with a VecMonitor.
        reward_weights: whether features tell what is paid; see `VectorFeatureObservation`.
        kwargs: passed to `gym.make_vec`.

    Raises:
        ValueError: `reward_weights` without `features`, or of another environment than `InferenceCluster`.
    """
    if reward_weights and not features:
        raise ValueError("reward_weights = True: they are features; needs features = True")
    envs = gym.make_vec(env_id, num_envs=rows, autoreset_mode=AutoresetMode.SAME_STEP, **kwargs)
    venv: VecEnv = SB3VecEnv(VectorFeatureObservation(envs, reward_weights) if features else envs)
    if seed is not None:
        venv.seed(seed)
    return VecMonitor(venv) if monitor else venv


def _row_info(batch: Mapping[str, Any], row: int) -> dict[str, Any]:
    """Return what a batch of infos holds for a row, but for what its last episode ended with."""
    info: dict[str, Any] = {}
    for name, values in batch.items():
        is_mask = name.startswith("_") and name[1:] in batch
        mask = batch.get(f"_{name}")
        if is_mask or name in ("final_obs", "final_info") or (mask is not None and not mask[row]):
            continue
        value = _row_info(values, row) if isinstance(values, Mapping) else values[row]
        info[name] = value.item() if isinstance(value, np.generic) else value
    return info
