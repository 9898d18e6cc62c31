"""Routers that draw at random. Their generator is their own, per row, never the environment's."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from routing_baselines.choice import nth_eligible
from routing_baselines.cluster.router import Bools, View, eligible_replicas
from routing_gym.policy import Policy

Words = NDArray[np.uint64]
_GAMMA = np.uint64(0x9E3779B97F4A7C15)


def splitmix64(state: Words) -> tuple[Words, Words]:
    """Advance SplitMix64 (Steele, Lea and Flood, 2014), element by element.

    Returns:
        The next state and the output.
    """
    state = state + _GAMMA
    z = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state, z ^ (z >> np.uint64(31))


def uniform(state: Words) -> tuple[Words, NDArray[np.float64]]:
    """Return the next state, and a number on [0, 1) made of the output's upper 53 bits."""
    state, word = splitmix64(state)
    return state, (word >> np.uint64(11)).astype(np.float64) * 2.0**-53


class RandomRouter(Policy):
    """Base of routers with a SplitMix64 state per row.

    Attributes:
        seed: of rows that were given no state by `initial_state`; row i gets seed + i.
    """

    family: ClassVar[str] = "cluster"

    def __init__(self, seed: int = 0) -> None:
        """Set the seed of rows without a state."""
        self.seed = seed

    def initial_state(self, seeds: Sequence[int]) -> Words:
        """Return the state of rows with these seeds, hashed: rows a step apart would share their draws."""
        return splitmix64(np.array([seed % 2**64 for seed in seeds], np.uint64))[1]

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
        shape = eligible.shape[:-1]
        if state is None:
            rows = int(np.prod(shape))
            state = self.initial_state([self.seed + row for row in range(rows)])
        words = np.asarray(state, np.uint64).reshape(shape)
        with np.errstate(over="ignore"):
            return self.draw(View(observation), eligible, words)

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
