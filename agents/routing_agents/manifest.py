"""What a trained router is: its inputs, sizes, origin and scores, as its folder's manifest tells them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any, Literal, NamedTuple

from pydantic import Field, model_validator

import routing_gym.cloud_edge.features as cloud_edge_features
import routing_gym.cluster.features as cluster_features
from routing_agents.inference import Sizes
from routing_gym.cloud_edge.config import CloudEdgeConfig
from routing_gym.cluster.config import ClusterConfig
from routing_gym.cluster.distribution import ClusterDistribution
from routing_gym.common.config import FrozenModel, config_hash, validate

FamilyName = Literal["cluster", "cloud_edge"]
Conditions = ClusterConfig | ClusterDistribution | CloudEdgeConfig


class LearnedError(ValueError):
    """A trained router that cannot be saved, loaded or used here; the message says what differs."""


class Family(NamedTuple):
    """What routers of an environment family see.

    Attributes:
        environment: the id that they are trained on.
        observation: what of it the features read.
        context_features, element_features: their names, in order.
    """

    environment: str
    observation: Literal["router", "request"]
    context_features: tuple[str, ...]
    element_features: tuple[str, ...]


FAMILIES: dict[FamilyName, Family] = {
    "cluster": Family(
        "routing_gym/InferenceCluster-v0",
        "router",
        cluster_features.CONTEXT_FEATURES,
        cluster_features.REPLICA_FEATURES,
    ),
    "cloud_edge": Family(
        "routing_gym/CloudEdgeRequest-v0",
        "request",
        cloud_edge_features.CONTEXT_FEATURES,
        cloud_edge_features.PAIR_FEATURES,
    ),
}


class Manifest(FrozenModel):
    """What is written of a trained router beside its weights.

    Attributes:
        family: `cluster` or `cloud_edge`.
        environment: the id that it was trained on.
        observation: what it reads: `router`, a cluster router's own records, or `request`.
        network, hidden, elements, admission: see `routing_agents.inference.Sizes`.
        context_features, element_features: the names of its inputs, in order; the context of a router that
            is told what is paid ends with `REWARD_FEATURES` of `routing_gym.cluster.features`.
        config: of the conditions that it was trained on.
        config_hash: of that config, by `routing_gym.common.config.config_hash`.
        command: what trained it.
        training: how: algorithm, steps, seed, hyperparameters.
        scores: what it reached: a row for each set of conditions and seeds, a column for each metric.
        versions: of the packages that it was trained and saved with.
    """

    family: FamilyName
    environment: str
    observation: Literal["router", "request"]
    network: Literal["set", "mlp"]
    hidden: int = Field(ge=1)
    elements: int | None = Field(ge=1)
    admission: bool
    context_features: tuple[str, ...]
    element_features: tuple[str, ...]
    config: dict[str, Any]
    config_hash: str
    command: str
    training: dict[str, Any]
    scores: dict[str, dict[str, float | None]]
    versions: dict[str, str]

    @model_validator(mode="after")
    def _consistent(self) -> Manifest:
        if (self.elements is None) != (self.network == "set"):
            raise ValueError(f"elements = {self.elements}: an mlp needs a number; a set fits any, null")
        if self.admission and self.family != "cluster":
            raise ValueError("admission = True: only the cluster can reject")
        return self

    @classmethod
    def create(
        cls,
        config: Conditions,
        *,
        network: Literal["set", "mlp"],
        hidden: int,
        elements: int | None = None,
        reward_features: bool = False,
        command: str,
        training: Mapping[str, Any],
        scores: Mapping[str, Mapping[str, float | None]],
        packages: Sequence[str] = (),
    ) -> Manifest:
        """Describe a router that was trained on `config`; family, admission and features follow from it.

        Args:
            config: a condition, or a distribution of them.
            network: `set` or `mlp`.
            hidden: H.
            elements: N of an `mlp`.
            reward_features: whether it is told the weights of the reward.
            command: the command line.
            training: what JSON can hold.
            scores: rows of numbers.
            packages: whose versions count, beside those of `routing-gym` and NumPy.

        Raises:
            ConfigError: names each bad field, its value and what is allowed.
        """
        name: FamilyName = "cloud_edge" if isinstance(config, CloudEdgeConfig) else "cluster"
        family = FAMILIES[name]
        condition = config.base if isinstance(config, ClusterDistribution) else config
        described = {
            "family": name,
            "environment": family.environment,
            "observation": family.observation,
            "network": network,
            "hidden": hidden,
            "elements": elements,
            "admission": isinstance(condition, ClusterConfig) and condition.admission,
            "context_features": family.context_features
            + (cluster_features.REWARD_FEATURES if reward_features else ()),
            "element_features": family.element_features,
            "config": config.model_dump(mode="json"),
            "config_hash": config_hash(config),
            "command": command,
            "training": training,
            "scores": scores,
            "versions": {package: version(package) for package in ("routing-gym", "numpy", *packages)},
        }
        return validate(cls, described)

    @property
    def reward_features(self) -> bool:
        """Whether it is told the weights of the reward."""
        return not set(cluster_features.REWARD_FEATURES).isdisjoint(self.context_features)

    @property
    def due(self) -> Family:
        """What it should see in this version, as its family does."""
        family = FAMILIES[self.family]
        if self.family != "cluster" or not self.reward_features:
            return family
        return family._replace(context_features=family.context_features + cluster_features.REWARD_FEATURES)

    @property
    def sizes(self) -> Sizes:
        """What decides the shapes of the weights."""
        return Sizes(
            self.network,
            self.hidden,
            len(self.context_features),
            len(self.element_features),
            self.admission,
            self.elements,
        )
