"""The router of batches that draws at random: what doing nothing is worth."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from routing_baselines.choice import nth_eligible
from routing_baselines.cloud_edge.documented import Choices, Slots
from routing_baselines.splitmix import GAMMA, SeededPolicy, Words, uniform


class Random(SeededPolicy):
    """Uniform over each request's legal destinations.

    Each request takes one output of its row's word.

    Attributes:
        seed: see `SeededPolicy`.
    """

    family: ClassVar[str] = "cloud_edge"
    acts_on: ClassVar[Any] = "batch"

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
        words = self.words(state, slots.active.shape[:-1])
        places = np.arange(slots.active.shape[-1], dtype=np.uint64)
        with np.errstate(over="ignore"):
            _, u = uniform(words[..., None] + GAMMA * places)  # active slots come first
            following = words + GAMMA * slots.active.sum(axis=-1, dtype=np.uint64)
        choices = nth_eligible(slots.legal, (u * slots.legal.sum(axis=-1)).astype(np.int64))
        return slots.actions(choices), following
