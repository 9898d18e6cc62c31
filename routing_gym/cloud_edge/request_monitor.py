"""The request monitor: backlog per destination across windows, as it is and as it is shown (DESIGN 4).

Physics runs on actual durations. What a router is shown runs the same rule on predicted ones, and falls to 0
when everything that was sent to a destination has completed.
"""

from __future__ import annotations

from typing import Any

from routing_gym.cloud_edge.evaluator import new_work
from routing_gym.cloud_edge.state import NONE
from routing_gym.common.jit import njit


@njit
def observe_completions(row: Any, destinations: Any, requests: Any, now: float) -> None:
    """Drop what has finished by `now` from the open requests; idle destinations show no backlog."""
    before = NONE
    r = row.open
    while r != NONE:
        request = requests[r]
        following = request.next
        if (request.window + 1) * row.window_s + request.finish <= now:
            destinations[request.destination].outstanding -= 1
            if before == NONE:
                row.open = following
            else:
                requests[before].next = following
        else:
            before = r
        r = following
    for d in range(len(destinations)):
        if destinations[d].outstanding == 0:
            destinations[d].shown = 0.0


@njit
def record_dispatch(row: Any, destination: Any, requests: Any, r: int) -> None:
    """Add a request that has just been sent to the open ones."""
    destination.outstanding += 1
    requests[r].next = row.open
    row.open = r


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
