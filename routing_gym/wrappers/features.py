"""Environments that show features instead of raw fields: one flat, bounded box for trainers of networks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.utils import RecordConstructorArgs
from gymnasium.vector import VectorEnv, VectorWrapper
from numpy.typing import NDArray

from routing_gym.cloud_edge import features as cloud_edge
from routing_gym.cluster import features as cluster
from routing_gym.cluster.workload import make_workload
from routing_gym.common.features import flatten
from routing_gym.common.vector import RoutingVectorEnv

Floats = NDArray[np.float32]


class _Extractor:
    """Makes features of the observations of one environment.

    Attributes:
        element_count: N replicas, or M destinations.
        element_features: what each of them shows.
        context_features: what else there is.
        space: of one row's flat features.
    """

    def __init__(self, space: gym.Space[Any], configs: Sequence[Any], reward_weights: bool) -> None:
        """Find out whose observations these are, and what an operator knows of each row's condition.

        Raises:
            TypeError: neither family's.
            ValueError: `reward_weights` where rewards have none.
        """
        fields = space.spaces if isinstance(space, spaces.Dict) else {}
        self._demand: NDArray[np.float64] | None = None
        self._rewards: Floats | None = None
        self._paid: list[Any] = [None] * len(configs)  # whose weights `_rewards` are
        if "speed_ewma" in fields:
            self.element_features, self.context_features = cluster.REPLICA_FEATURES, cluster.CONTEXT_FEATURES
            self._demand = _demand_coefficients(configs)
            elements = fields["speed_ewma"].shape
        elif "provisional_load_s" in fields:
            self.element_features = cloud_edge.PAIR_FEATURES
            self.context_features = cloud_edge.CONTEXT_FEATURES
            elements = fields["provisional_load_s"].shape
        else:
            raise TypeError(
                "features are made of the observations of InferenceCluster and CloudEdgeRequest; this "
                f"environment's are {space}"
            )
        if reward_weights:
            if self._demand is None:
                raise ValueError(
                    "reward_weights = True: only InferenceCluster pays by weights of its reward terms; this "
                    "environment's features already hold what it pays by"
                )
            self.context_features += cluster.REWARD_FEATURES
            self._rewards = np.zeros((len(configs), len(cluster.REWARD_FEATURES)), np.float32)
        assert elements is not None
        self.element_count = elements[0]
        width = len(self.context_features) + self.element_count * len(self.element_features)
        self.space = spaces.Box(-1.0, 1.0, (width,), np.float32)

    def __call__(self, observation: Mapping[str, NDArray[Any]], rows: Any = slice(None)) -> Floats:
        """Return the flat features of these rows' observations (…, G + N·F)."""
        if self._demand is None:
            return flatten(cloud_edge.request_features(observation))
        base, per_prompt, per_output = self._demand[:, rows]
        reward = None if self._rewards is None else self._rewards[rows]
        return flatten(cluster.cluster_features(observation, (base, per_prompt, per_output), reward))

    def update(self, configs: Sequence[Any]) -> None:
        """Take over the reward weights of each row's present condition."""
        assert self._rewards is not None
        for row, (config, known) in enumerate(zip(configs, self._paid, strict=True)):
            if config is not known:
                self._rewards[row] = cluster.reward_features(config.reward_weights, config.deadline_ms)
        self._paid = list(configs)


def _demand_coefficients(configs: Sequence[Any]) -> NDArray[np.float64]:
    """Return (a, b, c) of each row, (3, rows); a distribution of conditions varies neither of them."""
    different = {id(config): config for config in configs}
    known = {key: make_workload(config).demand for key, config in different.items()}
    return np.array([known[id(config)] for config in configs]).T


