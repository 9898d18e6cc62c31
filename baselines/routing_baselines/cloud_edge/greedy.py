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
    """

    def assign(
        self, tables: BatchTables, random: np.uint64
    ) -> tuple[NDArray[np.int64], np.uint64, Mapping[str, Any]]:
        """Assign the batch; see `BatchRouter.assign`."""
        length = tables.infer.mean(axis=1, where=tables.legal)
        plan = make_plan(tables, term_bounds(tables), np.inf)
        _fill(plan, np.argsort(-length, kind="stable"))
        return np.ascontiguousarray(plan.requests["destination"]), random, {}


@njit
def _fill(plan: Plan, order: NDArray[np.int64]) -> None:
    for r in order:
        best, choice = np.inf, NONE
        for k in range(plan.requests[r].options):
            growth = addition(plan, r, plan.options[r, k])
            if growth < best:
                best, choice = growth, plan.options[r, k]
        place(plan, r, choice)
