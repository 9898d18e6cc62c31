"""Multi-start descent over assignments of a batch: where to start, and when there is nothing left to find.

Both come from a relaxation. If nothing may finish after a cap C, then destination d has room for
S_d · (C - B_d - T_trans) of ΣT_infer. With a multiplier on each room the requests come apart: each takes the
destination that is cheapest for it, and the sum of that, less what the rooms are worth, bounds from below
every assignment that completes by C (Lagrange). A few subgradient steps make the bound nearly tight. It tells
which caps can hold nothing better than what is known, and under the others which pairs cannot be part of it;
and the cheapest destinations are a start that needs little repair.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from routing_baselines.cloud_edge.plan import NONE, Plan, allow_all, make_plan, place, settle, total_cost
from routing_baselines.cloud_edge.search import change, descend
from routing_gym.cloud_edge.evaluator import BatchTables, Floats, term_bounds
from routing_gym.common.jit import njit

NEGLIGIBLE = 1e-6
"""Room that is exceeded or left by less than this share of it is taken for full."""

CAP = np.dtype(
    [
        ("after", "f8"),  # stands for assignments that complete from here on, s
        ("by", "f8"),  # and by the cap itself, s
        (
            "bound",
            "f8",
        ),  # the least that these cost but for their makespan; infinite once it was started from
    ]
)


class Search(NamedTuple):
    """A search under way. Costs are J and what backlog beyond the window costs."""

    plan: Plan
    makespan_price: float  # what a second of T costs
    rent: float  # what a second of backlog left on a destination costs
    caps: NDArray[Any]  # CAP (K,), ascending
    multipliers: Floats  # what a second of T_infer costs on each destination under each cap (K, M)
    best: NDArray[np.int64]  # the best assignment known (R,)
    value: Floats  # what it costs, and its J (2,)


def make_search(tables: BatchTables, caps: int, window_s: float = np.inf, price: float = 0.0) -> Search:
    """Return a search that knows nothing yet.

    Args:
        tables: the batch; every request has a legal destination.
        caps: K.
        window_s: Δ.
        price: β, what a second of backlog left on a destination costs, in seconds of T.
    """
    plan = make_plan(tables, term_bounds(tables), window_s)
    count, width = plan.pairs.shape
    makespan_price = float(plan.total[0]["makespan_price"])
    return Search(
        plan,
        makespan_price,
        price * makespan_price,
        np.zeros(caps, CAP),
        np.zeros((caps, width)),
        np.zeros(count, np.int64),
        np.full(2, np.inf),
    )


@njit
def lower_bound(plan: Plan, cap: float, target: float, steps: int, multipliers: Floats) -> float:
    """Bound from below what any assignment that completes by a cap costs, but for its makespan.

    The steps are Polyak's, towards a target that is enough to reach; they shrink where they do not help.

    Args:
        plan: the batch; its assignment does not count.
        cap: s.
        target: a bound as high as this is as good as any.
        steps: subgradient steps.
        multipliers: where to begin (M,); becomes the best ones found.
    """
    count, width = plan.pairs.shape
    window_s = plan.total[0].window_s
    now, slope = multipliers.copy(), np.empty(width)
    best, pace, failures = -np.inf, 1.0, 0
    for _ in range(steps):
        bound = plan.total[0].origin
        slope[:] = 0.0
        for r in range(count):
            choice, least = _cheapest(plan, r, cap, now)
            if choice == NONE:
                return np.inf
            bound += least
            slope[choice] += plan.pairs[r, choice].infer
        square = 0.0
        for d in range(width):
            destination = plan.destinations[d]
            room = max(0.0, cap - destination.backlog - destination.nearest)
            if now[d] * destination.speedup < destination.rent:
                # Room that is worth less than its rent is not taken.
                room = min(room, max(0.0, window_s - destination.backlog))
            bound += destination.rent * max(0.0, destination.backlog + room - window_s)
            room *= destination.speedup
            bound -= now[d] * room
            slope[d] -= room
            if (now[d] <= 0.0 and slope[d] < 0.0) or abs(slope[d]) < NEGLIGIBLE * room:
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
def _cheapest(plan: Plan, r: int, cap: float, multipliers: Floats) -> Any:
    """Return where a request is cheapest under a cap, NONE if it cannot finish by then, and what it costs."""
    choice, least = NONE, np.inf
    for d in range(len(multipliers)):
        pair = plan.pairs[r, d]
        if pair.direct <= cap:
            value = pair.price + multipliers[d] * pair.infer
            if value < least:
                choice, least = d, value
    return choice, least


@njit
def _set_prices(plan: Plan, makespan: float, overshoot: float, cap: float, rent: float) -> None:
    """Set what times cost from now on; `settle` the plan next."""
    plan.total[0].makespan_price, plan.total[0].overshoot_price = makespan, overshoot
    for d in range(len(plan.destinations)):
        plan.destinations[d].cap, plan.destinations[d].rent = cap, rent


@njit
def _remember(search: Search) -> None:
    """Keep the plan's assignment if it is better than the best."""
    plan = search.plan
    value = total_cost(plan)
    if value < search.value[0] - plan.total[0].tolerance:
        search.value[:] = value
        for r in range(len(plan.requests)):
            search.best[r] = plan.requests[r].destination
        for d in range(len(plan.destinations)):
            search.value[1] -= plan.destinations[d].charge


@njit
def _recall(search: Search) -> None:
    """Go back to the best assignment; `settle` the plan next."""
    for r in range(len(search.best)):
        search.plan.requests[r].destination = search.best[r]


