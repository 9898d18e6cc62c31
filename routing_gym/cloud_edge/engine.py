"""The cloud–edge kernels: form a window's batch, take its assignment, carry the backlog over (DESIGN 4).

At the end of window k, at (k + 1)Δ, a batch is formed and observed; the step that assigns it also forms the
next one. A batch environment's step is one window; a request environment's step is one request of the batch,
longest predicted output first.

The state is described in `state.py`; arguments without an axis of rows below are one row's.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from routing_gym.cloud_edge.evaluator import BatchTables, finish_time, pair_parts, write_bounds
from routing_gym.cloud_edge.observation import observe_batch, observe_request
from routing_gym.cloud_edge.request_monitor import drain, observe_completions, record_dispatch
from routing_gym.cloud_edge.state import (
    ACTUAL,
    COST,
    DESTINATION,
    ENERGY,
    INFER,
    LEGAL,
    LOSS,
    NONE,
    PAIR,
    PATH,
    PLANES,
    REQUEST,
    ROW,
    SLOT,
    TRANSFER,
    WINDOW,
)
from routing_gym.common.commands import OBSERVE, SKIP, START, STEP
from routing_gym.common.jit import entry_point, njit


@njit
def _views(row: Any, destinations: Any, tables: Any, first: int, backlog: Any) -> BatchTables:
    """Return the batch's tables, predicted (`first` = 0) or actual, as views."""
    n = row.batch
    return BatchTables(
        tables[first + LOSS, :n],
        tables[first + COST, :n],
        tables[first + ENERGY, :n],
        tables[first + INFER, :n],
        tables[first + TRANSFER, :n],
        tables[LEGAL, :n],
        backlog,
        destinations.speedup,
        row.weights,
    )


@njit
def _take_waiting(row: Any, destinations: Any, requests: Any, paths: Any, slots: Any) -> None:
    """Choose the batch: those that wait, in arrival order, as far as they can be sent anywhere."""
    now = (row.window + 1) * row.window_s
    while row.next_request < row.request_count and requests[row.next_request].arrival < now:
        row.next_request += 1
    some_up = some_edge_up = False
    for d in range(len(destinations)):
        if paths[row.window, d].up:
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
def _fill_tables(row: Any, destinations: Any, requests: Any, pairs: Any, paths: Any, slots: Any, tables: Any) -> None:
    """Work out what each request of the batch would cost everywhere, as predicted and as it will be."""
    for i in range(row.batch):
        r = slots[i].request
        request = requests[r]
        for d in range(len(destinations)):
            destination = destinations[d]
            path, pair = paths[row.window, d], pairs[r, destination.model]
            parts = pair_parts(destination, request.input, request.predicted_output, path.rtt_s)
            tables[INFER, i, d], tables[TRANSFER, i, d], tables[COST, i, d], tables[ENERGY, i, d] = parts
            tables[LOSS, i, d] = 1.0 - pair.predicted_quality
            parts = pair_parts(destination, request.input, float(pair.output), path.rtt_s)
            tables[ACTUAL + INFER, i, d], tables[ACTUAL + TRANSFER, i, d] = parts[0], parts[1]
            tables[ACTUAL + COST, i, d], tables[ACTUAL + ENERGY, i, d] = parts[2], parts[3]
            tables[ACTUAL + LOSS, i, d] = 1.0 - pair.quality
            tables[LEGAL, i, d] = path.up != 0 and not (request.edge_only and destination.is_cloud)
    for i in range(row.batch, len(slots)):
        tables[LEGAL, i, :] = 0.0
        tables[LEGAL, i, 0] = 1.0


@njit
def _order(row: Any, requests: Any, slots: Any) -> None:
    """Sort the walk: longest predicted output first, the earlier one among equals."""
    for i in range(row.batch):
        length = requests[slots[i].request].predicted_output
        k = i
        while k > 0 and requests[slots[slots[k - 1].order].request].predicted_output < length:
            slots[k].order = slots[k - 1].order
            k -= 1
        slots[k].order = i


@njit
def next_window(
    row: Any, destinations: Any, requests: Any, pairs: Any, paths: Any, slots: Any, tables: Any
) -> None:
    """Go on to the next window's end and form its batch, or end the episode (`row.done`)."""
    row.window += 1
    row.position = 0
    observe_completions(row, destinations, requests, (row.window + 1) * row.window_s)
    if row.window == row.window_count:
        row.done = 1
        row.batch = 0
    else:
        _take_waiting(row, destinations, requests, paths, slots)
    _fill_tables(row, destinations, requests, pairs, paths, slots, tables)
    _order(row, requests, slots)
    write_bounds(_views(row, destinations, tables, 0, destinations.shown), row.bounds[0])
    write_bounds(_views(row, destinations, tables, ACTUAL, destinations.backlog), row.bounds[1])


