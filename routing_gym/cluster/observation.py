"""The observation: its fields, how the kernel writes them, and how they become a dictionary (DESIGN 3)."""

from __future__ import annotations

from typing import Any

from routing_gym.cluster.state import NONE, is_eligible
from routing_gym.common.buffer import BufferLayout, block_size
from routing_gym.common.jit import njit

# Blocks of an observation buffer, in this order, each (rows, N); then `request` (rows, 3), and (rows, 1) each
# of arrival_gap, deadline and signal_age.
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
    k = REPLICA_FIELD_COUNT * block + block_size(row_count, 3) + e
    block = block_size(row_count, 1)
    observation[k] = row.arrival_gap
    observation[k + block] = row.deadline_ms
    observation[k + 2 * block] = 0.0 if live else now - row.snapshot * row.step_ms


def observation_layout(rows: int, replicas: int, full: bool) -> BufferLayout:
    """Return the layout of observations; `full` shows what replicas report themselves."""
    sizes = dict.fromkeys(REPLICA_FIELDS, replicas)
    sizes |= {"request": 3, "arrival_gap": 1, "deadline": 1, "signal_age": 1}
    return BufferLayout(rows, sizes, hidden=() if full else (*REPORTED_FIELDS, "signal_age"))
