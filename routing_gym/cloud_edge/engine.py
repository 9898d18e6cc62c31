"""The cloud–edge kernels: form a window's batch, take its assignment, carry the backlog over (DESIGN 4).

At the end of window k, at (k + 1)Δ, a batch is formed and observed; the step that assigns it also forms the
next one. A batch environment's step is one window; a request environment's step is one request of the batch,
longest predicted output first.

The state `s` is described in `state.py`; `e` is a row of it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from routing_gym.cloud_edge.evaluator import BatchTables, finish_time, new_work, pair_parts, write_bounds
from routing_gym.cloud_edge.observation import observe_batches, observe_requests
from routing_gym.cloud_edge.request_monitor import drain, observe_completions, record_dispatch
from routing_gym.cloud_edge.state import (
    CLUSTER_ERROR,
    COST,
    ENERGY,
    INFER,
    LEGAL,
    LOSS,
    NONE,
    TRANSFER,
    Arrays,
    CloudEdgeState,
)
from routing_gym.common.commands import OBSERVE, SKIP, START, STEP
from routing_gym.common.jit import entry_point, njit


@njit
def _views(s: Arrays, e: int, tables: Any, backlog: Any) -> BatchTables:
    """Return the batch's tables, predicted or actual, as views."""
    n = s.rows[e].batch
    return BatchTables(
        tables[:n, LOSS],
        tables[:n, COST],
        tables[:n, ENERGY],
        tables[:n, INFER],
        tables[:n, TRANSFER],
        s.tables[e, :n, LEGAL],
        backlog,
        s.destinations[e].speedup,
        s.rows[e].weights,
    )


@njit
def _take_waiting(s: Arrays, e: int) -> None:
    """Choose the batch: those that wait, in arrival order, as far as they can be sent anywhere."""
    row, destinations, requests, slots = s.rows[e], s.destinations[e], s.requests[e], s.slots[e]
    now = (row.window + 1) * row.window_s
    while row.next_request < row.request_count and requests[row.next_request].arrival < now:
        row.next_request += 1
    some_up = some_edge_up = False
    for d in range(len(destinations)):
        if s.paths[e, row.window, d].up:
            some_up = True
            some_edge_up |= destinations[d].is_cloud == 0
    row.batch = 0
    all_gone = True
    for r in range(row.first_waiting, row.next_request):
        request = requests[r]
        if request.window == NONE:
            if not (some_edge_up or (some_up and not request.edge_only)):
                request.set_aside = 1
                all_gone = False
            elif row.batch < row.max_requests:
                slots[row.batch].request = r
                row.batch += 1
            else:
                all_gone = False
        if all_gone:
            row.first_waiting = r + 1


@njit
def _fill_tables(s: Arrays, e: int) -> None:
    """Work out what each request of the batch would cost everywhere, as predicted and as it will be."""
    row, slots, tables, actual = s.rows[e], s.slots[e], s.tables[e], s.scratch
    for i in range(row.batch):
        r = slots[i].request
        request = s.requests[e, r]
        for d in range(s.physics.shape[1]):
            physics, path = s.physics[e, d], s.paths[e, row.window, d]
            pair = s.pairs[e, r, physics.model]
            parts = pair_parts(physics, request.input, float(pair.predicted_output), path.rtt_s)
            tables[i, INFER, d], tables[i, TRANSFER, d], tables[i, COST, d], tables[i, ENERGY, d] = parts
            tables[i, LOSS, d] = 1.0 - pair.predicted_quality
            tables[i, CLUSTER_ERROR, d] = pair.cluster_error
            tables[i, LEGAL, d] = path.up != 0 and not (request.edge_only and physics.is_cloud)
            parts = pair_parts(physics, request.input, float(pair.output), path.rtt_s)
            actual[i, INFER, d], actual[i, TRANSFER, d], actual[i, COST, d], actual[i, ENERGY, d] = parts
            actual[i, LOSS, d] = 1.0 - pair.quality
    for i in range(row.batch, len(slots)):
        tables[i, LEGAL, :] = 0.0
        tables[i, LEGAL, 0] = 1.0


@njit
def _order(s: Arrays, e: int) -> None:
    """Sort the walk: longest predicted output first, the earlier one among equals."""
    requests, slots = s.requests[e], s.slots[e]
    for i in range(s.rows[e].batch):
        length = requests[slots[i].request].predicted_output
        k = i
        while k > 0 and requests[slots[slots[k - 1].order].request].predicted_output < length:
            slots[k].order = slots[k - 1].order
            k -= 1
        slots[k].order = i


@njit
def next_window(s: Arrays, e: int) -> None:
    """Go on to the next window's end and form its batch, or end the episode (`row.done`)."""
    row, destinations = s.rows[e], s.destinations[e]
    row.window += 1
    row.position = 0
    observe_completions(row, destinations, s.in_flight[e], (row.window + 1) * row.window_s)
    if row.window == row.window_count:
        row.done = 1
        row.batch = 0
    else:
        _take_waiting(s, e)
    _fill_tables(s, e)
    _order(s, e)
    write_bounds(_views(s, e, s.tables[e], destinations.shown), row.bounds[0])
    write_bounds(_views(s, e, s.scratch, destinations.backlog), row.bounds[1])