@njit
def _assign(row: Any, destinations: Any, requests: Any, slots: Any, tables: Any, i: int, choice: int) -> None:
    """Give slot `i` a destination: what was chosen, or the next legal one in cyclic order."""
    if tables[LEGAL, i, choice] == 0.0:
        row.invalid_actions += 1
        requests[slots[i].request].invalid = 1
        while tables[LEGAL, i, choice] == 0.0:
            choice = (choice + 1) % len(destinations)
    slots[i].choice = choice
    destination, infer = destinations[choice], tables[INFER, i, choice]
    destination.predicted_work += infer
    destination.predicted_longest = max(destination.predicted_longest, infer)
    destination.assigned += 1


@njit
def _send(row: Any, destinations: Any, requests: Any, slots: Any, tables: Any, window: Any) -> None:
    """Send the assigned batch, and settle its terms and J on the predicted and on the actual tables."""
    predicted, actual = row.terms, window.terms
    for k in range(4):
        predicted[k] = actual[k] = 0.0
    for d in range(len(destinations)):
        destinations[d].predicted_work = 0.0  # summed again in arrival order, for the queues
    for i in range(row.batch):
        r, d = slots[i].request, slots[i].choice
        request, destination = requests[r], destinations[d]
        infer = tables[INFER, i, d]
        destination.predicted_work += infer
        request.predicted_finish = finish_time(
            destination.shown, destination.predicted_work, destination.speedup, infer, tables[TRANSFER, i, d]
        )
        infer = tables[ACTUAL + INFER, i, d]
        destination.work += infer
        destination.longest = max(destination.longest, infer)
        request.finish = finish_time(
            destination.backlog, destination.work, destination.speedup, infer, tables[ACTUAL + TRANSFER, i, d]
        )
        request.window, request.destination = row.window, d
        record_dispatch(row, destination, requests, r)
        for k in range(3):  # LOSS, COST and ENERGY are the first three terms
            predicted[k] += tables[k, i, d]
            actual[k] += tables[ACTUAL + k, i, d]
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
def _normalised(term: float, bounds: Any) -> float:
    width = bounds[1] - bounds[0]
    return (term - bounds[0]) / width if width > 0.0 else 0.0


@njit
def _pass_window(row: Any, destinations: Any, window: Any) -> None:
    """Let a window pass: what was sent becomes backlog, and some of it is done."""
    for d in range(len(destinations)):
        drain(destinations[d], row.window_s)
        window.backlog += destinations[d].backlog
        window.largest_backlog = max(window.largest_backlog, destinations[d].backlog)


@njit
def _settle_nothing(row: Any) -> None:
    row.reward = 0.0
    for k in range(4):
        row.terms[k] = 0.0


@njit
def begin_batch(e: int, rows: Any, destinations: Any, requests: Any, pairs: Any, paths: Any, windows: Any, slots: Any, tables: Any) -> None:
    """Start a loaded episode: go to the end of its first window, whoever has arrived."""
    next_window(rows[e], destinations[e], requests[e], pairs[e], paths[e], slots[e], tables[e])


@njit
def _skip_empty(e: int, rows: Any, destinations: Any, requests: Any, pairs: Any, paths: Any, windows: Any, slots: Any, tables: Any) -> None:
    """Pass windows in which there is nothing to decide; backlog drains in them."""
    row = rows[e]
    while row.batch == 0 and row.done == 0:
        _pass_window(row, destinations[e], windows[e, row.window])
        next_window(row, destinations[e], requests[e], pairs[e], paths[e], slots[e], tables[e])


@njit
def begin_request(e: int, rows: Any, destinations: Any, requests: Any, pairs: Any, paths: Any, windows: Any, slots: Any, tables: Any) -> None:
    """Start a loaded episode: go to its first batch that is not empty."""
    begin_batch(e, rows, destinations, requests, pairs, paths, windows, slots, tables)
    _skip_empty(e, rows, destinations, requests, pairs, paths, windows, slots, tables)


