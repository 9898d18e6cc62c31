"""Multi-start local search for the assignment of a batch, with and without a price on what it leaves behind.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from routing_baselines.cloud_edge.router import BatchRouter, default
from routing_baselines.cloud_edge.search import (
    NONE,
    TOLERANCE,
    Plan,
    allow_all,
    descend,
    make_plan,
    makespan,
    settle,
    total_cost,
)
from routing_gym.cloud_edge.evaluator import BatchTables, Floats, term_bounds
from routing_gym.common.jit import njit

CAP = np.dtype([("after", "f8"), ("by", "f8"), ("bound", "f8")])

class Search(NamedTuple):
    plan: Plan
    caps: NDArray[Any]
    multipliers: Floats  # of each room's limit, per s of T_infer (K, M)
    best: NDArray[np.int64]  # (R,)
    value: Floats  # what is minimised, and J, of `best` (2,)
    prices: Floats


@njit
def lower_bound(plan: Plan, cap: float, target: float, steps: int, multipliers: Floats) -> Any:
    count, width = plan.pairs.shape
    now, slope = multipliers.copy(), np.empty(width)
    best, pace, failures = -np.inf, 1.0, 0
    for _ in range(steps):
        bound = plan.total[0].origin
        slope[:] = 0.0
        for r in range(count):
            least, choice = np.inf, NONE
            for d in range(width):
                pair=plan.pairs[r,d]
                if pair.direct <= cap:
                    value = pair.price + now[d] * pair.infer
                    if value < least:
                        least, choice = value, d
            if choice == NONE:
                return np.inf
            bound += least
            slope[choice] += plan.pairs[r, choice].infer
        square = 0.0
        for d in range(width):
            destination = plan.destinations[d]
            free = max(0.0, plan.total[0].window_s - destination.backlog)
            room = max(0.0, cap - destination.backlog - destination.nearest)
            if now[d] * destination.speedup < destination.rent:
                room = min(room, free)
            bound += destination.rent * max(0.0, destination.backlog + room - plan.total[0].window_s)
            room *= destination.speedup
            bound -= now[d] * room
            slope[d] -= room
            if now[d] <= 0.0 and slope[d] < 0.0:
                slope[d] = 0.0
            square += slope[d] * slope[d]
        if bound > best:
            best, failures = bound, 0
            multipliers[:] = now
        else:
            failures += 1
            if failures == 2:
                pace, failures = 0.5 * pace, 0
        if square == 0.0 or bound >= target:
            break
        for d in range(width):
            now[d] = max(0.0, now[d] + pace * (target - bound) / square * slope[d])
    return best


@njit
def _remember(search: Search) -> None:
    plan = search.plan
    value = total_cost(plan)
    if value < search.value[0] - TOLERANCE:
        search.value[0] = search.value[1] = value
        for r in range(len(plan.requests)):
            search.best[r] = plan.requests[r].destination
        for d in range(len(plan.destinations)):
            search.value[1] -= plan.destinations[d].charge

@njit
def recall(search):
    for r in range(len(search.plan.requests)):
        search.plan.requests[r].destination = search.best[r]

@njit
def price_as(plan, makespan_price, overshoot_price, cap, rent):
    plan.total[0].makespan_price = makespan_price
    plan.total[0].overshoot_price = overshoot_price
    for d in range(len(plan.destinations)):
        plan.destinations[d].cap = cap
        plan.destinations[d].rent = rent

@njit
def _begin(search: Search, steps: int, price: float) -> None:
    plan = search.plan
    count, width = plan.pairs.shape
    tau = plan.total[0].makespan_price
    rent = price * tau
    search.prices[0], search.prices[1] = tau, rent
    search.value[:] = np.inf
    search.caps["bound"][:] = np.inf
    price_as(plan, tau, 0.0, np.inf, rent)
    earliest, cheapest = 0.0, plan.total[0].origin
    for r in range(count):
        least = direct = np.inf
        for d in range(width):
            if plan.pairs[r, d].price < least:
                least = plan.pairs[r, d].price
                plan.requests[r].destination = d
            direct = min(direct, plan.pairs[r, d].direct)
        cheapest += least
        earliest = max(earliest, direct)
    for d in range(width):
        cheapest += rent * max(0.0, plan.destinations[d].backlog - plan.total[0].window_s)
    settle(plan)
    latest = makespan(plan)
    descend(plan, False)
    _remember(search)
    if tau <= 0.0:
        return
    known = search.value[0]
    latest = min(latest, (known - cheapest) / tau)
    multipliers = np.zeros(width)
    caps = len(search.caps)
    for k in range(caps - 1, -1, -1):
        cap = search.caps[k]
        cap.by = earliest + (latest - earliest) * (k + 1) / caps
        cap.after = earliest + (latest - earliest) * k / caps
        cap.bound = lower_bound(plan, cap.by, known - tau * cap.after, steps, multipliers)
        search.multipliers[k] = multipliers


@njit
def _advance(search: Search) -> bool:
    plan = search.plan
    known = search.value[0]
    tau, rent = search.prices
    chosen, least = NONE, np.inf
    for k in range(len(search.caps)):
        cap = search.caps[k]
        if cap.bound + tau * cap.after < known - TOLERANCE and cap.bound + tau * cap.by < least:
            chosen, least = k, cap.bound + tau * cap.by
    if chosen == NONE:
        return False
    cap = search.caps[chosen]
    slack = known - cap.bound - tau * cap.after
    cap.bound = np.inf
    count, width = plan.pairs.shape
    for r in range(count):
        request = plan.requests[r]
        best = np.inf
        for d in range(width):
            pair = plan.pairs[r, d]
            if pair.direct <= cap.by:
                value = pair.price + search.multipliers[chosen, d] * pair.infer
                if value < best:
                    best, request.destination = value, d
        request.options = 0
        for d in range(width):
            pair = plan.pairs[r, d]
            if pair.direct <= cap.by and pair.price + search.multipliers[chosen, d] * pair.infer <= best + slack:
                plan.options[r, request.options] = d
                request.options += 1
    price_as(plan, 0.0, tau, cap.by, rent)
    descend(plan, True)
    price_as(plan, tau, 0.0, np.inf, rent)
    descend(plan, True)
    _remember(search)
    return True

@njit
def _polish(search: Search) -> None:
    recall(search)
    allow_all(search.plan)
    descend(search.plan, True)
    _remember(search)


@njit
def _shake(search: Search, modes: Floats, ejecting: bool, steep: float, only: bool) -> bool:
    plan = search.plan
    before = search.value[0]
    tau, rent = search.prices
    total = plan.total[0]
    for d in range(len(plan.destinations)):
        destination = plan.destinations[d]
        for mode in modes:
            recall(search)
            settle(plan)
            if mode < 0.0:
                destination.rent = 0.0
            else:
                if destination.count == 0 or (only and destination.charge <= destination.rent * max(0.0, destination.backlog - total.window_s)+1e-12):
                    continue
                total.overshoot_price = steep * (tau + rent)
                destination.cap = destination.finish - 1e-9 - mode * (destination.finish - destination.backlog)
            descend(plan, False)
            price_as(plan, tau, 0.0, np.inf, rent)
            descend(plan, ejecting)
            _remember(search)
    return search.value[0] < before


class LocalSearch(BatchRouter):
    """x."""

    def __init__(self, caps: int | None = None, steps: int | None = None, price=0.0, modes=(), ejecting=False, steep=1e3, only=False) -> None:
        self.caps = 64 if caps is None else caps
        self.steps = 20
        self.price = price
        self.modes = np.array(modes)
        self.ejecting = ejecting
        self.steep = steep;self.only=only

    def assign(
        self, tables: BatchTables, random: np.uint64
    ) -> tuple[NDArray[np.int64], np.uint64, Mapping[str, Any]]:
        """Search for the batch's best assignment; see `BatchRouter.assign`."""
        begun = time.perf_counter()
        count, width = tables.infer.shape
        search = Search(make_plan(tables, term_bounds(tables), 1.0), np.zeros(self.caps, CAP), np.zeros((self.caps, width)), np.zeros(count, np.int64), np.zeros(2), np.zeros(2))
        _begin(search, self.steps, self.price)
        convergence = [(time.perf_counter() - begun, search.value[1])]
        while _advance(search):
            convergence.append((time.perf_counter() - begun, search.value[1]))
        _polish(search)
        convergence.append((time.perf_counter() - begun, search.value[1]))
        while len(self.modes) and _shake(search, self.modes, self.ejecting, self.steep, self.only): pass
        return search.best, random, {"convergence": np.array(convergence)}