class FeatureObservation(gym.ObservationWrapper[Floats, Any, Any], RecordConstructorArgs):
    """Shows the features of `InferenceCluster` or `CloudEdgeRequest` as one flat box.

    `Box(-1, 1, (G + N·F,), float32)`: first the context, then the features of each replica or destination in
    the order of the actions. See `cluster.features` and `cloud_edge.features` for what they are, and
    `common.features.unflatten` for taking them apart. Masks, rewards and infos are the environment's own.

    Attributes:
        element_count: N replicas, or M destinations.
        element_features: names of the F features of each.
        context_features: names of the G others.
    """

    def __init__(self, env: gym.Env[Any, Any], reward_weights: bool = False) -> None:
        """Wrap an environment.

        Args:
            env: the environment.
            reward_weights: whether the context ends with what the episode's reward pays for,
                `cluster.features.REWARD_FEATURES`, so that one router can serve several rewards.

        Raises:
            TypeError: its observations are of neither kind.
            ValueError: `reward_weights` of another environment than `InferenceCluster`.
        """
        RecordConstructorArgs.__init__(self, reward_weights=reward_weights)
        gym.ObservationWrapper.__init__(self, env)
        configs = [env.get_wrapper_attr("config")]
        self._extract = extract = _Extractor(env.observation_space, configs, reward_weights)
        self._reward_weights = reward_weights
        self.observation_space = extract.space
        self.element_count = extract.element_count
        self.element_features, self.context_features = extract.element_features, extract.context_features

    def observation(self, observation: Mapping[str, NDArray[Any]]) -> Floats:
        """Return the features of an observation."""
        if self._reward_weights:
            self._extract.update([self.env.get_wrapper_attr("config")])
        return self._extract(observation, 0)

    def action_masks(self) -> NDArray[np.bool_]:
        """Return the mask of valid actions, flat bool, as MaskablePPO asks for it."""
        return self.env.get_wrapper_attr("action_masks")()


class VectorFeatureObservation(VectorWrapper, RecordConstructorArgs):
    """`FeatureObservation` of a vector environment, in every autoreset mode; `final_obs` holds features too.

    Attributes:
        element_count: N replicas, or M destinations.
        element_features: names of the F features of each.
        context_features: names of the G others.
    """

    def __init__(self, env: VectorEnv[Any, Any, Any], reward_weights: bool = False) -> None:
        """Wrap a vector environment of this package.

        Args:
            env: the environment.
            reward_weights: see `FeatureObservation`; each row shows its own episode's.

        Raises:
            TypeError: its observations are of neither kind, or it is a vector of single environments.
            ValueError: `reward_weights` of another environment than `InferenceCluster`.
        """
        RecordConstructorArgs.__init__(self, reward_weights=reward_weights)
        VectorWrapper.__init__(self, env)
        inner = env.unwrapped
        if not isinstance(inner, RoutingVectorEnv):
            raise TypeError(
                f"{inner} does not run its rows in one kernel; wrap each single environment in "
                "FeatureObservation instead"
            )
        self._extract = extract = _Extractor(env.single_observation_space, inner.configs, reward_weights)
        self._reward_weights = reward_weights
        self.single_observation_space = extract.space
        self.observation_space = gym.vector.utils.batch_space(extract.space, env.num_envs)
        self.element_count = extract.element_count
        self.element_features, self.context_features = extract.element_features, extract.context_features

    def reset(
        self, *, seed: Any = None, options: dict[str, Any] | None = None
    ) -> tuple[Floats, dict[str, Any]]:
        """Reset as the environment does, and return features."""
        observation, infos = self.env.reset(seed=seed, options=options)
        self._update()
        return self._extract(observation), infos

    def step(self, actions: Any) -> tuple[Floats, NDArray[Any], NDArray[Any], NDArray[Any], dict[str, Any]]:
        """Step as the environment does, and return features."""
        self._update()  # for final observations; a state may have been set since the last step
        observation, *outcome, infos = self.env.step(actions)
        if "final_obs" in infos:
            infos = {**infos, "final_obs": self._final(infos["final_obs"], infos["_final_obs"])}
        self._update()
        return self._extract(observation), *outcome, infos

    def _update(self) -> None:
        if self._reward_weights:
            self._extract.update(self.env.unwrapped.configs)  # type: ignore[attr-defined]

    def _final(self, observations: NDArray[Any], ended: NDArray[np.bool_]) -> NDArray[Any]:
        rows = np.flatnonzero(ended)
        last = [observations[row] for row in rows]
        features = self._extract({name: np.stack([each[name] for each in last]) for name in last[0]}, rows)
        final = np.full(len(observations), None, dtype=object)
        for row, flat in zip(rows, features, strict=True):
            final[row] = flat
        return final

    def action_masks(self) -> NDArray[np.bool_]:
        """Return the masks of valid actions, bool, flat in each row."""
        return self.env.action_masks()  # type: ignore[attr-defined]
