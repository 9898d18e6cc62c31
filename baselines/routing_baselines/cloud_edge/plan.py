"""An assignment of a batch, and what follows from it, kept up to date while requests are sent elsewhere.

Everything lies in a few arrays of records, so that a kernel is handed six arrays and reads what belongs
together from one place.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from routing_gym.cloud_edge.evaluator import BatchTables, Floats, finish_time, new_work
from routing_gym.common.jit import njit

NONE = -1

PRECISION = 1e-12
"""What is smaller than this share of J and its charges is taken for rounding."""

PAIR = np.dtype(
    [
        ("price", "f8"),  # weighted and normalised Q, C and E; infinite where the pair is not legal
        ("infer", "f8"),  # T_infer, s
        ("transfer", "f8"),  # T_trans, s
        ("direct", "f8"),  # when the request alone would finish, s; infinite where not legal
    ]
)
REQUEST = np.dtype(
    [
        ("destination", "i8"),  # NONE while it is not assigned
        ("options", "i8"),  # how many destinations the search may send it to
        ("regret", "f8"),  # the cheapest other option's price less that of its own
    ]
)
DESTINATION = np.dtype(
    [
        ("backlog", "f8"),  # B_d, s
        ("speedup", "f8"),  # S_d
        ("nearest", "f8"),  # the least T_trans of a legal pair, s
        ("cap", "f8"),  # finishing later than this costs `overshoot_price`, s
        ("rent", "f8"),  # what a second of backlog beyond the window costs
        ("count", "i8"),  # requests assigned
        ("work", "f8"),  # ΣT_infer, s
        ("longest", "f8"),  # the two largest T_infer, s
        ("second_longest", "f8"),
        ("slowest", "f8"),  # the two largest direct finishes, s
        ("second_slowest", "f8"),
        ("finish", "f8"),  # when the last request finishes, 0 with none, s
        ("charge", "f8"),  # what finishing beyond the cap and backlog beyond the window cost
        ("ease", "f8"),  # the least regret of its requests
    ]
)
TOTAL = np.dtype(
    [
        ("makespan_price", "f8"),  # what a second of T costs
        ("overshoot_price", "f8"),  # what a second beyond a cap costs
        ("window_s", "f8"),  # Δ
        ("origin", "f8"),  # J is this, the prices of pairs and that of the makespan
        ("tolerance", "f8"),  # a smaller gain is rounding
        ("first", "i8"),  # the three destinations that finish last; NONE where there are fewer
        ("second", "i8"),
        ("third", "i8"),
    ]
)


class Plan(NamedTuple):
    """An assignment, the prices under which it is improved, and what follows from the two."""

    pairs: NDArray[Any]  # PAIR (R, M)
    requests: NDArray[Any]  # REQUEST (R,)
    destinations: NDArray[Any]  # DESTINATION (M,)
    total: NDArray[Any]  # TOTAL (1,)
    members: NDArray[np.int64]  # (M, R), each destination's requests in batch order
    options: NDArray[np.int64]  # (R, M), the destinations that the search may send a request to


def make_plan(tables: BatchTables, bounds: Floats, window_s: float) -> Plan:
    """Return a plan in which nothing is assigned, all legal pairs are options, and prices are those of J.

    Args:
        tables: the batch.
        bounds: (4, 2), as `term_bounds` gives them.
        window_s: Δ.
    """
    count, width = tables.infer.shape
    plan = Plan(
        np.zeros((count, width), PAIR),
        np.zeros(count, REQUEST),
        np.zeros(width, DESTINATION),
        np.zeros(1, TOTAL),
        np.zeros((width, count), np.int64),
        np.zeros((count, width), np.int64),
    )
    _fill(plan, tables, bounds, window_s)
    return plan


@njit
def _fill(plan: Plan, tables: BatchTables, bounds: Floats, window_s: float) -> None:
    count, width = tables.infer.shape
    scale = np.zeros(4)
    for k in range(4):
        if bounds[k, 1] > bounds[k, 0]:
            scale[k] = tables.weights[k] / (bounds[k, 1] - bounds[k, 0])
    total = plan.total[0]
    total.makespan_price = scale[3]
    total.origin = -(scale * bounds[:, 0]).sum()
    total.window_s = window_s
    for d in range(width):
        destination = plan.destinations[d]
        destination.backlog, destination.speedup = tables.backlog[d], tables.speedup[d]
        destination.nearest = destination.cap = np.inf
    for r in range(count):
        plan.requests[r].destination = NONE
        for d in range(width):
            pair, destination = plan.pairs[r, d], plan.destinations[d]
            pair.infer, pair.transfer = tables.infer[r, d], tables.transfer[r, d]
            pair.price = pair.direct = np.inf
            if tables.legal[r, d]:
                pair.price = scale[0] * tables.loss[r, d] / count
                pair.price += scale[1] * tables.cost[r, d] + scale[2] * tables.energy[r, d]
                pair.direct = destination.backlog + pair.infer + pair.transfer
                destination.nearest = min(destination.nearest, pair.transfer)
    allow_all(plan)
    settle(plan)


@njit
def allow_all(plan: Plan) -> None:
    """Make every legal pair an option; `settle` the plan next."""
    count, width = plan.pairs.shape
    for r in range(count):
        plan.requests[r].options = 0
        for d in range(width):
            if plan.pairs[r, d].direct < np.inf:
                plan.options[r, plan.requests[r].options] = d
                plan.requests[r].options += 1


@njit
def charge_of(plan: Plan, d: int, finish: float, new: float) -> float:
    """Return what a destination's last finish and the backlog that it keeps cost."""
    destination, total = plan.destinations[d], plan.total[0]
    cost = 0.0
    if total.overshoot_price > 0.0:
        cost += total.overshoot_price * max(0.0, finish - destination.cap)
    if destination.rent > 0.0:
        cost += destination.rent * max(0.0, destination.backlog + new - total.window_s)
    return cost