@njit
def _assign(s: Arrays, e: int, i: int, choice: int) -> None:
    """Give slot `i` a destination: what was chosen, or the next legal one in cyclic order."""
    row, tables = s.rows[e], s.tables[e]
    if tables[i, LEGAL, choice] == 0.0:
        row.invalid_actions += 1
        s.requests[e, s.slots[e, i].request].invalid = 1
        while tables[i, LEGAL, choice] == 0.0:
            choice = (choice + 1) % s.destinations.shape[1]
    s.slots[e, i].choice = choice
    destination, infer = s.destinations[e, choice], tables[i, INFER, choice]
    destination.predicted_work += infer
    destination.predicted_longest = max(destination.predicted_longest, infer)
    destination.assigned += 1


@njit
def _send(s: Arrays, e: int) -> None:
    """Send the assigned batch, and settle its terms and J on the predicted and on the actual tables."""
    row, window, tables = s.rows[e], s.windows[e, s.rows[e].window], s.tables[e]
    predicted, actual = row.terms, window.terms
    for k in range(4):
        predicted[k] = actual[k] = 0.0
    for d in range(s.destinations.shape[1]):
        destination = s.destinations[e, d]
        destination.predicted_work = 0.0  # summed again in arrival order, for the queues
        destination.work = destination.longest = 0.0
    for i in range(row.batch):
        r, d = s.slots[e, i].request, s.slots[e, i].choice
        request, destination = s.requests[e, r], s.destinations[e, d]
        infer = tables[i, INFER, d]
        destination.predicted_work += infer
        request.predicted_finish = finish_time(
            destination.shown, destination.predicted_work, destination.speedup, infer, tables[i, TRANSFER, d]
        )
        pair, rtt = s.pairs[e, r, destination.model], s.paths[e, row.window, d].rtt_s
        infer, transfer, cost, energy = pair_parts(s.physics[e, d], request.input, float(pair.output), rtt)
        destination.work += infer
        destination.longest = max(destination.longest, infer)
        request.finish = finish_time(
            destination.backlog, destination.work, destination.speedup, infer, transfer
        )
        request.window, request.destination = row.window, d
        record_dispatch(row, s.destinations[e], s.in_flight[e], d, request.finish)
        predicted[0] += tables[i, LOSS, d]
        predicted[1] += tables[i, COST, d]
        predicted[2] += tables[i, ENERGY, d]
        actual[0] += 1.0 - pair.quality
        actual[1] += cost
        actual[2] += energy
        predicted[3] = max(predicted[3], request.predicted_finish)
        actual[3] = max(actual[3], request.finish)
    predicted[0] /= row.batch
    actual[0] /= row.batch
    window.requests = row.batch
    for k in range(4):
        as_predicted = _normalised(predicted[k], row.bounds[0, k])
        as_actual = _normalised(actual[k], row.bounds[1, k])
        window.objective_predicted += row.weights[k] * as_predicted
        window.objective += row.weights[k] * as_actual
        row.terms[k] = -as_actual if row.on_actual else -as_predicted
    row.reward = -window.objective if row.on_actual else -window.objective_predicted


@njit
def _credit(s: Arrays, e: int, i: int) -> None:
    """Pay what slot `i`, just assigned, adds to -J of the batch as assigned so far.

    Of a sum, what it adds above the request's own least; of the completion time, above that of the requests
    before it, each taken to come last at its destination.
    """
    row, tables, chosen = s.rows[e], s.tables[e], s.slots[e, i].choice
    destination, request = s.destinations[e, chosen], s.requests[e, s.slots[e, i].request]
    parts, least = np.zeros(3), np.full(3, np.inf)
    finish = 0.0
    for d in range(s.destinations.shape[1]):
        if tables[i, LEGAL, d] == 0.0:
            continue
        infer, transfer = tables[i, INFER, d], tables[i, TRANSFER, d]
        loss, cost, energy = tables[i, LOSS, d], tables[i, COST, d], tables[i, ENERGY, d]
        if row.on_actual:
            pair = s.pairs[e, s.slots[e, i].request, s.destinations[e, d].model]
            rtt = s.paths[e, row.window, d].rtt_s
            infer, transfer, cost, energy = pair_parts(
                s.physics[e, d], request.input, float(pair.output), rtt
            )
            loss = 1.0 - pair.quality
        for k, part in enumerate((loss / row.batch, cost, energy)):
            least[k] = min(least[k], part)
            if d == chosen:
                parts[k] = part
        if d == chosen and row.on_actual:
            destination.work += infer
            destination.longest = max(destination.longest, infer)
            load = new_work(destination.longest, destination.work, destination.speedup)
            finish = destination.backlog + load + transfer
        elif d == chosen:
            load = new_work(destination.predicted_longest, destination.predicted_work, destination.speedup)
            finish = destination.shown + load + transfer
    bounds = row.bounds[1 if row.on_actual else 0]
    before = max(row.makespan, bounds[3, 0])
    row.makespan = max(before, finish)
    for k in range(4):
        width = bounds[k, 1] - bounds[k, 0]
        added = parts[k] - least[k] if k < 3 else row.makespan - before
        paid = added / width if width > 0.0 else 0.0
        row.credited[k] += paid
        row.terms[k] = -paid
        row.reward -= row.weights[k] * paid


