"""Batches, prices and plain sums that the tests of local search share."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from hypothesis import strategies as st

from routing_baselines.cloud_edge.plan import NONE, Plan, make_plan, settle
from routing_gym.cloud_edge.evaluator import BatchEvaluator, BatchTables
from tests.cloud_edge import cases


class Priced(NamedTuple):
    """Prices of times, and the plain sum of J and what they make of an assignment."""

    evaluator: BatchEvaluator
    makespan: float  # a factor of what T costs in J
    overshoot: float
    caps: np.ndarray
    rents: np.ndarray
    window_s: float

    def cost(self, assignment: np.ndarray) -> float:
        evaluator = self.evaluator
        terms = evaluator.terms(assignment)
        width = evaluator.bounds[3, 1] - evaluator.bounds[3, 0]
        rate = evaluator.tables.weights[3] / width if width > 0.0 else 0.0
        cost = float(evaluator.objective(assignment)) + (self.makespan - 1.0) * rate * float(terms[3])
        finish = evaluator.finish_parts(assignment).finish
        for d in range(len(self.caps)):
            last = finish[assignment == d].max(initial=0.0)
            cost += self.overshoot * max(0.0, last - self.caps[d])
        left = np.maximum(0.0, evaluator.tables.backlog + evaluator.new_work(assignment) - self.window_s)
        return cost + float(self.rents @ left)

    def plan(self, assignment: np.ndarray) -> Plan:
        """Return the settled plan."""
        plan = make_plan(self.evaluator.tables, self.evaluator.bounds, self.window_s)
        plan.requests["destination"] = assignment
        plan.destinations["cap"], plan.destinations["rent"] = self.caps, self.rents
        plan.total["makespan_price"] *= self.makespan
        plan.total["overshoot_price"] = self.overshoot
        settle(plan)
        return plan


class Start(NamedTuple):
    priced: Priced
    assignment: np.ndarray
    rng: np.random.Generator


@st.composite
def starts(draw: st.DrawFn) -> Start:
    """Batches with ties or without, an assignment, and prices such as a search sets, or none beside J's."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    if draw(st.booleans()):
        case = draw(cases.batches(1, 8, 5))
    else:
        case = cases.random_batch(rng, draw(st.integers(1, 9)), draw(st.integers(1, 5)))
    tables = cases.compiled(case.tables)
    width = len(tables.backlog)
    shape = draw(st.sampled_from(["J", "capped", "rented", "both"]))
    priced = Priced(
        BatchEvaluator(tables),
        makespan=0.0 if shape == "capped" else 1.0,
        overshoot=rng.exponential(1.0) if shape in ("capped", "both") else 0.0,
        caps=rng.exponential(2.0, width),
        rents=rng.exponential(1.0, width) * (rng.random(width) < 0.7) * (shape in ("rented", "both")),
        window_s=float(rng.exponential(1.0)),
    )
    return Start(priced, np.array(case.assignments[0]), rng)


def changes(tables: BatchTables, assignment: np.ndarray, chains: bool) -> Iterator[tuple[int, int, int, int]]:
    """Yield all moves, swaps and (if asked) chains of two moves, as `change` takes them."""
    count, width = tables.legal.shape
    for r, b in itertools.product(range(count), range(width)):
        if b == assignment[r] or not tables.legal[r, b]:
            continue
        yield r, b, NONE, NONE
        for s in np.flatnonzero(assignment == b):
            for c in range(width):
                if c != b and tables.legal[s, c] and (chains or c == assignment[r]):
                    yield r, b, int(s), c


def changed(assignment: np.ndarray, r: int, b: int, s: int, c: int) -> np.ndarray:
    after = assignment.copy()
    after[r] = b
    if s != NONE:
        after[s] = c
    return after


def every_assignment(tables: BatchTables) -> np.ndarray:
    """Return all legal assignments (n, R)."""
    return np.array(list(itertools.product(*(np.flatnonzero(legal) for legal in tables.legal))))


def rented(tables: BatchTables, price: float, window_s: float) -> Priced:
    """Return J and what `PricedSearch` pays beside it."""
    evaluator = BatchEvaluator(tables)
    width = evaluator.bounds[3, 1] - evaluator.bounds[3, 0]
    rent = price * tables.weights[3] / width if width > 0.0 else 0.0
    ones = np.ones(len(tables.backlog))
    return Priced(evaluator, 1.0, 0.0, np.inf * ones, rent * ones, window_s)


def crowded(rng: np.random.Generator, count: int, width: int, legal: float = 0.9) -> BatchTables:
    """Return a batch with backlog and low speed-ups, in which queues decide."""
    loss, cost, energy, infer, transfer = rng.random((5, count, width))
    return BatchTables(
        loss,
        cost,
        energy,
        infer + 0.1,
        0.1 * transfer,
        legal=cases.random_legality(rng, count, width, legal),
        backlog=rng.exponential(1.0, width) * (rng.random(width) < 0.5),
        speedup=1.0 + 2.0 * rng.random(width),
        weights=rng.dirichlet(np.ones(4)),
    )
