"""Routers that draw at random."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from routing_baselines.choice import nth_eligible
from routing_baselines.cluster.router import Bools, View, eligible_replicas
from routing_baselines.splitmix import SeededPolicy, Words, uniform


class RandomRouter(SeededPolicy):
    """Base of the cluster's routers that draw at random.

    Attributes:
        seed: see `SeededPolicy`.
    """

    family: ClassVar[str] = "cluster"

    def predict(
        self,
        observation: Mapping[str, NDArray[Any]],
        state: Any = None,
        episode_start: Any = None,
        deterministic: bool = True,
        action_masks: NDArray[Any] | None = None,
    ) -> tuple[NDArray[np.int64], Words]:
        """Draw a replica per row; see `Policy.predict`. The generator runs on across episodes."""
        eligible = eligible_replicas(observation, action_masks)
        with np.errstate(over="ignore"):
            return self.draw(View(observation), eligible, self.words(state, eligible.shape[:-1]))

    @abstractmethod
    def draw(self, view: View, eligible: Bools, state: Words) -> tuple[NDArray[np.int64], Words]:
        """Return an action per row (…,) and the next state."""


class Random(RandomRouter):
    """Uniform over the eligible replicas."""

    def draw(self, view: View, eligible: Bools, state: Words) -> tuple[NDArray[np.int64], Words]:
        """Draw one replica."""
        state, u = uniform(state)
        return nth_eligible(eligible, (u * eligible.sum(axis=-1)).astype(np.int64)), state


class PowerOfTwo(RandomRouter):
    """The less loaded of two distinct eligible replicas drawn at random (Mitzenmacher, 2001)."""

    def draw(self, view: View, eligible: Bools, state: Words) -> tuple[NDArray[np.int64], Words]:
        """Draw two replicas and take the one with less outstanding; ties go to the lower index."""
        size = eligible.sum(axis=-1)
        state, u = uniform(state)
        state, v = uniform(state)
        first = (u * size).astype(np.int64)
        # The second is drawn from the size - 1 others; with a single eligible replica it is the first again.
        step = 1 + (v * (size - 1)).astype(np.int64)
        second = (first + step) % size
        low = nth_eligible(eligible, np.minimum(first, second))
        high = nth_eligible(eligible, np.maximum(first, second))
        outstanding = view.outstanding

        def load(replica: NDArray[np.int64]) -> NDArray[np.float64]:
            return np.take_along_axis(outstanding, replica[..., None], axis=-1)[..., 0]

        return np.where(load(high) < load(low), high, low), state
