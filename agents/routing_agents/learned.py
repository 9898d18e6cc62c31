"""Trained routers behind the router protocol: NumPy inference, no torch (DESIGN 5)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import yaml
from numpy.typing import NDArray

from routing_agents.folder import WEIGHTS, load
from routing_agents.inference import Forward, Words, drawn, likeliest
from routing_agents.manifest import LearnedError
from routing_agents.walk import Walk
from routing_baselines.cluster.work import LeastWork
from routing_baselines.splitmix import seeded
from routing_gym.cloud_edge.config import CloudEdgeConfig
from routing_gym.cloud_edge.features import request_features
from routing_gym.cluster.config import ClusterConfig
from routing_gym.cluster.features import cluster_features, reward_features
from routing_gym.common.config import packaged
from routing_gym.common.features import Features
from routing_gym.evaluation.results import file_hash
from routing_gym.policy import Policy
from routing_gym.rewards import cluster_weights

# Routers that ship, as FAMILY/NAME, and which of them serves what kind of condition.
SHIPPED = Path(__file__).parent / "weights"
DEFAULTS = SHIPPED / "defaults.yaml"


def shipped(family: str) -> list[str]:
    """Return the names of the trained routers that ship for a family."""
    return sorted(path.parent.name for path in (SHIPPED / family).glob("*/manifest.json"))


@cache
def default_names(family: str) -> dict[str, str]:
    """Return the name of the router that ships for each kind of condition of a family."""
    names: dict[str, str] = yaml.safe_load(DEFAULTS.read_text(encoding="utf-8"))[family]
    return names


class LearnedRouter(Policy):
    """Base of trained routers: features, a network's logits, and the best allowed action or a draw.

    Attributes:
        folder: where it was loaded from.
        manifest: what it is; see `routing_agents.manifest.Manifest`.
        seed: of the draws of rows that were given no state by `initial_state`; row i gets seed + i.
    """

    config_type: ClassVar[type]
    elements_field: ClassVar[str]
    mask_field: ClassVar[str]
    trained_by: ClassVar[str]

    def __init__(self, name: str | None = None, path: str | Path | None = None, seed: int = 0) -> None:
        """Load a router.

        Args:
            name: of one that ships. Where no path is given either, `configure` takes the one that was trained
                for such conditions.
            path: or a folder that `routing-gym train --export` wrote.
            seed: used where actions are drawn: `predict(…, deterministic=False)`.

        Raises:
            LearnedError: both are given, no router of the name ships, or the folder is damaged or does not
                fit; says what differs.
        """
        if name is not None and path is not None:
            raise LearnedError(f"name = {name!r} and path = {str(path)!r}: give one of the two")
        self.seed = seed
        self._by_default = name is None and path is None
        self._load(self._shipped(name or self._suited([])) if path is None else Path(path))

    def _load(self, folder: Path) -> None:
        self.folder = folder
        self.manifest, weights = load(folder)
        if self.manifest.family != self.family:
            raise LearnedError(
                f"{self.folder}: family = {self.manifest.family!r}; a {self.family}/learned needs "
                f"{self.family!r}"
            )
        self._weights = weights
        self._logits = Forward(self.manifest.sizes, weights)

    @classmethod
    def variant(cls, config: Any) -> str:
        """Return the name of the default router for a condition."""
        return cls._suited([config])

    @classmethod
    @abstractmethod
    def _suited(cls, configs: Sequence[Any]) -> str:
        """Return the name of the shipped router that was trained for conditions such as these."""

    @classmethod
    def _shipped(cls, name: str) -> Path:
        names = shipped(cls.family)
        if name not in names:
            raise LearnedError(
                f"name = {name!r}: no learned {cls.family} router of that name ships (there are "
                f"{', '.join(names) or 'none'}); train one with `routing-gym train {cls.trained_by} --export "
                "FOLDER`, and give path=FOLDER"
            )
        return SHIPPED / cls.family / name

    def initial_state(self, seeds: Sequence[int]) -> Words:
        """Return the random state of rows with these seeds, which only draws move."""
        return seeded(seeds)

    def fingerprint(self) -> dict[str, str]:
        """Return the SHA-256 of its weights."""
        return {"weights": file_hash(self.folder / WEIGHTS)}

    def configure(self, configs: Sequence[Any]) -> None:
        """Check that the router fits each row's condition; the default one is chosen to.

        Raises:
            LearnedError: it does not; says what differs.
        """
        if self._by_default:
            suited = self._shipped(self._suited(configs))
            if suited != self.folder:
                self._load(suited)
        for config in configs:
            if not isinstance(config, self.config_type):
                raise LearnedError(
                    f"{self.folder}: was trained for {self.manifest.environment}; this condition is a "
                    f"{type(config).__name__}"
                )
            self._check_elements(getattr(config, self.elements_field))

    def _check_elements(self, count: int) -> None:
        if self.manifest.elements not in (None, count):
            raise LearnedError(
                f"{self.folder}: its network is an mlp of elements = {self.manifest.elements}; the "
                f"environment has {self.elements_field} = {count}"
            )

    def predict(
        self,
        observation: Mapping[str, NDArray[Any]],
        state: Any = None,
        episode_start: Any = None,
        deterministic: bool = True,
        action_masks: NDArray[Any] | None = None,
    ) -> tuple[NDArray[np.int64], Any]:
        """Choose an action per row; see `Policy.predict`.

        Masks go before what the observation shows as eligible or legal, for the network's inputs too.

        Raises:
            LearnedError: its network is an mlp for another number of elements.
        """
        shown = np.asarray(observation[self.mask_field])
        count = shown.shape[-1]
        self._check_elements(count)
        masks = shown > 0 if action_masks is None else np.asarray(action_masks, bool)
        offered = masks[..., :count]
        logits = self._logits(self._features({**observation, self.mask_field: offered}))
        # Where none may be chosen, as in a closing observation, something must be returned.
        allowed = offered | ~offered.any(axis=-1, keepdims=True)
        if self.manifest.admission:
            reject = masks[..., count:] if masks.shape[-1] > count else np.ones_like(allowed[..., :1])
            allowed = np.concatenate([allowed, reject], axis=-1)
        if deterministic:
            return likeliest(logits, allowed), state
        shape = allowed.shape[:-1]
        if state is None:
            rows = int(np.prod(shape))
            state = self.initial_state([self.seed + row for row in range(rows)])
        return drawn(logits, allowed, np.asarray(state, np.uint64).reshape(shape))

    @abstractmethod
    def _features(self, observation: Mapping[str, NDArray[Any]]) -> Features:
        """Return what the network sees."""


class Learned(LearnedRouter):
    """A trained router of the inference cluster.

    It sees the router's own records, and the demand coefficients, which `configure` takes over as an operator
    knows them; so it does the weights of the reward, if the router was trained to be told them.
    """

    family: ClassVar[str] = "cluster"
    config_type: ClassVar[type] = ClusterConfig
    elements_field: ClassVar[str] = "replicas"
    mask_field: ClassVar[str] = "eligible"
    trained_by: ClassVar[str] = "cluster-ppo"

    def __init__(
        self,
        name: str | None = None,
        path: str | Path | None = None,
        seed: int = 0,
        reward: str | Sequence[float] | None = None,
    ) -> None:
        """Load a router.

        Args:
            name: see `LearnedRouter`.
            path: see there.
            seed: see there.
            reward: what is wanted of a router that was trained to be told so: the name of a weighting, or
                five weights. By default what the conditions given to `configure` pay; where a distribution
                draws `rewards`, configure anew with each episode.

        Raises:
            LearnedError: as `LearnedRouter`, or there is a `reward` and the router is told of none.
            ConfigError: `reward` is no weighting.
        """
        super().__init__(name, path, seed)
        self._operator = LeastWork()
        if reward is not None and not self.manifest.reward_features:
            raise LearnedError(
                f"{self.folder}: reward = {reward!r}: it was trained for one reward, not to be told another; "
                "name one with reward_features, such as weighted, or train one"
            )
        usual = ClusterConfig.create()
        self._wanted = None if reward is None else usual.replace(reward=reward).reward
        self._told = self._reward_features([usual])

    def configure(self, configs: Sequence[ClusterConfig]) -> None:
        """Check that the router fits each row's condition, and take over its demand coefficients and reward.

        Raises:
            LearnedError: it does not fit; says what differs.
        """
        super().configure(configs)
        for config in configs:
            if config.admission != self.manifest.admission:
                raise LearnedError(
                    f"{self.folder}: was trained with admission = {self.manifest.admission}; the environment "
                    f"has admission = {config.admission}"
                )
        self._operator.configure(configs)
        self._told = self._reward_features(configs)

    @classmethod
    def _suited(cls, configs: Sequence[ClusterConfig]) -> str:
        kind = "predicted"
        if any(config.admission for config in configs):
            kind = "admission"
        elif configs and all(config.prediction_sigma is None for config in configs):
            kind = "hidden"
        return default_names(cls.family)[kind]

    def _reward_features(self, configs: Sequence[ClusterConfig]) -> NDArray[np.float32] | None:
        if not self.manifest.reward_features:
            return None
        rewards = [config.reward if self._wanted is None else self._wanted for config in configs]
        weights = [cluster_weights(r, c.deadline_ms) for r, c in zip(rewards, configs, strict=True)]
        rows = reward_features(weights, [config.deadline_ms for config in configs])
        return rows[0] if (rows == rows[0]).all() else rows

    def _features(self, observation: Mapping[str, NDArray[Any]]) -> Features:
        return cluster_features(observation, self._operator.demand, self._told)


class CloudEdgeLearned(LearnedRouter):
    """A trained router of requests to cloud and edge destinations."""

    family: ClassVar[str] = "cloud_edge"
    config_type: ClassVar[type] = CloudEdgeConfig
    elements_field: ClassVar[str] = "destination_count"
    mask_field: ClassVar[str] = "legal"
    trained_by: ClassVar[str] = "cloud-edge-ppo"

    def _load(self, folder: Path) -> None:
        super()._load(folder)
        self._walk = Walk(self.manifest.sizes, self._weights) if self.manifest.network == "set" else None

    @classmethod
    def _suited(cls, configs: Sequence[CloudEdgeConfig]) -> str:
        """Go by the nodes; on a catalogue that no router was trained on, the first one plays."""
        nodes = {node.name for config in configs for node in config.catalogue.nodes}
        names = default_names(cls.family)
        for catalogue, name in names.items():
            known = {node["name"] for node in packaged(cls.family, catalogue)["catalogue"]["nodes"]}
            if nodes and nodes <= known:
                return name
        return next(iter(names.values()))

    def assign_batches(self, observation: Mapping[str, NDArray[Any]]) -> NDArray[np.int64] | None:
        """Return the choices for whole batches (…, R_max), in one compiled call; None if it is an mlp.

        See `routing_gym.evaluation.sequential.Sequential`.
        """
        return None if self._walk is None else self._walk(observation)

    def _features(self, observation: Mapping[str, NDArray[Any]]) -> Features:
        return request_features(observation)