@njit
def begin(search: Search, steps: int) -> None:
    """Descend from the cheapest destinations, and bound what each cap can hold.

    The caps are spread evenly, from when the last request can finish at the earliest to when it finishes at
    the latest in anything better than what is known by then.
    """
    plan, price = search.plan, search.makespan_price
    anywhere = np.zeros(len(plan.destinations))
    earliest, cheapest = 0.0, plan.total[0].origin
    for r in range(len(plan.requests)):
        choice, least = _cheapest(plan, r, np.inf, anywhere)
        plan.requests[r].destination = choice
        cheapest += least
        direct = np.inf
        for d in range(len(plan.destinations)):
            direct = min(direct, plan.pairs[r, d].direct)
        earliest = max(earliest, direct)
    for d in range(len(plan.destinations)):
        cheapest += search.rent * max(0.0, plan.destinations[d].backlog - plan.total[0].window_s)
    _set_prices(plan, price, 0.0, np.inf, search.rent)
    descend(plan, False)
    _remember(search)
    search.caps["bound"][:] = np.inf
    if price <= 0.0:
        return
    spread = (search.value[0] - cheapest) / price - earliest
    multipliers = np.zeros(len(plan.destinations))
    for k in range(len(search.caps) - 1, -1, -1):
        cap = search.caps[k]
        cap.after = earliest + spread * k / len(search.caps)
        cap.by = earliest + spread * (k + 1) / len(search.caps)
        cap.bound = lower_bound(plan, cap.by, search.value[0] - price * cap.after, steps, multipliers)
        search.multipliers[k] = multipliers


@njit
def advance(search: Search) -> bool:
    """Descend from the start of the most promising cap; return False if no cap can hold anything better.

    It first pays for each destination's overshoot rather than for the makespan: of several destinations that
    finish last, a change mends one at a time.
    """
    plan, price = search.plan, search.makespan_price
    chosen, least = NONE, np.inf
    for k in range(len(search.caps)):
        cap = search.caps[k]
        promise = cap.bound + price * cap.by
        if cap.bound + price * cap.after < search.value[0] - plan.total[0].tolerance and promise < least:
            chosen, least = k, promise
    if chosen == NONE:
        return False
    cap, multipliers = search.caps[chosen], search.multipliers[chosen]
    slack = search.value[0] - cap.bound - price * cap.after
    cap.bound = np.inf
    for r in range(len(plan.requests)):
        request = plan.requests[r]
        request.destination, least = _cheapest(plan, r, cap.by, multipliers)
        request.options = 0
        for d in range(len(plan.destinations)):
            pair = plan.pairs[r, d]
            # With any other pair, the bound exceeds what is known.
            if pair.direct <= cap.by and pair.price + multipliers[d] * pair.infer <= least + slack:
                plan.options[r, request.options] = d
                request.options += 1
    _set_prices(plan, 0.0, price, cap.by, search.rent)
    descend(plan, True)
    _set_prices(plan, price, 0.0, np.inf, search.rent)
    descend(plan, True)
    _remember(search)
    return True


@njit
def polish(search: Search) -> None:
    """Descend from the best assignment with all legal destinations as options, so that no change gains."""
    _recall(search)
    allow_all(search.plan)
    descend(search.plan, True)
    _remember(search)


@njit
def _drive_out(plan: Plan, d: int, cap: float) -> None:
    """Send a destination's requests elsewhere, longest first, until its last one finishes by a cap."""
    while plan.destinations[d].finish > cap:
        longest = NONE
        for k in range(plan.destinations[d].count):
            r = plan.members[d, k]
            movable = plan.requests[r].options > 1
            if movable and (longest == NONE or plan.pairs[r, d].direct > plan.pairs[longest, d].direct):
                longest = r
        if longest == NONE:
            return
        choice, least = NONE, np.inf
        for k in range(plan.requests[longest].options):
            b = plan.options[longest, k]
            if b != d:
                cost = change(plan, longest, b, NONE, NONE)
                if cost < least:
                    choice, least = b, cost
        place(plan, longest, choice)


@njit
def change_levels(search: Search, levels: Floats) -> bool:
    """Try to leave more and less backlog on each destination; return whether that found anything better.

    The longest request of a destination may leave as much backlog as all of its requests together, so what
    gains is to send it no long ones, or all of them. It draws requests while its backlog costs nothing, or
    they are driven out; then the descent goes on.

    Args:
        search: the search, polished.
        levels: caps, as shares of the way from a destination's last finish (0) back to its backlog (1).
    """
    plan, price, rent = search.plan, search.makespan_price, search.rent
    before, window_s = search.value[0], plan.total[0].window_s
    for d in range(len(plan.destinations)):
        destination = plan.destinations[d]
        unavoidable = rent * max(0.0, destination.backlog - window_s)
        for k in range(-1, len(levels)):
            _recall(search)
            settle(plan)
            if k < 0:
                destination.rent = 0.0
                descend(plan, False)
                _set_prices(plan, price, 0.0, np.inf, rent)
            elif destination.charge > unavoidable + plan.total[0].tolerance:
                served = destination.finish - destination.backlog
                _drive_out(plan, d, destination.finish - levels[k] * served)
            else:
                break
            descend(plan, False)
            if total_cost(plan) < search.value[0] - plan.total[0].tolerance:
                descend(plan, True)
                _remember(search)
    return search.value[0] < before
