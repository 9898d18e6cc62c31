"""The cluster's kernel: jumps from decision to decision, exactly as stepping every boundary would.

Between two boundaries at which something happens (a completion, an event, an arrival) nothing changes but
ages, so the kernel goes straight from one to the next. At each it does the four parts of DESIGN 3 in order:
finish, events, route, start. Part 3 is where it stops to ask for a decision.

The state is described in `state.py`; `row`, `replicas`, `requests` and `events` below are one row's.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from routing_gym.cluster.observation import observe
from routing_gym.cluster.state import (
    EVENT,
    FAILURE,
    NEVER,
    NONE,
    RECOVERY,
    REPLICA,
    REQUEST,
    ROW,
    SLOWDOWN,
    is_eligible,
)
from routing_gym.common.commands import OBSERVE, SKIP, START, STEP
from routing_gym.common.jit import entry_point, njit


@njit
def _enqueue(requests: Any, replica: Any, r: int) -> None:
    request = requests[r]
    request.next = NONE
    if replica.head == NONE:
        replica.head = r
    else:
        requests[replica.tail].next = r
    replica.tail = r
    replica.waiting += 1
    if request.reroutes > 0:
        replica.rerouted += 1
    replica.prompt_tokens += request.prompt
    replica.predicted_tokens += request.predicted


@njit
def _finish(row: Any, replicas: Any, requests: Any) -> None:
    """Part 1: complete what is due, in replica order, and learn from it."""
    now = row.tick
    for i in range(len(replicas)):
        replica = replicas[i]
        if replica.finish != now:
            continue
        request = requests[replica.in_flight]
        request.finish = now
        latency = now * row.step_ms - request.arrival
        if latency <= row.deadline_ms:
            row.on_time += 1.0
        else:
            row.late += 1.0
        row.latency_sum += latency
        service = (now - replica.started) * row.step_ms
        alpha = row.alpha
        replica.service_ewma += alpha * (service - replica.service_ewma)
        reward = max(0.0, 1.0 - service / row.ceiling_ms)
        replica.reward_ewma += alpha * (reward - replica.reward_ewma)
        replica.speed_ewma += alpha * (service / request.demand - replica.speed_ewma)
        replica.completed += 1
        replica.last_completion = now
        replica.prompt_tokens -= request.prompt
        replica.predicted_tokens -= request.predicted
        replica.in_flight = NONE
        replica.finish = NEVER
        row.outstanding -= 1


@njit
def _fail(row: Any, replica: Any, requests: Any) -> None:
    """Take a replica out; its waiting requests join the re-route list in FIFO order."""
    if replica.healthy == 0:
        return
    replica.healthy = 0
    if replica.head == NONE:
        return
    if row.reroute_head == NONE:
        row.reroute_head = replica.head
    else:
        requests[row.reroute_tail].next = replica.head
    row.reroute_tail = replica.tail
    r = replica.head
    while r != NONE:
        request = requests[r]
        request.reroutes += 1
        replica.prompt_tokens -= request.prompt
        replica.predicted_tokens -= request.predicted
        r = request.next
    row.outstanding -= replica.waiting
    replica.head = replica.tail = NONE
    replica.waiting = replica.rerouted = 0


@njit
def _apply_events(row: Any, replicas: Any, requests: Any, events: Any) -> None:
    """Part 2: events up to this boundary, by time."""
    while row.next_event < row.event_count and events[row.next_event].tick <= row.tick:
        event = events[row.next_event]
        replica = replicas[event.replica]
        if event.kind == SLOWDOWN:
            replica.slow = event.factor
        elif event.kind == FAILURE:
            _fail(row, replica, requests)
        elif event.kind == RECOVERY:
            replica.healthy = 1
        row.next_event += 1


@njit
def _snapshot(row: Any, replicas: Any, tick: int) -> None:
    """Take what replicas report, between parts 2 and 3 of the boundary `tick`."""
    row.snapshot = tick
    for i in range(len(replicas)):
        replica = replicas[i]
        replica.snapshot_waiting = replica.waiting
        busy = replica.in_flight != NONE
        replica.snapshot_in_flight = busy
        replica.snapshot_age = (tick - replica.started) * row.step_ms if busy else 0.0


@njit
def _shed(row: Any, request: Any) -> None:
    request.shed = 1
    row.shed += 1.0


@njit
def _next_to_route(row: Any, replicas: Any, requests: Any) -> int:
    """Part 3: take the next request that needs a decision, shedding those that nobody can take."""
    while True:
        if row.reroute_head != NONE:
            r = row.reroute_head
            row.reroute_head = requests[r].next
            if row.reroute_head == NONE:
                row.reroute_tail = NONE
        elif row.next_request < row.request_count and requests[row.next_request].tick <= row.tick:
            r = row.next_request
            row.next_request += 1
            if r > 0:
                gap = requests[r].arrival - requests[r - 1].arrival
                row.arrival_gap = gap if r == 1 else row.arrival_gap + row.alpha * (gap - row.arrival_gap)
        else:
            return NONE
        for i in range(len(replicas)):
            if is_eligible(row, replicas[i]):
                return r
        _shed(row, requests[r])


@njit
def _served_at(row: Any, replica: Any, request: Any, start: int) -> int:
    """Return the boundary at which a request would complete whose service starts at another."""
    service = ((request.demand * replica.service_ms) / row.reference_ms * replica.slow) * request.jitter
    # Past the cutoff all times are alike, and no whole number must overflow.
    ticks = math.ceil(min(service / row.step_ms, float(NEVER)))
    return int(min(start + ticks, NEVER - 1))


@njit
def _start(row: Any, replicas: Any, requests: Any) -> None:
    """Part 4: each idle replica starts the head of its queue."""
    for i in range(len(replicas)):
        replica = replicas[i]
        if replica.in_flight != NONE or replica.head == NONE:
            continue
        r = replica.head
        request = requests[r]
        replica.head = request.next
        if replica.head == NONE:
            replica.tail = NONE
        replica.waiting -= 1
        if request.reroutes > 0:
            replica.rerouted -= 1
        replica.in_flight = r
        replica.in_flight_arrival = request.arrival
        replica.started = request.start = row.tick
        # As `_served_at`, whose call here would cost a twentieth of a decision.
        service = ((request.demand * replica.service_ms) / row.reference_ms * replica.slow) * request.jitter
        ticks = math.ceil(min(service / row.step_ms, float(NEVER)))
        replica.finish = min(row.tick + ticks, NEVER - 1)


@njit
def _next_tick(row: Any, replicas: Any, requests: Any, events: Any) -> int:
    """Return the next boundary at which something happens."""
    tick = row.cutoff
    for i in range(len(replicas)):
        tick = min(tick, replicas[i].finish)
    if row.next_request < row.request_count:
        tick = min(tick, requests[row.next_request].tick)
    if row.next_event < row.event_count:
        tick = min(tick, events[row.next_event].tick)
    return tick


@njit
def run(row: Any, replicas: Any, requests: Any, events: Any) -> None:
    """Go on to the next decision (`row.current`), or to the episode's end (`row.done`)."""
    while True:
        row.current = _next_to_route(row, replicas, requests)
        if row.current != NONE:
            return
        _start(row, replicas, requests)
        if row.tick == row.cutoff:
            row.integral += row.outstanding
            row.done = 1
            return
        tick = _next_tick(row, replicas, requests, events)
        row.integral += float(row.outstanding) * (tick - row.tick)
        interval = row.snapshot_interval
        if interval > 0:
            passed = (tick - 1) // interval * interval
            if passed > row.tick:
                _snapshot(row, replicas, passed)
        row.tick = tick
        _finish(row, replicas, requests)
        _apply_events(row, replicas, requests, events)
        if interval > 0 and tick % interval == 0:
            _snapshot(row, replicas, tick)