@njit
def queue_of(plan: Plan, d: int, leaves: int, joins: int) -> Any:
    """Return ΣT_infer, the largest T_infer and the last finish on d, one request leaving and one joining."""
    backlog, speedup = plan.destinations[d].backlog, plan.destinations[d].speedup
    count = plan.destinations[d].count
    work = longest = finish = 0.0
    k = 0
    while k < count or joins != NONE:
        r = plan.members[d, k] if k < count else joins
        if joins != NONE and joins <= r:
            r, joins = joins, NONE
        else:
            k += 1
            if r == leaves:
                continue
        infer = plan.pairs[r, d].infer
        work += infer
        longest = max(longest, infer)
        finish = max(finish, finish_time(backlog, work, speedup, infer, plan.pairs[r, d].transfer))
    return work, longest, finish


@njit
def makespan(plan: Plan) -> float:
    """Return T, s."""
    return plan.destinations[plan.total[0].first].finish


@njit
def _refresh(plan: Plan, d: int) -> None:
    """Work out a destination's figures anew."""
    destination = plan.destinations[d]
    longest = second_longest = slowest = second_slowest = 0.0
    ease = np.inf
    for k in range(destination.count):
        r = plan.members[d, k]
        pair = plan.pairs[r, d]
        second_longest = max(second_longest, min(longest, pair.infer))
        longest = max(longest, pair.infer)
        second_slowest = max(second_slowest, min(slowest, pair.direct))
        slowest = max(slowest, pair.direct)
        ease = min(ease, plan.requests[r].regret)
    work, _, finish = queue_of(plan, d, NONE, NONE)
    destination.work, destination.finish, destination.ease = work, finish, ease
    destination.longest, destination.second_longest = longest, second_longest
    destination.slowest, destination.second_slowest = slowest, second_slowest
    destination.charge = charge_of(plan, d, finish, new_work(longest, work, destination.speedup))


@njit
def _rank(plan: Plan) -> None:
    """Find the three destinations that finish last."""
    first = second = third = NONE
    for d in range(len(plan.destinations)):
        finish = plan.destinations[d].finish
        if first == NONE or finish > plan.destinations[first].finish:
            first, second, third = d, first, second
        elif second == NONE or finish > plan.destinations[second].finish:
            second, third = d, second
        elif third == NONE or finish > plan.destinations[third].finish:
            third = d
    total = plan.total[0]
    total.first, total.second, total.third = first, second, third


@njit
def _appraise(plan: Plan, r: int) -> None:
    """Work out a request's regret."""
    request = plan.requests[r]
    cheapest = np.inf
    for k in range(request.options):
        d = plan.options[r, k]
        if d != request.destination:
            cheapest = min(cheapest, plan.pairs[r, d].price)
    request.regret = cheapest - plan.pairs[r, request.destination].price


@njit
def settle(plan: Plan) -> None:
    """Work out everything from the destinations that the caller gave the requests, and from the prices."""
    for d in range(len(plan.destinations)):
        plan.destinations[d].count = 0
    for r in range(len(plan.requests)):
        d = plan.requests[r].destination
        if d != NONE:
            plan.members[d, plan.destinations[d].count] = r
            plan.destinations[d].count += 1
            _appraise(plan, r)
    for d in range(len(plan.destinations)):
        _refresh(plan, d)
    _rank(plan)
    total = plan.total[0]
    size = 1.0 + total.makespan_price * makespan(plan)
    for d in range(len(plan.destinations)):
        size += plan.destinations[d].charge
    total.tolerance = PRECISION * size


@njit
def total_cost(plan: Plan) -> float:
    """Return J and the charges of a complete plan, from its destinations' figures."""
    total = plan.total[0]
    value = total.origin + total.makespan_price * makespan(plan)
    for r in range(len(plan.requests)):
        value += plan.pairs[r, plan.requests[r].destination].price
    for d in range(len(plan.destinations)):
        value += plan.destinations[d].charge
    return value


@njit
def place(plan: Plan, r: int, to: int) -> None:
    """Send a request to a destination, from where it is or for the first time."""
    request = plan.requests[r]
    a = request.destination
    if a != NONE:
        k = 0
        while plan.members[a, k] != r:
            k += 1
        plan.destinations[a].count -= 1
        while k < plan.destinations[a].count:
            plan.members[a, k] = plan.members[a, k + 1]
            k += 1
    k = plan.destinations[to].count
    while k > 0 and plan.members[to, k - 1] > r:
        plan.members[to, k] = plan.members[to, k - 1]
        k -= 1
    plan.members[to, k] = r
    plan.destinations[to].count += 1
    request.destination = to
    _appraise(plan, r)
    if a != NONE:
        _refresh(plan, a)
    _refresh(plan, to)
    _rank(plan)
