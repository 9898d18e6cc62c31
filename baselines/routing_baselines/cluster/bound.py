"""Upper bound on the requests that any router can finish on time (the `bound` yardstick).

The replicas are pooled into one machine that has, at every instant, all the speed that they can
have together; the most requests which that machine can finish on time are found exactly.

Work is counted in p = d·u (demand ms times jitter): a replica with mean service m and slow factor
slow_i does 11/(m·slow_i) of it per ms. Why the bound holds (section 3 of the design):

1. A request served on time on replica i from boundary s gets its work p at the constant speed that
   i had at s, within [s, s + p/speed]. s is not before the arrival a, and s + p/speed is not after
   the completion boundary, hence not after min(a + D, cutoff).
2. The pooled machine is at every instant at least as fast as all those services together, and may
   share its speed and preempt: it can finish on time whatever the replicas finish on time.
3. Measured in cumulative work W(t) it has unit speed. Arrivals and due dates are in the same
   order, so serving in arrival order, without preemption, is as good as anything.
4. Leaving out warm-up requests, rounding to the grid and queue limits only helps the machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from routing_gym.cluster.workload import Episode
from routing_gym.common.jit import njit
from routing_gym.policy import Yardstick

FloatArray = NDArray[np.float64]
Event = tuple[float, str, int, float]

REFERENCE_SERVICE_MS = 11.0
"""Demand that a replica with mean service m serves in m ms (section 3)."""

GRID_MS = 0.5
"""Time step of the cluster (section 3)."""

TIME_SLACK_MS = 1e-6
"""Widens comparisons of times, so that rounding never hides a service that the cluster allows."""

WORK_SLACK = 1e-9
"""Widens due dates, relative to all work; sums of thousands of terms are exact to about 1e-12."""


@njit
def max_on_time(release: FloatArray, due: FloatArray, processing: FloatArray) -> int:
    """Most jobs that one machine of unit speed can finish by their due dates.

    Kise, Ibaraki and Mine, "A solvable case of the one-machine scheduling problem with ready and
    due times", Operations Research 26 (1978) 121-126; a corrected proof of optimality is in
    Journal of Scheduling, doi 10.1007/s10951-010-0210-0. Jobs join in order; when the newest is
    late, the job leaves whose removal lets the others complete first. At most O(n²).

    Args:
        release: earliest starts, shape (n,), non-decreasing.
        due: due dates, shape (n,), non-decreasing.
        processing: processing times, shape (n,), not negative, in the same unit.

    Returns:
        The largest number of jobs in a schedule without late jobs, preemptive or not.
    """
    kept = np.empty(release.size, np.int64)
    start = np.empty(release.size, np.float64)
    count = 0
    free = -np.inf
    for job in range(release.size):
        kept[count] = job
        start[count] = max(free, release[job])
        free = start[count] + processing[job]
        count += 1
        if free <= due[job]:
            continue
        # Removing a job advances the last completion by its processing time, but by no more than
        # the least room that a later job has between release and start. Once that room is down to
        # the best gain (at the latest at an idle gap, where it is 0), no earlier job can win.
        room = np.inf
        best = -1.0
        drop = count - 1
        position = count - 1
        while position >= 0 and room > best:
            gain = min(processing[kept[position]], room)
            if gain > best:
                best = gain
                drop = position
            room = min(room, start[position] - release[kept[position]])
            position -= 1
        count -= 1
        free = start[drop - 1] + processing[kept[drop - 1]] if drop > 0 else -np.inf
        for position in range(drop, count):
            kept[position] = kept[position + 1]
            start[position] = max(free, release[kept[position]])
            free = start[position] + processing[kept[position]]
    return count


def _states(
    service_ms: FloatArray, events: Sequence[Event], grid_ms: float
) -> list[list[tuple[float, float]]]:
    """Per replica the boundaries from which its starts have a new speed, as (boundary, speed).

    An event acts at the first boundary not before it. Starts come after all events of a boundary,
    so only the last state there counts. Speed 0 says that nothing starts.
    """
    slow = [1.0] * len(service_ms)
    healthy = [True] * len(service_ms)
    states = [[(0.0, REFERENCE_SERVICE_MS / mean)] for mean in service_ms]
    latest = -np.inf
    for time_ms, kind, replica, factor in events:
        if time_ms < latest:
            raise ValueError(f"event at {time_ms} ms follows {latest} ms, allowed: sorted by time")
        latest = time_ms
        if not 0 <= replica < len(service_ms):
            raise ValueError(f"event replica is {replica}, allowed: 0 to {len(service_ms) - 1}")
        if kind == "slowdown":
            if not factor > 0:
                raise ValueError(f"slowdown factor is {factor} at {time_ms} ms, allowed: > 0")
            slow[replica] = factor
        elif kind in ("failure", "recovery"):
            healthy[replica] = kind == "recovery"
        else:
            raise ValueError(f"event kind is {kind!r}, allowed: slowdown, failure, recovery")
        boundary = max(0.0, float(np.ceil(time_ms / grid_ms)) * grid_ms)
        speed = REFERENCE_SERVICE_MS / (service_ms[replica] * slow[replica])
        if states[replica][-1][0] == boundary:
            states[replica].pop()
        states[replica].append((boundary, float(speed) if healthy[replica] else 0.0))
    return states


def _last_service_end(
    begin: float, last_start: float, arrival: FloatArray, service: FloatArray, deadline_ms: float
) -> float:
    """Latest instant at which an on-time service started in [begin, last_start] can still run.

    A service keeps the speed that it started with, whatever happens to its replica. It starts at or
    after its arrival, and counts only if it ends within the deadline. `service` is work/speed: the
    work is done then, and what the grid adds is idle time.
    """
    in_time = np.maximum(arrival, begin) + service <= arrival + deadline_ms + TIME_SLACK_MS
    can = in_time & (arrival <= last_start + TIME_SLACK_MS)
    ends = np.minimum(last_start + service, arrival + deadline_ms)[can]
    return float(ends.max(initial=last_start)) + TIME_SLACK_MS


def pooled_speed(
    service_ms: ArrayLike,
    events: Sequence[Event],
    arrival: ArrayLike,
    work: ArrayLike,
    *,
    deadline_ms: float,
    horizon_ms: float,
    grid_ms: float = GRID_MS,
) -> tuple[FloatArray, FloatArray]:
    """Piecewise constant speed of the pooled machine over [0, horizon].

    A replica counts, at each instant, with the highest speed at which an on-time service can be
    running: that of its present state, or that of an earlier one for as long as an on-time service
    begun in it can last. A service that runs on at an older, lower speed is thereby overrated,
    which an upper bound may.

    Args:
        service_ms: mean service times m_i of an 11 ms request, ms, shape (N,), positive.
        events: (time ms, "slowdown" | "failure" | "recovery", replica, factor), sorted by time; the
            factor is absolute, outlives a failure, and is read for slowdowns only.
        arrival: arrivals of the requests whose service counts, ms, shape (R,).
        work: their demand times jitter, ms, shape (R,).
        deadline_ms: D, from the arrival.
        horizon_ms: end of the last piece, positive.
        grid_ms: time step q.

    Returns:
        Edges in ms, shape (B + 1,), from 0 to the horizon, and speeds in work per ms, shape (B,).

    Raises:
        ValueError: events are not sorted, or one has an unknown kind or replica or a factor <= 0.
    """
    means = np.asarray(service_ms, np.float64)
    arrivals = np.asarray(arrival, np.float64)
    works = np.asarray(work, np.float64)
    pieces: list[tuple[int, float, float, float]] = []
    for replica, states in enumerate(_states(means, events, grid_ms)):
        followers = [begin for begin, _ in states[1:]] + [np.inf]
        for (begin, speed), end in zip(states, followers, strict=True):
            if begin >= horizon_ms or speed == 0.0:
                continue
            if end < horizon_ms:
                service = works / speed
                last = _last_service_end(begin, end - grid_ms, arrivals, service, deadline_ms)
                end = max(end, last)
            pieces.append((replica, begin, min(end, horizon_ms), speed))
    bounds = [bound for _, begin, end, _ in pieces for bound in (begin, end)]
    edges = np.unique(np.array([0.0, horizon_ms, *bounds]))
    speeds = np.zeros((len(means), edges.size - 1))
    for replica, begin, end, speed in pieces:
        covered = speeds[replica, np.searchsorted(edges, begin) : np.searchsorted(edges, end)]
        np.maximum(covered, speed, out=covered)
    return edges, speeds.sum(axis=0)


def on_time_bound(
    arrival: ArrayLike,
    work: ArrayLike,
    service_ms: ArrayLike,
    events: Sequence[Event] = (),
    *,
    deadline_ms: float,
    cutoff_ms: float,
    measured_from_ms: float = 0.0,
    grid_ms: float = GRID_MS,
) -> int:
    """Upper bound on the cohort's on-time requests, for every router, with or without admission.

    Args:
        arrival: exact arrivals of all requests, ms, shape (R,), non-decreasing, not negative.
        work: demand times jitter of each, ms, shape (R,).
        service_ms: mean service times m_i of an 11 ms request, ms, shape (N,).
        events: as in `pooled_speed`.
        deadline_ms: D; on time is a completion within D of the arrival and by the cutoff.
        cutoff_ms: end of the episode.
        measured_from_ms: end of the warm-up; the cohort arrives in (measured_from, cutoff].
        grid_ms: time step q.

    Returns:
        The bound, between 0 and the size of the cohort.

    Raises:
        ValueError: shapes differ, arrivals are not sorted, or an event is invalid.
    """
    arrivals = np.asarray(arrival, np.float64)
    works = np.asarray(work, np.float64)
    if arrivals.ndim != 1 or arrivals.shape != works.shape:
        raise ValueError(f"arrival {arrivals.shape} and work {works.shape}: allowed is one (R,)")
    backwards = np.flatnonzero(np.diff(arrivals) < 0)
    if backwards.size:
        before, after = arrivals[backwards[0] : backwards[0] + 2]
        raise ValueError(f"arrival[{backwards[0] + 1}] is {after}, allowed: >= {before}")
    cohort = (arrivals > measured_from_ms) & (arrivals <= cutoff_ms)
    arrivals, works = arrivals[cohort], works[cohort]
    if arrivals.size == 0:
        return 0
    limits = {"deadline_ms": deadline_ms, "horizon_ms": cutoff_ms, "grid_ms": grid_ms}
    edges, speeds = pooled_speed(service_ms, events, arrivals, works, **limits)
    done = np.concatenate(([0.0], np.cumsum(np.diff(edges) * speeds)))
    release = np.interp(arrivals, edges, done)
    due = np.interp(np.minimum(arrivals + deadline_ms, cutoff_ms), edges, done)
    due += WORK_SLACK * max(1.0, done[-1])
    # Interpolation can break the order by a rounding error; mending it may only lengthen windows.
    release = np.minimum.accumulate(release[::-1])[::-1].copy()
    return int(max_on_time(release, np.maximum.accumulate(due), works))


class Bound(Yardstick):
    """No router can have more requests on time, whatever it knows and whether it may reject or not."""

    family: ClassVar[str] = "cluster"

    def measure(self, episode: Episode) -> dict[str, Any]:
        """Return `arrivals`, and upper bounds of `on_time`, `attainment` and `goodput_per_s`."""
        config, workload, requests = episode
        on_time = on_time_bound(
            requests.arrival_ms,
            requests.demand_ms * requests.jitter,
            # Speeds are in units of the reference request.
            np.array(config.replica_service_ms) * (REFERENCE_SERVICE_MS / config.reference_ms),
            [
                (event.time_ms, event.kind, event.replica, event.factor or 1.0)
                for event in config.timeline
                if event.replica is not None
            ],
            deadline_ms=config.deadline_ms,
            cutoff_ms=workload.cutoff_ms,
            measured_from_ms=config.warmup_ms,
            grid_ms=config.time_step_ms,
        )
        arrivals = int(np.count_nonzero(requests.arrival_ms > config.warmup_ms))
        measured_s = (workload.cutoff_ms - config.warmup_ms) / 1000.0
        return {
            "arrivals": arrivals,
            "on_time": on_time,
            "attainment": on_time / arrivals if arrivals else None,
            "goodput_per_s": on_time / measured_s,
        }
