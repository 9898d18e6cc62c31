"""What a change of an assignment costs, without adding everything up again, and descent by such changes.

A change touches two or three destinations. Only their queues are worked out anew, and only where a bound on
the gain, which takes a few operations, leaves something to gain.
"""

from __future__ import annotations

from typing import Any

from routing_baselines.cloud_edge.plan import NONE, Plan, charge_of, makespan, place, queue_of, settle
from routing_gym.cloud_edge.evaluator import new_work
from routing_gym.common.jit import njit


@njit
def _outcome(plan: Plan, d: int, leaves: int, joins: int, exact: bool) -> Any:
    """Return d's last finish and charge with one request leaving and one joining; either may be NONE.

    Not exact means: no more than these, in a few operations.
    """
    destination = plan.destinations[d]
    if exact:
        work, longest, finish = queue_of(plan, d, leaves, joins)
        return finish, charge_of(plan, d, finish, new_work(longest, work, destination.speedup))
    count, work = destination.count, destination.work
    longest, finish = destination.longest, destination.slowest
    if leaves != NONE:
        pair = plan.pairs[leaves, d]
        count -= 1
        work -= pair.infer
        if pair.infer >= longest:
            longest = destination.second_longest
        if pair.direct >= finish:
            finish = destination.second_slowest
    if joins != NONE:
        pair = plan.pairs[joins, d]
        count += 1
        work += pair.infer
        longest = max(longest, pair.infer)
        finish = max(finish, pair.direct)
    if count == 0:
        return 0.0, charge_of(plan, d, 0.0, 0.0)
    finish = max(finish, destination.backlog + work / destination.speedup + destination.nearest)
    return finish, charge_of(plan, d, finish, new_work(longest, work, destination.speedup))


@njit
def _elsewhere(plan: Plan, a: int, b: int) -> float:
    """Return the last finish on destinations other than two."""
    total = plan.total[0]
    d = total.first
    if d == a or d == b:
        d = total.second
        if d == a or d == b:
            d = total.third
    return 0.0 if d == NONE else plan.destinations[d].finish


@njit
def addition(plan: Plan, r: int, b: int) -> float:
    """Return by how much J and the charges grow when a request that is not assigned is sent to b."""
    finish, charge = _outcome(plan, b, NONE, r, True)
    growth = max(0.0, finish - makespan(plan))
    return (
        plan.pairs[r, b].price + charge - plan.destinations[b].charge + plan.total[0].makespan_price * growth
    )


@njit
def change(plan: Plan, r: int, b: int, s: int, c: int) -> float:
    """Return by how much J and the charges grow when r goes to b and s, which is on b, goes to c.

    In a move s and c are NONE; in a swap c is where r comes from.
    """
    a = plan.requests[r].destination
    finish_a, charge_a = _outcome(plan, a, r, s if c == a else NONE, True)
    finish_b, charge_b = _outcome(plan, b, s, r, True)
    latest = max(_elsewhere(plan, a, b), max(finish_a, finish_b))
    cost = plan.pairs[r, b].price - plan.pairs[r, a].price
    cost += charge_a - plan.destinations[a].charge + charge_b - plan.destinations[b].charge
    if s != NONE:
        cost += plan.pairs[s, c].price - plan.pairs[s, b].price
        if c != a:
            # Its last finish only grows, so it need not be left out of what is elsewhere.
            finish_c, charge_c = _outcome(plan, c, NONE, s, True)
            latest = max(latest, finish_c)
            cost += charge_c - plan.destinations[c].charge
    return cost + plan.total[0].makespan_price * (latest - makespan(plan))


@njit
def _best_move(plan: Plan, r: int) -> int:
    """Return where a request is best sent, NONE if it is best where it is."""
    request, price = plan.requests[r], plan.total[0].makespan_price
    a, best, choice = request.destination, -plan.total[0].tolerance, NONE
    finish, charge_a = _outcome(plan, a, r, NONE, False)
    latest = max(finish, _elsewhere(plan, a, a))
    cost = charge_a - plan.destinations[a].charge + price * (latest - makespan(plan))
    if cost + request.regret >= best:
        return NONE
    for k in range(request.options):
        b = plan.options[r, k]
        more = cost + plan.pairs[r, b].price - plan.pairs[r, a].price
        if b == a or more >= best:
            continue
        finish, charge_b = _outcome(plan, b, NONE, r, False)
        more += charge_b - plan.destinations[b].charge + price * max(0.0, finish - latest)
        if more < best:
            value = change(plan, r, b, NONE, NONE)
            if value < best:
                best, choice = value, b
    return choice


@njit
def _ejection(plan: Plan, r: int) -> Any:
    """Return (b, s, c) of the first swap or chain that starts with r and gains; NONE where none does.

    Every sum on the way is no more than what the whole will cost.
    """
    request, price = plan.requests[r], plan.total[0].makespan_price
    a, now, enough = request.destination, makespan(plan), -plan.total[0].tolerance
    finish_a, charge_a = _outcome(plan, a, r, NONE, False)
    for j in range(request.options):
        b = plan.options[r, j]
        if b == a:
            continue
        latest = max(finish_a, _elsewhere(plan, a, b))
        cost = plan.pairs[r, b].price - plan.pairs[r, a].price
        cost += charge_a - plan.destinations[a].charge - plan.destinations[b].charge
        least = cost + price * (latest - now)
        if least + plan.destinations[b].ease >= enough:
            continue
        for k in range(plan.destinations[b].count):
            s = plan.members[b, k]
            if least + plan.requests[s].regret >= enough:
                continue
            finish_b, charge_b = _outcome(plan, b, s, r, False)
            later = max(latest, finish_b)
            left = cost + charge_b + price * (later - now)
            if left + plan.requests[s].regret >= enough:
                continue
            for q in range(plan.requests[s].options):
                c = plan.options[s, q]
                more = left + plan.pairs[s, c].price - plan.pairs[s, b].price
                # A swap is found from whichever of the two comes first.
                if c == b or (c == a and s < r) or more >= enough:
                    continue
                finish_c, charge_c = _outcome(plan, c, r if c == a else NONE, s, False)
                more += charge_c - (charge_a if c == a else plan.destinations[c].charge)
                more += price * max(0.0, finish_c - later)
                if more < enough and change(plan, r, b, s, c) < enough:
                    return b, s, c
    return NONE, NONE, NONE


@njit
def descend(plan: Plan, ejecting: bool) -> None:
    """Settle a plan and improve it until no move gains and, if `ejecting`, no swap or chain of two moves."""
    settle(plan)
    improved = True
    while improved:
        improved = False
        for r in range(len(plan.requests)):
            b = _best_move(plan, r)
            if b != NONE:
                place(plan, r, b)
                improved = True
        if improved or not ejecting:
            continue
        for r in range(len(plan.requests)):
            b, s, c = _ejection(plan, r)
            if b != NONE:
                place(plan, r, b)
                place(plan, s, c)
                improved = True
