"""The observations of both environments: their fields, and how the kernels write them (DESIGN 4)."""

from __future__ import annotations

from typing import Any

from routing_gym.cloud_edge.evaluator import new_work
from routing_gym.cloud_edge.state import LEGAL, LOSS, Arrays
from routing_gym.common.buffer import BufferLayout, block_size
from routing_gym.common.jit import njit

REQUEST_FIELDS = ("active", "input_tokens", "predicted_output_tokens")
PAIR_FIELDS = ("quality", "cluster_error", "cost", "energy", "infer_s", "transfer_s", "legal")
DESTINATION_FIELDS = ("backlog_s", "speedup", "is_cloud", "token_price", "outstanding")


def batch_fields(slots: int, destinations: int) -> dict[str, int]:
    """Return the fields of a batch observation and their sizes, in the order of the buffer."""
    return (
        dict.fromkeys(REQUEST_FIELDS, slots)
        | dict.fromkeys(PAIR_FIELDS, slots * destinations)
        | dict.fromkeys(DESTINATION_FIELDS, destinations)
        | {"weights": 4}
    )


def request_fields(destinations: int) -> dict[str, int]:
    """Return the fields of a request observation and their sizes, in the order of the buffer."""
    return (
        dict.fromkeys(PAIR_FIELDS, destinations)
        | dict.fromkeys((*DESTINATION_FIELDS, "provisional_load_s"), destinations)
        | {"input_tokens": 1, "predicted_output_tokens": 1, "remaining": 1, "term_range": 4, "weights": 4}
    )


def batch_layout(rows: int, slots: int, destinations: int) -> BufferLayout:
    """Return the layout of batch observations."""
    return BufferLayout(rows, batch_fields(slots, destinations))


def request_layout(rows: int, destinations: int) -> BufferLayout:
    """Return the layout of request observations."""
    return BufferLayout(rows, request_fields(destinations))


@njit
def _write_pairs(observation: Any, first: int, block: int, table: Any) -> None:
    """Write a request's seven rows of pairs, a block apart, from its planes (PLANES, M)."""
    for d in range(table.shape[1]):
        observation[first + d] = 1.0 - table[LOSS, d]
    for field in range(1, len(PAIR_FIELDS)):
        k = first + field * block
        for d in range(table.shape[1]):
            observation[k + d] = table[field, d]


@njit
def _write_destinations(observation: Any, first: int, block: int, destinations: Any) -> None:
    """Write the five fields of all destinations, a block apart."""
    for d in range(len(destinations)):
        destination = destinations[d]
        k = first + d
        observation[k] = destination.shown
        observation[k + block] = destination.speedup
        observation[k + 2 * block] = destination.is_cloud
        observation[k + 3 * block] = destination.token_price
        # In the middle of a walk, what has been assigned counts as sent.
        observation[k + 4 * block] = destination.outstanding + destination.assigned


@njit
def observe_batch(s: Arrays, e: int, observation: Any) -> None:
    """Write row `e`'s observation of its batch."""
    row = s.rows[e]
    row_count, count = s.slots.shape
    width = s.destinations.shape[1]
    block = block_size(row_count, count)
    first = e * count
    for i in range(count):
        active = i < row.batch
        observation[first + i] = active
        observation[first + i + block] = 0.0
        observation[first + i + 2 * block] = 0.0
        if active:
            request = s.requests[e, s.slots[e, i].request]
            observation[first + i + block] = request.input
            observation[first + i + 2 * block] = request.predicted_output
    end = 3 * block
    block = block_size(row_count, count * width)
    first = end + e * count * width
    for i in range(row.batch):
        _write_pairs(observation, first + i * width, block, s.tables[e, i])
    for field in range(7):
        for k in range(row.batch * width, count * width):
            observation[first + field * block + k] = 0.0
    for i in range(row.batch, count):
        observation[first + 6 * block + i * width] = 1.0
    end += 7 * block
    block = block_size(row_count, width)
    _write_destinations(observation, end + e * width, block, s.destinations[e])
    end += 5 * block
    for k in range(4):
        observation[end + 4 * e + k] = row.weights[k]


@njit
def observe_request(s: Arrays, e: int, observation: Any) -> None:
    """Write row `e`'s observation of the request at its position; zeros and a full mask at the end."""
    row = s.rows[e]
    row_count, width = s.destinations.shape
    block = block_size(row_count, width)
    first = e * width
    i = s.slots[e, row.position].order
    if row.batch:
        _write_pairs(observation, first, block, s.tables[e, i])
    else:
        for field in range(len(PAIR_FIELDS)):
            for d in range(width):
                observation[first + field * block + d] = 1.0 if field == LEGAL else 0.0
    for d in range(width):
        destination = s.destinations[e, d]
        added = new_work(destination.predicted_longest, destination.predicted_work, destination.speedup)
        observation[first + 12 * block + d] = destination.shown + added
    _write_destinations(observation, 7 * block + first, block, s.destinations[e])
    end = 13 * block
    block = block_size(row_count, 1)
    observation[end + e] = observation[end + e + block] = 0.0
    if row.batch:
        request = s.requests[e, s.slots[e, i].request]
        observation[end + e] = request.input
        observation[end + e + block] = request.predicted_output
    observation[end + e + 2 * block] = row.batch - row.position
    end += 3 * block
    block = block_size(row_count, 4)
    for k in range(4):
        observation[end + 4 * e + k] = row.bounds[0, k, 1] - row.bounds[0, k, 0]
        observation[end + 4 * e + k + block] = row.weights[k]
