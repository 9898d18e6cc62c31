"""Seeds: one generator per environment, and one stream per kind of exogenous draw (DESIGN 3 and 4)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from gymnasium.utils import seeding

Seeds = int | Sequence[int | None] | None


class EpisodeStreams:
    """The independent PCG64 generators of one episode, by number; made when they are first used.

    Each kind of draw has its own stream, so that changing how much one kind consumes leaves the others as
    they are, and every router meets the same workload. Stream k is that of `SeedSequence(e).spawn(…)[k]`.
    """

    def __init__(self, np_random: np.random.Generator) -> None:
        """Draw the episode's seed e from `np_random`, which advances by one draw."""
        self._entropy = int(np_random.integers(2**63))
        self._made: dict[int, np.random.Generator] = {}

    def __getitem__(self, stream: int) -> np.random.Generator:
        """Return the generator of a stream."""
        if stream not in self._made:
            child = np.random.SeedSequence(self._entropy, spawn_key=(stream,))
            self._made[stream] = np.random.Generator(np.random.PCG64(child))
        return self._made[stream]


def spread_seeds(seed: Seeds, rows: int) -> list[int | None]:
    """Return one seed per row: row i of an integer seed s gets s + i (Gymnasium's convention).

    Raises:
        ValueError: a list whose length is not the number of rows.
    """
    if seed is None:
        return [None] * rows
    if isinstance(seed, (int, np.integer)):
        return [int(seed) + row for row in range(rows)]
    seeds = list(seed)
    if len(seeds) != rows:
        raise ValueError(f"seed has {len(seeds)} entries; there are {rows} rows, give one for each")
    return seeds


def new_generator(seed: int | None) -> np.random.Generator:
    """Return the generator that Gymnasium makes for `reset(seed=seed)`."""
    return seeding.np_random(seed)[0]
