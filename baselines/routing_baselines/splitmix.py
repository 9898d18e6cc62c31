"""SplitMix64, the generator of routers that draw at random: theirs, per row, never the environment's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from routing_gym.policy import Policy

Words = NDArray[np.uint64]
GAMMA = np.uint64(0x9E3779B97F4A7C15)


def splitmix64(state: Words) -> tuple[Words, Words]:
    """Advance SplitMix64 (Steele, Lea and Flood, 2014), element by element.

    Returns:
        The next state and the output.
    """
    state = state + GAMMA
    z = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state, z ^ (z >> np.uint64(31))


def uniform(state: Words) -> tuple[Words, NDArray[np.float64]]:
    """Return the next state, and a number on [0, 1) made of the output's upper 53 bits."""
    state, word = splitmix64(state)
    return state, (word >> np.uint64(11)).astype(np.float64) * 2.0**-53


def seeded(seeds: Sequence[int]) -> Words:
    """Return the state of rows with these seeds, hashed: rows a step apart would share their draws."""
    return splitmix64(np.array([seed % 2**64 for seed in seeds], np.uint64))[1]


class SeededPolicy(Policy):
    """Base of routers with a SplitMix64 word per row.

    Attributes:
        seed: of rows that were given no state by `initial_state`; row i gets seed + i.
    """

    def __init__(self, seed: int = 0) -> None:
        """Set the seed of rows without a state."""
        self.seed = seed

    def initial_state(self, seeds: Sequence[int]) -> Words:
        """Return the state of rows with these seeds; see `seeded`."""
        return seeded(seeds)

    def words(self, state: Any, shape: tuple[int, ...]) -> Words:
        """Return the words of rows of this shape, which is that of `predict`'s leading axes."""
        if state is None:
            state = self.initial_state(range(self.seed, self.seed + int(np.prod(shape))))
        return np.asarray(state, np.uint64).reshape(shape)