@njit
def advance_batch(rows: Any, destinations: Any, requests: Any, pairs: Any, paths: Any, windows: Any, slots: Any, tables: Any, observation: Any) -> None:
    """Carry out each row's command, a window at a time, and write its observation.

    Args:
        rows: (rows,) `state.ROW`; `command` says what to do. START begins a loaded episode, STEP dispatches
            the batch by the choices in `slots` and sets `reward` and `terms`, OBSERVE only looks, SKIP leaves
            the row's part of `observation` alone. A row that is done is only looked at.
        destinations: (rows, M) `state.DESTINATION`.
        requests: (rows, room) `state.REQUEST`.
        pairs: (rows, room, K) `state.PAIR`.
        paths: (rows, room, M) `state.PATH`.
        windows: (rows, room) `state.WINDOW`.
        slots: (rows, R_max) `state.SLOT`.
        tables: (rows, PLANES, R_max, M) float64; plane LEGAL becomes the action mask.
        observation: flat float32, laid out as `observation.py` says; written.
    """
    for e in range(len(rows)):
        row = rows[e]
        if row.command == SKIP:
            continue
        if row.command == START:
            begin_batch(e, rows, destinations, requests, pairs, paths, windows, slots, tables)
        elif row.command == STEP and row.done == 0:
            _settle_nothing(row)
            for i in range(row.batch):
                _assign(row, destinations[e], requests[e], slots[e], tables[e], i, slots[e, i].choice)
            if row.batch:
                _send(row, destinations[e], requests[e], slots[e], tables[e], windows[e, row.window])
            _pass_window(row, destinations[e], windows[e, row.window])
            next_window(row, destinations[e], requests[e], pairs[e], paths[e], slots[e], tables[e])
        observe_batch(e, rows, destinations, requests, pairs, slots, tables, observation)


@njit
def advance_request(rows: Any, destinations: Any, requests: Any, pairs: Any, paths: Any, windows: Any, slots: Any, tables: Any, observation: Any) -> None:
    """As `advance_batch`, a request at a time: `row.action` goes to the request at `row.position`."""
    for e in range(len(rows)):
        row = rows[e]
        if row.command == SKIP:
            continue
        if row.command == START:
            begin_request(e, rows, destinations, requests, pairs, paths, windows, slots, tables)
        elif row.command == STEP:
            _settle_nothing(row)
            # An episode in which nothing is asked is done from the start, and is still one step.
            if row.done == 0:
                i = slots[e, row.position].order
                _assign(row, destinations[e], requests[e], slots[e], tables[e], i, row.action)
                row.position += 1
                if row.position == row.batch:
                    _send(row, destinations[e], requests[e], slots[e], tables[e], windows[e, row.window])
                    _pass_window(row, destinations[e], windows[e, row.window])
                    next_window(row, destinations[e], requests[e], pairs[e], paths[e], slots[e], tables[e])
                    _skip_empty(e, rows, destinations, requests, pairs, paths, windows, slots, tables)
        observe_request(e, rows, destinations, requests, pairs, slots, tables, observation)


@njit
def start_batch(chosen: Any, rows: Any, destinations: Any, requests: Any, pairs: Any, paths: Any, windows: Any, slots: Any, tables: Any, observation: Any) -> None:
    """Begin the loaded episodes of the chosen rows and write their observations; else as `advance_batch`."""
    for e in chosen:
        begin_batch(e, rows, destinations, requests, pairs, paths, windows, slots, tables)
        observe_batch(e, rows, destinations, requests, pairs, slots, tables, observation)


@njit
def start_request(chosen: Any, rows: Any, destinations: Any, requests: Any, pairs: Any, paths: Any, windows: Any, slots: Any, tables: Any, observation: Any) -> None:
    """Begin the loaded episodes of the chosen rows and write their observations; else as `advance_request`."""
    for e in chosen:
        begin_request(e, rows, destinations, requests, pairs, paths, windows, slots, tables)
        observe_request(e, rows, destinations, requests, pairs, slots, tables, observation)


@lru_cache(maxsize=2)
def compiled(kernel: Callable[..., None]) -> Callable[..., None]:
    """Return an `advance_…` for the arrays of a `CloudEdgeState` and a flat float32 buffer, and nothing else."""
    return entry_point(
        kernel,
        np.zeros(1, ROW),
        np.zeros((1, 1), DESTINATION),
        np.zeros((1, 1), REQUEST),
        np.zeros((1, 1, 1), PAIR),
        np.zeros((1, 1, 1), PATH),
        np.zeros((1, 1), WINDOW),
        np.zeros((1, 1), SLOT),
        np.zeros((1, PLANES, 1, 1)),
        np.zeros(1, np.float32),
    )