@njit
def begin(row: Any, replicas: Any, requests: Any, events: Any) -> None:
    """Start a loaded episode and go on to its first decision."""
    _apply_events(row, replicas, requests, events)
    _snapshot(row, replicas, 0)
    run(row, replicas, requests, events)


@njit
def decide(row: Any, replicas: Any, requests: Any, action: int) -> None:
    """Send the pending request to replica `action`, or reject it (action N under admission).

    A choice that is not eligible goes to the next eligible replica in cyclic order and is counted.
    """
    count = len(replicas)
    request = requests[row.current]
    if action == count:
        request.rejected = 1
        _shed(row, request)
        return
    if not is_eligible(row, replicas[action]):
        row.invalid_actions += 1
        request.invalid += 1
        while not is_eligible(row, replicas[action]):
            action = (action + 1) % count
    request.replica = action
    _enqueue(requests, replicas[action], row.current)
    row.outstanding += 1


@njit
def _credit(row: Any, replicas: Any, requests: Any) -> None:
    """Pay what is outstanding as it would end if nothing more happened, instead of when it ends.

    Completions were paid before they happened, so they cancel out, and what events change is corrected.
    """
    on_time = late = latency_sum = 0.0
    for i in range(len(replicas)):
        replica = replicas[i]
        # An idle replica starts its head in part 4 of this boundary.
        tick = row.tick if replica.in_flight == NONE else replica.finish
        r = replica.in_flight if replica.in_flight != NONE else replica.head
        while r != NONE:
            request = requests[r]
            if r != replica.in_flight:
                tick = _served_at(row, replica, request, tick)
            latency = tick * row.step_ms - request.arrival
            if latency <= row.deadline_ms:
                on_time += 1.0
            else:
                late += 1.0
            latency_sum += latency
            r = replica.head if r == replica.in_flight else request.next
    row.on_time += on_time - row.credited[0]
    row.late += late - row.credited[1]
    row.latency_sum += latency_sum - row.credited[2]
    row.credited[0], row.credited[1], row.credited[2] = on_time, late, latency_sum


