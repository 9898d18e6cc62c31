"""The four routers of the source, "Adaptive Routing in a Tiny Inference Cluster", sections 3 and 4."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from routing_baselines.choice import nth_eligible
from routing_baselines.cluster.router import (
    Bools,
    StatelessRouter,
    View,
    default,
    eligible_replicas,
    lowest,
)
from routing_gym.common.config import packaged
from routing_gym.policy import Policy


class RoundRobin(Policy):
    """E[k mod the size of E]; the cursor k counts decisions and never wraps.

    Its state is k, int64 of the batch's shape.
    """

    family: ClassVar[str] = "cluster"

    def initial_state(self, seeds: Sequence[int]) -> NDArray[np.int64]:
        """Return cursors at 0."""
        return np.zeros(len(seeds), np.int64)

    def predict(
        self,
        observation: Mapping[str, NDArray[Any]],
        state: Any = None,
        episode_start: Any = None,
        deterministic: bool = True,
        action_masks: NDArray[Any] | None = None,
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Choose the next replica in turn; see `Policy.predict`."""
        eligible = eligible_replicas(observation, action_masks)
        shape = eligible.shape[:-1]
        cursor = np.zeros(shape, np.int64) if state is None else np.asarray(state).reshape(shape)
        if episode_start is not None:
            cursor = np.where(episode_start, 0, cursor).reshape(shape)
        return nth_eligible(eligible, cursor % eligible.sum(axis=-1)), cursor + 1


class LeastQueue(StatelessRouter):
    """The smallest outstanding load, waiting and in flight together."""

    def route(self, view: View, eligible: Bools) -> NDArray[np.int64]:
        """Return argmin o."""
        return lowest(view.outstanding, eligible)


class LatencyAware(StatelessRouter):
    """The smallest proxy of completion cost: each request takes an average service time."""

    def route(self, view: View, eligible: Bools) -> NDArray[np.int64]:
        """Return argmin (o + 1) · ŝ."""
        return lowest((view.outstanding + 1.0) * view.service_ewma, eligible)


class Adaptive(StatelessRouter):
    """A small UCB-inspired heuristic: recent reward, exploration, and congestion avoidance.

    Attributes:
        c: exploration weight; the source's optimisation check kept 0.35.
        ceiling_ms: L, which makes the congestion term dimensionless; the environment's own is taken over
            by `configure`.
    """

    def __init__(self, c: float | None = None, ceiling_ms: float | None = None) -> None:
        """Set the exploration weight and the service ceiling; by default those of the shipped configs.

        Raises:
            ValueError: a negative weight, or a ceiling that is not positive.
        """
        c = default("adaptive", "c") if c is None else c
        ceiling_ms = (
            packaged("cluster", "default")["service_ceiling_ms"] if ceiling_ms is None else ceiling_ms
        )
        if c < 0:
            raise ValueError(f"c = {c}: must not be negative")
        if ceiling_ms <= 0:
            raise ValueError(f"ceiling_ms = {ceiling_ms}: must be above 0")
        self.c = c
        self.ceiling_ms: Any = ceiling_ms

    def configure(self, configs: Sequence[Any]) -> None:
        """Take over each row's service ceiling."""
        self.ceiling_ms = per_row([config.service_ceiling_ms for config in configs])

    def route(self, view: View, eligible: Bools) -> NDArray[np.int64]:
        """Return argmax r̄ + c · sqrt(ln max(T, 1) / max(n, 1)) - o · ŝ / L, with T = Σ n."""
        completed = view.completed
        total = completed.sum(axis=-1, keepdims=True)
        bonus = self.c * np.sqrt(np.log(np.maximum(total, 1.0)) / np.maximum(completed, 1.0))
        congestion = view.outstanding * view.service_ewma / self.ceiling_ms
        return lowest(-(view.reward_ewma + bonus - congestion), eligible)


def per_row(values: Sequence[float]) -> float | NDArray[np.float64]:
    """Return one number where all rows agree, otherwise a column (rows, 1)."""
    column = np.array(values, np.float64)
    return float(column[0]) if (column == column[0]).all() else column[:, None]
