"""The request monitor: backlog per destination across windows, as it is and as it is shown (DESIGN 4).

Physics runs on actual durations. What a router is shown runs the same rule on predicted ones, and falls to 0
when everything that was sent to a destination has completed.
"""

from __future__ import annotations

from typing import Any

from routing_gym.cloud_edge.evaluator import new_work
from routing_gym.common.jit import njit


@njit
def observe_completions(row: Any, destinations: Any, in_flight: Any, now: float) -> None:
    """Drop what has finished by `now` from the requests in flight; idle destinations show no backlog."""
    k = 0
    while k < row.in_flight:
        if in_flight[k].until <= now:
            destinations[in_flight[k].destination].outstanding -= 1
            row.in_flight -= 1
            in_flight[k].until = in_flight[row.in_flight].until
            in_flight[k].destination = in_flight[row.in_flight].destination
        else:
            k += 1
    for d in range(len(destinations)):
        if destinations[d].outstanding == 0:
            destinations[d].shown = 0.0


@njit
def record_dispatch(row: Any, destinations: Any, in_flight: Any, d: int, finish: float) -> None:
    """Add a request that is sent to `d` at the window's end, and finishes `finish` s later."""
    destinations[d].outstanding += 1
    in_flight[row.in_flight].until = (row.window + 1) * row.window_s + finish
    in_flight[row.in_flight].destination = d
    row.in_flight += 1


@njit
def drain(destination: Any, window_s: float) -> None:
    """Add what was assigned to a destination, let a window pass, and begin the next batch.

    B ← max(0, B + new - Δ), by actual durations and by predicted ones.
    """
    added = new_work(destination.longest, destination.work, destination.speedup)
    destination.backlog = max(0.0, destination.backlog + added - window_s)
    added = new_work(destination.predicted_longest, destination.predicted_work, destination.speedup)
    destination.shown = max(0.0, destination.shown + added - window_s)
    destination.work = destination.longest = 0.0
    destination.predicted_work = destination.predicted_longest = 0.0
    destination.assigned = 0
