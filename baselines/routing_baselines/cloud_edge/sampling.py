"""The router of batches that draws at random: what doing nothing is worth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from routing_baselines.choice import nth_eligible
from routing_baselines.cloud_edge.documented import Choices, Slots
from routing_baselines.splitmix import GAMMA, Words, seeded, uniform
from routing_gym.policy import Policy


class Random(Policy):
    """Uniform over each request's legal destinations.

    Its state is a SplitMix64 word per row, of which each request takes one output.

    Attributes:
        seed: of rows that were given no state by `initial_state`; row i gets seed + i.
    """

    family: ClassVar[str] = "cloud_edge"
    acts_on: ClassVar[Any] = "batch"

    def __init__(self, seed: int = 0) -> None:
        """Set the seed of rows without a state."""
        self.seed = seed

    def initial_state(self, seeds: Sequence[int]) -> Words:
        """Return the state of rows with these seeds; see `splitmix.seeded`."""
        return seeded(seeds)

    def predict(
        self,
        observation: Mapping[str, NDArray[Any]],
        state: Any = None,
        episode_start: Any = None,
        deterministic: bool = True,
        action_masks: NDArray[Any] | None = None,
    ) -> tuple[Choices, Words]:
        """Draw each request's destination; see `StatelessRouter.predict`. The generator runs on."""
        slots = Slots(observation)
        shape = slots.active.shape[:-1]
        if state is None:
            state = self.initial_state(range(self.seed, self.seed + int(np.prod(shape))))
        words = np.asarray(state, np.uint64).reshape(shape)
        places = np.arange(slots.active.shape[-1], dtype=np.uint64)
        with np.errstate(over="ignore"):
            _, u = uniform(words[..., None] + GAMMA * places)  # active slots come first
            following = words + GAMMA * slots.active.sum(axis=-1, dtype=np.uint64)
        choices = nth_eligible(slots.legal, (u * slots.legal.sum(axis=-1)).astype(np.int64))
        return slots.actions(choices), following