@njit
def _settle_credit(row: Any) -> None:
    """Pay of a batch that is sent only what its requests have not paid."""
    row.reward = row.makespan = 0.0
    for k in range(4):
        row.terms[k] += row.credited[k]
        if k < 3:
            row.terms[k] = min(row.terms[k], 0.0)  # rounding
        row.reward += row.weights[k] * row.terms[k]
        row.credited[k] = 0.0


@njit
def _normalised(term: float, bounds: Any) -> float:
    width = bounds[1] - bounds[0]
    return (term - bounds[0]) / width if width > 0.0 else 0.0


@njit
def _pass_window(s: Arrays, e: int) -> None:
    """Let a window pass: what was sent becomes backlog, and some of it is done."""
    row = s.rows[e]
    window = s.windows[e, row.window]
    for d in range(s.destinations.shape[1]):
        destination = s.destinations[e, d]
        drain(destination, row.window_s)
        window.backlog += destination.backlog
        window.largest_backlog = max(window.largest_backlog, destination.backlog)


@njit
def _settle_nothing(row: Any) -> None:
    row.reward = 0.0
    for k in range(4):
        row.terms[k] = 0.0


@njit
def _skip_empty(s: Arrays, e: int) -> None:
    """Pass windows in which there is nothing to decide; backlog drains in them."""
    row = s.rows[e]
    while row.batch == 0 and row.done == 0:
        _pass_window(s, e)
        next_window(s, e)


@njit
def _begin_walk(s: Arrays, e: int) -> None:
    """Start a loaded episode: go to its first batch that is not empty."""
    next_window(s, e)
    _skip_empty(s, e)


@njit
def advance_batch(s: Arrays, observation: Any) -> None:
    """Carry out each row's command, a window at a time, and write its observation.

    Args:
        s: `rows.command` says what to do. START begins a loaded episode, STEP dispatches the batch by
            `slots.choice` and sets `rows.reward` and `rows.terms`, OBSERVE only looks, SKIP leaves the row's
            part of `observation` alone. A row that is done is only looked at.
        observation: flat float32, laid out as `observation.py` says; written.
    """
    for e in range(len(s.rows)):
        row = s.rows[e]
        if row.command == SKIP:
            continue
        if row.command == START:
            next_window(s, e)
        elif row.command == STEP:
            if row.done == 0:
                _settle_nothing(row)
                for i in range(row.batch):
                    _assign(s, e, i, s.slots[e, i].choice)
                if row.batch:
                    _send(s, e)
                _pass_window(s, e)
                next_window(s, e)
        elif row.command != OBSERVE:
            raise ValueError("unknown command")
    observe_batches(s, 0, len(s.rows), observation)


@njit
def advance_request(s: Arrays, observation: Any) -> None:
    """As `advance_batch`, a request at a time: `rows.action` goes to the request at `rows.position`."""
    for e in range(len(s.rows)):
        row = s.rows[e]
        if row.command == SKIP:
            continue
        if row.command == START:
            _begin_walk(s, e)
        elif row.command == STEP:
            _settle_nothing(row)
            # An episode in which nothing is asked is done from the start, and is still one step.
            if row.done == 0:
                slot = s.slots[e, row.position].order
                _assign(s, e, slot, row.action)
                row.position += 1
                if row.position < row.batch:
                    if row.credit:
                        _credit(s, e, slot)
                else:
                    _send(s, e)
                    if row.credit:
                        _settle_credit(row)
                    _pass_window(s, e)
                    next_window(s, e)
                    _skip_empty(s, e)
        elif row.command != OBSERVE:
            raise ValueError("unknown command")
    observe_requests(s, 0, len(s.rows), observation)


@njit
def start_batch(chosen: NDArray[np.int64], s: Arrays, observation: Any) -> None:
    """Begin the loaded episodes of the chosen rows and write their observations; else as `advance_batch`."""
    for e in chosen:
        s.rows[e].command = START
        next_window(s, e)
        observe_batches(s, e, e + 1, observation)


@njit
def start_request(chosen: NDArray[np.int64], s: Arrays, observation: Any) -> None:
    """As `start_batch`, for a request environment."""
    for e in chosen:
        s.rows[e].command = START
        _begin_walk(s, e)
        observe_requests(s, e, e + 1, observation)


@lru_cache(maxsize=2)
def compiled(kernel: Callable[..., None]) -> Callable[..., None]:
    """Return an `advance_…` for a `CloudEdgeState` and a flat float32 buffer, and for nothing else."""
    return entry_point(kernel, CloudEdgeState(1, 1, 1).arguments, np.zeros(1, np.float32))
