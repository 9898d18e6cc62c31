"""What the cluster's routers share: reading an observation, choosing among eligible replicas."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from routing_baselines.choice import Bools as Bools
from routing_baselines.choice import lowest as lowest
from routing_gym.common.config import packaged
from routing_gym.policy import Policy

Floats = NDArray[np.float64]


def default(router: str, parameter: str) -> float:
    """Return the shipped value of a router's parameter, from `configs/routers/cluster.yaml`."""
    return packaged("routers", "cluster")[router][parameter]


class View:
    """An observation in float64, field by field: `view.outstanding` has shape (…, N)."""

    def __init__(self, observation: Mapping[str, NDArray[Any]]) -> None:
        """Wrap an observation; fields are converted when they are read."""
        self._observation = observation

    def __getattr__(self, name: str) -> Floats:
        """Return a field as float64."""
        try:
            return np.asarray(self._observation[name], np.float64)
        except KeyError:
            raise AttributeError(f"the observation has no field {name!r}") from None


def eligible_replicas(observation: Mapping[str, NDArray[Any]], action_masks: NDArray[Any] | None) -> Bools:
    """Return E as a mask (…, N): the mask's replicas, or the observation's `eligible` ones.

    Where there is none, as in a closing observation, all are allowed: something must be returned.
    """
    eligible = np.asarray(observation["eligible"]) > 0
    if action_masks is not None:
        eligible = np.asarray(action_masks, bool)[..., : eligible.shape[-1]]
    none = ~eligible.any(axis=-1, keepdims=True)
    return eligible | none if none.any() else eligible


class StatelessRouter(Policy):
    """A router whose choice depends on the current observation alone."""

    family: ClassVar[str] = "cluster"

    def predict(
        self,
        observation: Mapping[str, NDArray[Any]],
        state: Any = None,
        episode_start: Any = None,
        deterministic: bool = True,
        action_masks: NDArray[Any] | None = None,
    ) -> tuple[NDArray[np.int64], Any]:
        """Choose a replica per row; see `Policy.predict`."""
        actions = self.route(View(observation), eligible_replicas(observation, action_masks))
        return np.asarray(actions, np.int64), state

    @abstractmethod
    def route(self, view: View, eligible: Bools) -> NDArray[np.int64]:
        """Return an action per row (…,), given which replicas are eligible (…, N)."""
