"""The observation: its fields, how the kernel writes them, and how they become a dictionary (DESIGN 3)."""

from __future__ import annotations

from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from routing_gym.cluster.state import NONE, is_eligible
from routing_gym.common.jit import njit

Observation = dict[str, NDArray[np.float32]]

# Layout of an observation buffer, flat float32: a block per name here, in this order, each of `block_size`
# numbers that start with (rows, N); then `request` (rows, 3), and (rows, 1) each of arrival_gap, deadline and
# signal_age.
OWN_FIELDS = (
    "outstanding",
    "outstanding_prompt_tokens",
    "outstanding_predicted_tokens",
    "service_ewma",
    "speed_ewma",
    "reward_ewma",
    "completed",
    "oldest_age",
    "since_completion",
    "healthy",
    "eligible",
)
REPORTED_FIELDS = ("waiting", "in_flight", "in_flight_age")
REPLICA_FIELDS = OWN_FIELDS + REPORTED_FIELDS
REPLICA_FIELD_COUNT = len(REPLICA_FIELDS)
GLOBAL_SIZE = 6


@njit
def block_size(rows: int, replicas: int) -> int:
    """Return how many numbers a block of the observation buffer takes.

    Blocks of many rows are a whole number of cache lines and one line more: without it, blocks of 1024 rows
    lie a multiple of 4096 bytes apart, fall on the same few places of the cache, and cost twice the time.
    """
    size = rows * replicas
    return size if rows == 1 else (size + 15) // 16 * 16 + 16


@njit
def _oldest_arrival(replica: Any, requests: Any) -> float:
    """Return when the replica's oldest outstanding request arrived; there is one.

    Requests are numbered by arrival. A queue that only ever took new arrivals is in that order, so only
    one that holds re-routed requests needs a search.
    """
    busy = replica.in_flight != NONE
    if busy and replica.rerouted == 0:
        return replica.in_flight_arrival
    oldest = replica.in_flight if busy else replica.head
    if replica.rerouted > 0:
        r = replica.head
        while r != NONE:
            oldest = min(oldest, r)
            r = requests[r].next
    return requests[oldest].arrival


@njit
def observe(e: int, rows: Any, replicas: Any, requests: Any, observation: Any) -> None:
    """Write row `e`'s observation, and its action mask to `replicas.offered`."""
    row = rows[e]
    row_count, count = replicas.shape
    block = block_size(row_count, count)
    now = row.tick * row.step_ms
    live = row.snapshot_interval == 0
    k = e * count
    for i in range(count):
        replica = replicas[e, i]
        eligible = is_eligible(row, replica)
        replica.offered = eligible or row.done != 0
        busy = replica.in_flight != NONE
        outstanding = replica.waiting + busy
        oldest_age = now - _oldest_arrival(replica, requests[e]) if outstanding > 0 else 0.0
        observation[k] = outstanding
        observation[k + block] = replica.prompt_tokens
        observation[k + 2 * block] = replica.predicted_tokens
        observation[k + 3 * block] = replica.service_ewma
        observation[k + 4 * block] = replica.speed_ewma
        observation[k + 5 * block] = replica.reward_ewma
        observation[k + 6 * block] = replica.completed
        observation[k + 7 * block] = oldest_age
        observation[k + 8 * block] = now - replica.last_completion * row.step_ms
        observation[k + 9 * block] = replica.healthy
        observation[k + 10 * block] = eligible
        if live:
            observation[k + 11 * block] = replica.waiting
            observation[k + 12 * block] = busy
            observation[k + 13 * block] = now - replica.started * row.step_ms if busy else 0.0
        else:
            observation[k + 11 * block] = replica.snapshot_waiting
            observation[k + 12 * block] = replica.snapshot_in_flight
            observation[k + 13 * block] = replica.snapshot_age
        k += 1
    k = REPLICA_FIELD_COUNT * block + 3 * e
    if row.done:
        observation[k] = observation[k + 1] = observation[k + 2] = 0.0
    else:
        request = requests[e, row.current]
        observation[k] = request.prompt
        observation[k + 1] = request.predicted
        observation[k + 2] = now - request.arrival
    k = REPLICA_FIELD_COUNT * block + 3 * row_count + e
    observation[k] = row.arrival_gap
    observation[k + row_count] = row.deadline_ms
    observation[k + 2 * row_count] = 0.0 if live else now - row.snapshot * row.step_ms


class ObservationLayout:
    """Turns the kernel's flat buffer into an observation, without copying."""

    def __init__(self, rows: int, replicas: int, full: bool) -> None:
        """Lay out observations of `rows` episodes; `full` adds what replicas report themselves."""
        self.rows, self.replicas = rows, replicas
        block = block_size(rows, replicas)
        own = OWN_FIELDS + REPORTED_FIELDS if full else OWN_FIELDS
        shapes = {name: (k * block, replicas) for k, name in enumerate(own)}
        end = REPLICA_FIELD_COUNT * block
        shapes["request"] = (end, 3)
        for k, name in enumerate(
            ("arrival_gap", "deadline", "signal_age") if full else ("arrival_gap", "deadline")
        ):
            shapes[name] = (end + (3 + k) * rows, 1)
        self.size = end + GLOBAL_SIZE * rows
        self.names = tuple(shapes)
        self._shapes = tuple((rows, size) for _, size in shapes.values())
        # One call that takes all slices is the cheapest way to many views.
        self._views = itemgetter(*(slice(first, first + rows * size) for first, size in shapes.values()))

    def single(self, buffer: NDArray[np.float32]) -> Observation:
        """Return the observation of the one row that `buffer` holds."""
        return dict(zip(self.names, self._views(buffer)))  # noqa: B905 (strict costs a tenth of a step)

    def batch(self, buffer: NDArray[np.float32]) -> Observation:
        """Return the observations of all rows, each field with a leading axis of rows."""
        views = zip(self.names, self._views(buffer), self._shapes, strict=True)
        return {name: view.reshape(shape) for name, view, shape in views}