@njit
def _settle(row: Any) -> None:
    """Turn what has been accumulated since the last decision into this step's terms and reward."""
    row.terms[0] = row.on_time
    row.terms[1] = row.late
    row.terms[2] = row.shed
    row.terms[3] = row.latency_sum
    row.terms[4] = row.integral * row.step_ms
    row.on_time = row.late = row.shed = row.latency_sum = row.integral = 0.0
    reward = 0.0
    for k in range(5):
        reward += row.weights[k] * row.terms[k]
    row.reward = reward


@njit
def advance(rows: Any, replicas: Any, requests: Any, events: Any, observation: Any) -> None:
    """Carry out each row's command and write its observation.

    Args:
        rows: (rows,) `state.ROW`; `command` says what to do, `action` what was decided. START begins a
            loaded episode, STEP applies the action and sets `reward` and `terms`, OBSERVE only looks, SKIP
            leaves the row's part of `observation` alone. A row that is done is only looked at.
        replicas: (rows, N) `state.REPLICA`; `offered` becomes the action mask.
        requests: (rows, room) `state.REQUEST`.
        events: (rows, room) `state.EVENT`.
        observation: flat float32, laid out as `observation.py` says; written.
    """
    for e in range(len(rows)):
        row = rows[e]
        if row.command == SKIP:
            continue
        if row.command == START:
            begin(row, replicas[e], requests[e], events[e])
        elif row.command == STEP:
            # An episode in which nothing is asked is done from the start, and is still one step.
            if row.done == 0:
                decide(row, replicas[e], requests[e], row.action)
                run(row, replicas[e], requests[e], events[e])
                if row.credit != 0:
                    _credit(row, replicas[e], requests[e])
            _settle(row)
        elif row.command != OBSERVE:
            raise ValueError("unknown command")
        observe(e, rows, replicas, requests, observation)


@njit
def start(
    chosen: NDArray[np.int64], rows: Any, replicas: Any, requests: Any, events: Any, observation: Any
) -> None:
    """Begin the loaded episodes of the chosen rows and write their observations; else as `advance`."""
    for e in chosen:
        begin(rows[e], replicas[e], requests[e], events[e])
        observe(e, rows, replicas, requests, observation)


@lru_cache(maxsize=1)
def compiled_advance() -> Callable[..., None]:
    """Return `advance` for the arrays of a `ClusterState` and a flat float32 buffer, and for nothing else."""
    return entry_point(
        advance,
        np.zeros(1, ROW),
        np.zeros((1, 1), REPLICA),
        np.zeros((1, 1), REQUEST),
        np.zeros((1, 1), EVENT),
        np.zeros(1, np.float32),
    )
