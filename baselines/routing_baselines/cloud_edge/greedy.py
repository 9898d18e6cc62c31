"""Greedy assignment of a batch, longest request first (DESIGN 5)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from routing_baselines.cloud_edge.plan import NONE, Plan, make_plan, place
from routing_baselines.cloud_edge.router import BatchRouter
from routing_baselines.cloud_edge.search import addition
from routing_gym.cloud_edge.evaluator import BatchTables, term_bounds
from routing_gym.common.jit import njit


class Greedy(BatchRouter):
    """Sends each request where J grows least, given those assigned so far; the longest ones first.

    A request is as long as its mean T_infer over its legal destinations; equally long ones keep batch order.
    J of a part of the batch is by the bounds of the whole. Its T is exact: a request is served in batch
    order, so it delays those assigned before that came after it. Ties go to the lowest index.

    Two parameters leave something out, to tell what knowing it is worth.

    Attributes:
        alone: each request is assigned as if it were the whole batch: neither others' queueing nor their
            completion times nor the bounds that they widen count. Backlog does.
        queues: requests of the batch delay each other. If not, each is thought to be served at once behind
            the backlog, so that all they share is T, the latest of their completion times.
    """

    def __init__(self, alone: bool = False, queues: bool = True) -> None:
        """Set what counts; by default all of it.

        Raises:
            ValueError: a value that is neither true nor false.
        """
        for name, value in (("alone", alone), ("queues", queues)):
            if not isinstance(value, bool):
                raise ValueError(f"{name} = {value!r}: must be true or false")
        self.alone = alone
        self.queues = queues

    def assign(
        self, tables: BatchTables, random: np.uint64
    ) -> tuple[NDArray[np.int64], np.uint64, Mapping[str, Any]]:
        """Assign the batch; see `BatchRouter.assign`."""
        if self.alone:
            parts = [self._together(_one(tables, r)) for r in range(len(tables.infer))]
            return np.concatenate(parts), random, {}
        return self._together(tables), random, {}

    def _together(self, tables: BatchTables) -> NDArray[np.int64]:
        length = tables.infer.mean(axis=1, where=tables.legal)
        bounds = term_bounds(tables)
        if not self.queues:
            tables = tables._replace(speedup=np.full_like(tables.speedup, np.inf))
        plan = make_plan(tables, bounds, np.inf)
        _fill(plan, np.argsort(-length, kind="stable"))
        return np.ascontiguousarray(plan.requests["destination"])


def _one(tables: BatchTables, r: int) -> BatchTables:
    """Return the batch that holds one request only."""
    pairs = ("loss", "cost", "energy", "infer", "transfer", "legal")
    return tables._replace(**{name: getattr(tables, name)[r : r + 1] for name in pairs})


@njit
def _fill(plan: Plan, order: NDArray[np.int64]) -> None:
    for r in order:
        best, choice = np.inf, NONE
        for k in range(plan.requests[r].options):
            growth = addition(plan, r, plan.options[r, k])
            if growth < best:
                best, choice = growth, plan.options[r, k]
        place(plan, r, choice)
