"""The simple policies that the source compares with, "CEMA-Router", section V-B (DESIGN 5).

They play whole batches, and as well one request at a time: a request observation is a batch of one.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from routing_baselines.choice import Bools, lowest, nth_eligible
from routing_gym.policy import Policy

Choices = NDArray[np.int64]
Floats = NDArray[np.float64]


class Slots:
    """The requests that an observation shows, R_max slots of a batch or one of a request observation.

    Attributes:
        active: which slots hold a request, (…, R).
        legal: which destinations each may go to, (…, R, M).
    """

    def __init__(self, observation: Mapping[str, NDArray[Any]]) -> None:
        """Wrap an observation, with any leading axes; other fields are read when they are asked for."""
        self._observation = observation
        self._alone = "provisional_load_s" in observation
        self.active = np.asarray(observation["remaining" if self._alone else "active"]) > 0
        self.legal = self.pairs("legal") > 0

    def pairs(self, name: str) -> Floats:
        """Return a field of pairs in float64, (…, R, M)."""
        width = np.shape(self._observation["backlog_s"])[-1]
        return np.asarray(self._observation[name], np.float64).reshape(*self.active.shape, width)

    def destinations(self, name: str) -> Floats:
        """Return a field of destinations in float64, (…, M)."""
        return np.asarray(self._observation[name], np.float64)

    def actions(self, choices: Choices) -> Choices:
        """Return choices (…, R) as the environment takes them: (…,) of a request observation."""
        return choices[..., 0] if self._alone else choices


class StatelessRouter(Policy):
    """A router whose choices depend on the current observation alone."""

    family: ClassVar[str] = "cloud_edge"
    acts_on: ClassVar[Any] = "batch"

    def predict(
        self,
        observation: Mapping[str, NDArray[Any]],
        state: Any = None,
        episode_start: Any = None,
        deterministic: bool = True,
        action_masks: NDArray[Any] | None = None,
    ) -> tuple[Choices, Any]:
        """Choose destinations (…, R_max), or (…,) of a request observation; inactive slots get 0.

        See `Policy.predict`. `action_masks` is not needed: the observation says which pairs are legal.
        """
        slots = Slots(observation)
        return slots.actions(self.route(slots)), state

    @abstractmethod
    def route(self, slots: Slots) -> Choices:
        """Return a legal destination per slot, (…, R); in inactive slots only 0 is legal."""


class RoundRobin(Policy):
    """E[k mod the size of E], E being the request's legal destinations; k counts requests and never wraps.

    Its state is the cursor k, int64 of the leading shape. It runs on from one window to the next.
    """

    family: ClassVar[str] = "cloud_edge"
    acts_on: ClassVar[Any] = "batch"

    def initial_state(self, seeds: Sequence[int]) -> Choices:
        """Return cursors at 0."""
        return np.zeros(len(seeds), np.int64)

    def predict(
        self,
        observation: Mapping[str, NDArray[Any]],
        state: Any = None,
        episode_start: Any = None,
        deterministic: bool = True,
        action_masks: NDArray[Any] | None = None,
    ) -> tuple[Choices, Choices]:
        """Choose each request's destination in turn; see `StatelessRouter.predict`."""
        slots = Slots(observation)
        shape = slots.active.shape[:-1]
        cursor = np.zeros(shape, np.int64) if state is None else np.asarray(state).reshape(shape)
        if episode_start is not None:
            cursor = np.where(episode_start, 0, cursor).reshape(shape)
        k = cursor[..., None] + np.arange(slots.active.shape[-1])  # active slots come first
        candidates = self.candidates(slots)
        choices = nth_eligible(candidates, k % candidates.sum(axis=-1))
        return slots.actions(choices), cursor + slots.active.sum(axis=-1)

    def candidates(self, slots: Slots) -> Bools:
        """Return E of each slot, (…, R, M); none is empty."""
        return slots.legal


class TierRoundRobin(RoundRobin):
    """Round robin within a tier: E is the legal destinations there, or all legal ones if there are none."""

    cloud: ClassVar[bool]

    def candidates(self, slots: Slots) -> Bools:
        """Return E of each slot, (…, R, M); none is empty."""
        inside = (slots.destinations("is_cloud") > 0) == self.cloud
        within = slots.legal & inside[..., None, :]
        return np.where(within.any(axis=-1, keepdims=True), within, slots.legal)


class CloudOnly(TierRoundRobin):
    """Round robin over the request's legal destinations in the cloud; over all legal ones if it has none."""

    cloud = True


class EdgeOnly(TierRoundRobin):
    """Round robin over the request's legal destinations at the edge; over all legal ones if it has none."""

    cloud = False


class LeastLoaded(StatelessRouter):
    """The fewest outstanding requests, counting those of this batch that it has just assigned."""

    def route(self, slots: Slots) -> Choices:
        """Return argmin of the outstanding count, request after request."""
        outstanding = slots.destinations("outstanding").copy()
        choices = np.zeros(slots.active.shape, np.int64)
        for slot in range(slots.active.shape[-1]):
            choice = lowest(outstanding, slots.legal[..., slot, :])
            choices[..., slot] = choice
            outstanding += np.arange(outstanding.shape[-1]) == choice[..., None]
        return choices
