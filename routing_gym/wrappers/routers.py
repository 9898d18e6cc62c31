"""Routers where a caller keeps no state for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from routing_gym.policy import Policy


class StatefulRouter(Policy):
    """A router that keeps its state itself; see `as_sb3`.

    Attributes:
        router: the router inside.
        family, role, acts_on, max_rows: the router's.
    """

    def __init__(self, router: Policy, seeds: Sequence[int] | None = None) -> None:
        """Keep the router; `seeds` are those of its own randomness, one per row (by default 0, 1, …)."""
        self.router = router
        vars(self).update(
            family=router.family, role=router.role, acts_on=router.acts_on, max_rows=router.max_rows
        )
        self._seeds = seeds
        self._state: Any = None
        self._rows: int | None = None

    def configure(self, configs: Sequence[Any]) -> None:
        """Pass on what an operator knows."""
        self.router.configure(configs)

    def attach(self, envs: Any) -> None:
        """Pass on the vector environment."""
        self.router.attach(envs)

    def predict(
        self,
        observation: Mapping[str, NDArray[Any]],
        state: Any = None,
        episode_start: Any = None,
        deterministic: bool = True,
        action_masks: NDArray[Any] | None = None,
    ) -> tuple[NDArray[np.int64], None]:
        """Choose actions, and return no state; one that is given is not used. See `Policy.predict`.

        Raises:
            ValueError: another number of rows than of seeds.
        """
        shape = next(iter(observation.values())).shape[:-1]
        rows = int(np.prod(shape, dtype=np.int64))
        if rows != self._rows:
            seeds = range(rows) if self._seeds is None else self._seeds
            if len(seeds) != rows:
                raise ValueError(f"seeds has {len(seeds)} entries; there are {rows} rows")
            self._state, self._rows = self.router.initial_state(seeds), rows
        actions, self._state = self.router.predict(
            observation, self._state, episode_start, deterministic, action_masks
        )
        return actions, None


def as_sb3(
    router: Policy, configs: Sequence[Any] | None = None, seeds: Sequence[int] | None = None
) -> StatefulRouter:
    """Return a router with its state kept inside, for `evaluate_policy`, which may drop it (DESIGN 9).

    A row's state starts anew with each episode; a random router's generator runs on.

    Args:
        router: any router that plays the environment's raw observations, such as `make_policy` makes.
        configs: each row's condition, for what an operator knows: `envs.unwrapped.configs`.
        seeds: of the router's own randomness, one per row; by default 0, 1, ….
    """
    if configs is not None:
        router.configure(configs)
    return StatefulRouter(router, seeds)
