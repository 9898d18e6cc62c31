"""The cluster's state as structured arrays: the dtypes below are the schema that the kernel works on.

One row is one episode. `rows[e]` holds what is single in it, `replicas[e, i]` each replica, `requests[e, r]`
the workload and what became of it, in order of arrival, and `events[e, k]` what happens when. Queues are
linked lists through `requests.next`, so they have no capacity of their own.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from routing_gym.cluster.config import ClusterConfig
from routing_gym.cluster.workload import Arrivals, Workload
from routing_gym.common.jit import njit

NEVER = np.iinfo(np.int32).max  # a tick that does not come
NONE = -1  # no request, no replica

SLOWDOWN, FAILURE, RECOVERY = range(3)
EVENT_KINDS = {"slowdown": SLOWDOWN, "failure": FAILURE, "recovery": RECOVERY}

ROW = np.dtype(
    [
        # settings
        ("step_ms", "f8"),
        ("deadline_ms", "f8"),
        ("reference_ms", "f8"),
        ("alpha", "f8"),
        ("ceiling_ms", "f8"),
        ("weights", "f8", (5,)),
        ("cutoff", "i4"),  # ticks
        ("snapshot_interval", "i4"),  # ticks; 0 is live
        ("capacity", "i4"),
        ("admission", "i1"),
        ("credit", "i1"),  # whether outcomes are paid with the decision
        # interface
        ("command", "i1"),
        ("done", "i1"),
        ("action", "i4"),
        ("reward", "f8"),
        ("terms", "f8", (5,)),  # of the step just taken; see rewards.CLUSTER_TERMS
        # progress
        ("tick", "i4"),
        ("snapshot", "i4"),  # tick of the last snapshot
        ("current", "i4"),  # the request that awaits a decision
        ("request_count", "i4"),
        ("next_request", "i4"),
        ("event_count", "i4"),
        ("next_event", "i4"),
        ("reroute_head", "i4"),
        ("reroute_tail", "i4"),
        ("outstanding", "i4"),
        ("invalid_actions", "i4"),
        ("arrival_gap", "f8"),
        # reward terms since the last decision; the integral counts boundaries
        ("on_time", "f8"),
        ("late", "f8"),
        ("shed", "f8"),
        ("latency_sum", "f8"),
        ("integral", "f8"),
        ("credited", "f8", (3,)),  # on time, late and latency paid for outstanding requests
    ],
    align=True,
)

REPLICA = np.dtype(
    [
        ("service_ms", "f8"),  # m_i
        ("slow", "f8"),
        ("service_ewma", "f8"),
        ("speed_ewma", "f8"),
        ("reward_ewma", "f8"),
        ("prompt_tokens", "f8"),  # outstanding
        ("predicted_tokens", "f8"),  # outstanding
        ("snapshot_age", "f8"),
        ("in_flight_arrival", "f8"),  # of the request in service, so that a look at it fetches no record
        ("head", "i4"),  # first and last waiting request
        ("tail", "i4"),
        ("waiting", "i4"),
        ("in_flight", "i4"),  # request in service
        ("started", "i4"),  # tick
        ("finish", "i4"),  # tick; NEVER when idle
        ("completed", "i4"),
        ("last_completion", "i4"),  # tick
        ("rerouted", "i4"),  # re-routed requests among the waiting
        ("snapshot_waiting", "i4"),
        ("healthy", "i1"),
        ("offered", "i1"),  # the action mask at the pending decision
        ("snapshot_in_flight", "i1"),
    ],
    align=True,
)

REQUEST = np.dtype(
    [
        ("arrival", "f8"),
        ("demand", "f8"),
        ("jitter", "f8"),
        ("tick", "i4"),  # the boundary at which it is routed
        ("prompt", "i4"),
        ("output", "i4"),
        ("predicted", "f4"),
        ("start", "i4"),  # tick; -1 before
        ("finish", "i4"),  # tick; -1 before
        ("next", "i4"),  # behind it in its queue
        ("reroutes", "i4"),
        ("invalid", "i4"),
        ("replica", "i2"),  # last that accepted it
        ("shed", "i1"),
        ("rejected", "i1"),
    ],
    align=True,
)

EVENT = np.dtype([("factor", "f8"), ("tick", "i4"), ("kind", "i4"), ("replica", "i4")], align=True)

REQUEST_LOG = np.dtype(
    [
        ("arrival", "f8"),
        ("prompt", "i8"),
        ("output", "i8"),
        ("predicted", "f8"),
        ("demand", "f8"),
        ("jitter", "f8"),
        ("replica", "i8"),
        ("start", "f8"),
        ("completion", "f8"),
        ("reroutes", "i8"),
        ("invalid", "i8"),
        ("last_replica", "i8"),
        ("shed", "?"),
        ("rejected", "?"),
    ]
)

# The fields of a request log that metrics need.
OUTCOME = ("arrival", "completion", "demand", "output", "last_replica", "shed", "rejected")


@njit
def is_eligible(row: Any, replica: Any) -> bool:
    """Tell whether a replica can take a request: healthy, and its queue not full."""
    return replica.healthy != 0 and replica.waiting < row.capacity


class ClusterState:
    """The arrays of a number of episodes of equally many replicas."""

    def __init__(self, rows: int, replicas: int, requests: float = 0.0) -> None:
        """Allocate `rows` empty episodes with room for about `requests` each; there is more where needed."""
        self.rows = np.zeros(rows, ROW)
        self.replicas = np.zeros((rows, replicas), REPLICA)
        for name in ("current", "reroute_head", "reroute_tail"):
            self.rows[name] = NONE
        self.replicas["offered"] = 1  # a mask is never all false, not even before the first episode
        # Room for all rows at once: to grow row by row would move all of them again and again.
        self.requests = _with_room(np.zeros((rows, 0), REQUEST), int(1.1 * requests))
        self.events = np.zeros((rows, 1), EVENT)

    def load(self, e: int, config: ClusterConfig, workload: Workload, arrivals: Arrivals) -> None:
        """Put a fresh episode into row `e`, before its first boundary."""
        step = config.time_step_ms
        count = len(arrivals.arrival_ms)
        timeline = [event for event in config.timeline if event.kind in EVENT_KINDS]
        self.requests = _with_room(self.requests, count)
        self.events = _with_room(self.events, len(timeline))

        row = np.zeros((), ROW)
        row["step_ms"] = step
        row["deadline_ms"] = config.deadline_ms
        row["reference_ms"] = config.reference_ms
        row["alpha"] = config.ewma_alpha
        row["ceiling_ms"] = config.service_ceiling_ms
        row["weights"] = config.reward_weights
        row["cutoff"] = round(workload.cutoff_ms / step)
        row["snapshot_interval"] = round(config.signal_interval_ms / step)
        row["capacity"] = config.queue_capacity
        row["admission"] = config.admission
        row["credit"] = config.credit == "decision"
        row["request_count"] = count
        row["event_count"] = len(timeline)
        row["current"] = row["reroute_head"] = row["reroute_tail"] = NONE
        self.rows[e] = row

        replicas = self.replicas[e]
        replicas[:] = np.zeros((), REPLICA)
        replicas["service_ms"] = config.replica_service_ms
        replicas["slow"] = replicas["speed_ewma"] = 1.0
        replicas["service_ewma"] = config.reference_ms
        replicas["reward_ewma"] = 1.0 - config.reference_ms / config.service_ceiling_ms
        replicas["head"] = replicas["tail"] = replicas["in_flight"] = NONE
        replicas["finish"] = NEVER
        replicas["healthy"] = 1

        _fill(self.requests[e], step, *arrivals)

        for k, event in enumerate(timeline):
            tick = min(np.ceil(event.time_ms / step), NEVER)
            self.events[e, k] = (event.factor or 0.0, tick, EVENT_KINDS[event.kind], event.replica)

    def request_log(self, e: int) -> NDArray[Any]:
        """Return what became of the requests of row `e` that have arrived so far, in order of arrival.

        Returns:
            A structured array, dtype `REQUEST_LOG`: arrival, start and completion in ms (NaN where it has
            not happened), prompt, output and predicted tokens, demand (ms) and jitter, replica (-1 where
            shed or not yet routed), re-routes, invalid decisions, the last replica that accepted it (-1 for
            none), and whether it was shed and rejected.
        """
        row = self.rows[e]
        requests = self.requests[e, : row["next_request"]]
        log = np.empty(len(requests), REQUEST_LOG)
        for name in ("arrival", "prompt", "output", "predicted", "demand", "jitter", "reroutes", "invalid"):
            log[name] = requests[name]
        log["shed"] = requests["shed"]
        log["rejected"] = requests["rejected"]
        log["last_replica"] = requests["replica"]
        log["replica"] = np.where(requests["shed"], NONE, requests["replica"])
        for r in self._awaiting(e):
            log["replica"][r] = NONE
        for name, tick in (("start", "start"), ("completion", "finish")):
            log[name] = np.where(requests[tick] < 0, np.nan, requests[tick] * row["step_ms"])
        return log

    def _awaiting(self, e: int) -> list[int]:
        """Return the requests that await a decision: the pending one and those on the re-route list."""
        row = self.rows[e]
        awaiting = [] if row["current"] == NONE else [int(row["current"])]
        r = int(row["reroute_head"])
        while r != NONE:
            awaiting.append(r)
            r = int(self.requests[e, r]["next"])
        return awaiting

    def outcome(self, e: int) -> dict[str, NDArray[np.float64]]:
        """Return the columns of row `e`'s request log that metrics need, named as in `OUTCOME`."""
        row = self.rows[e]
        columns = np.empty((len(OUTCOME), int(row["next_request"])))
        _extract(self.requests[e], float(row["step_ms"]), columns)
        return dict(zip(OUTCOME, columns, strict=True))

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return copies of all arrays, from which `restore` goes on."""
        return {name: getattr(self, name).copy() for name in ("rows", "replicas", "requests", "events")}

    def restore(self, arrays: dict[str, NDArray[Any]]) -> None:
        """Take over copies of arrays made by `arrays`.

        Raises:
            ValueError: they are of another number of rows or replicas, which the kernel would not notice, or
                of another version.
        """
        shape, needed = arrays["replicas"].shape, self.replicas.shape
        if shape != needed:
            raise ValueError(f"the state has (rows, replicas) = {shape}; this environment has {needed}")
        if arrays["rows"].dtype != ROW:
            raise ValueError("the state was saved by another version: its rows have other fields")
        for name in ("rows", "replicas", "requests", "events"):
            setattr(self, name, arrays[name].copy())


@njit
def _fill(
    requests: Any,
    step: float,
    arrival: NDArray[np.float64],
    prompt: NDArray[np.float64],
    output: NDArray[np.float64],
    predicted: NDArray[np.float64],
    demand: NDArray[np.float64],
    jitter: NDArray[np.float64],
) -> None:
    """Write the workload record by record: field by field, each record would be fetched thirteen times."""
    for r in range(len(arrival)):
        request = requests[r]
        request.arrival = arrival[r]
        request.demand = demand[r]
        request.jitter = jitter[r]
        request.tick = max(math.ceil(arrival[r] / step), 1)
        request.prompt = int(prompt[r])
        request.output = int(output[r])
        request.predicted = predicted[r]
        request.start = request.finish = request.next = request.replica = NONE
        request.reroutes = request.invalid = request.shed = request.rejected = 0


@njit
def _extract(requests: Any, step: float, columns: NDArray[np.float64]) -> None:
    """Copy what metrics need of each request into `OUTCOME` columns, in one pass as `_fill`."""
    for r in range(columns.shape[1]):
        request = requests[r]
        columns[0, r] = request.arrival
        columns[1, r] = request.finish * step if request.finish >= 0 else np.nan
        columns[2, r] = request.demand
        columns[3, r] = request.output
        columns[4, r] = request.replica
        columns[5, r] = request.shed
        columns[6, r] = request.rejected


def _with_room(array: NDArray[Any], needed: int) -> NDArray[Any]:
    """Return the array with room for `needed` entries per row.

    It at least doubles, so that longer and longer episodes seldom move all rows; pages that are never
    written take no memory.
    """
    if array.shape[1] >= needed:
        return array
    larger = np.zeros((array.shape[0], max(needed, 2 * array.shape[1]) | 1), array.dtype)
    larger[:, : array.shape[1]] = array
    return larger
