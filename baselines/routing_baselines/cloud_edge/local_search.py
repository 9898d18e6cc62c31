"""Routers that search for a batch's best assignment, without and with a price on the backlog they leave."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from routing_baselines.cloud_edge.multistart import (
    Search,
    advance,
    begin,
    change_levels,
    make_search,
    polish,
)
from routing_baselines.cloud_edge.router import BatchRouter, default
from routing_gym.cloud_edge.config import CloudEdgeConfig
from routing_gym.cloud_edge.evaluator import BatchTables


class LocalSearch(BatchRouter):
    """Descends from one start per makespan cap by moves, swaps and chains of two moves, to the lowest J.

    No single move or swap improves what it returns. Where its bounds leave nothing to gain it stops early,
    and what it returns is optimal.

    Its diagnostics are `convergence`, (n, 2): after each start, and at the end, the seconds since the
    decision began and J of the best assignment so far.

    Attributes:
        caps: makespan caps.
        steps: subgradient steps that a cap's bound is worth.
    """

    section: ClassVar[str] = "local_search"

    def __init__(self, caps: int | None = None, steps: int | None = None) -> None:
        """Set the search; by default as shipped in `configs/routers/cloud_edge.yaml`.

        Raises:
            ValueError: no cap or no step.
        """
        self.caps = int(default(self.section, "caps") if caps is None else caps)
        self.steps = int(default(self.section, "steps") if steps is None else steps)
        for name in ("caps", "steps"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} = {getattr(self, name)}: must be at least 1")

    def assign(
        self, tables: BatchTables, random: np.uint64
    ) -> tuple[NDArray[np.int64], np.uint64, Mapping[str, Any]]:
        """Search for the batch's best assignment; see `BatchRouter.assign`."""
        begun = time.perf_counter()
        search = self._make_search(tables)
        convergence: list[tuple[float, float]] = []

        def note() -> None:
            convergence.append((time.perf_counter() - begun, search.value[1]))

        begin(search, self.steps)
        note()
        while advance(search):
            note()
        polish(search)
        note()
        while self._refine(search):
            note()
        return search.best, random, {"convergence": np.array(convergence)}

    def _make_search(self, tables: BatchTables) -> Search:
        return make_search(tables, self.caps)

    def _refine(self, search: Search) -> bool:
        """Improve a polished search; return whether there is reason to try again."""
        return False


class PricedSearch(LocalSearch):
    """Searches as `LocalSearch` does, on J + β · ω_T/(hi_T - lo_T) · Σ_d max(0, B_d + new_d - Δ).

    It pays for the backlog that it leaves to the next window. Where the bounds of T coincide it leaves that
    out, as J does T. J of the best assignment so far may rise, as it is the sum that falls.

    Attributes:
        price: β, what a second of backlog left on a destination costs, in seconds of completion time.
        levels: backlogs that it tries to bring each destination down to, as shares of its service time.
        windows_s: Δ of each row, s; `configure` takes over the environments'.
    """

    section: ClassVar[str] = "priced_search"

    def __init__(
        self,
        price: float | None = None,
        caps: int | None = None,
        steps: int | None = None,
        levels: Sequence[float] | None = None,
    ) -> None:
        """Set the search; by default as shipped in `configs/routers/cloud_edge.yaml`.

        Raises:
            ValueError: a negative price, no cap or no step, or a level that is not above 0 and at most 1.
        """
        super().__init__(caps, steps)
        self.price = float(default(self.section, "price") if price is None else price)
        if self.price < 0.0:
            raise ValueError(f"price = {self.price}: must not be negative")
        self.levels = np.array(default(self.section, "levels") if levels is None else levels, np.float64)
        if not ((self.levels > 0.0) & (self.levels <= 1.0)).all():
            raise ValueError(f"levels = {self.levels.tolist()}: each must be above 0 and at most 1")
        self.windows_s: Sequence[float] = [CloudEdgeConfig.create().window_s]

    def configure(self, configs: Sequence[CloudEdgeConfig]) -> None:
        """Take over each row's window."""
        self.windows_s = [config.window_s for config in configs]

    def _make_search(self, tables: BatchTables) -> Search:
        return make_search(tables, self.caps, self.windows_s[self.row % len(self.windows_s)], self.price)

    def _refine(self, search: Search) -> bool:
        total = search.plan.total[0]
        beyond = np.maximum(0.0, search.plan.destinations["backlog"] - total["window_s"])
        avoidable = search.value[0] - search.value[1] - search.rent * beyond.sum()
        return bool(avoidable > total["tolerance"]) and change_levels(search, self.levels)
