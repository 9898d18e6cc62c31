"""The observations of both environments: their fields, and how the kernels write them (DESIGN 4)."""

from __future__ import annotations

from typing import Any

from routing_gym.cloud_edge.evaluator import new_work
from routing_gym.cloud_edge.state import LEGAL, LOSS, Arrays
from routing_gym.common.buffer import BufferLayout, block_size
from routing_gym.common.commands import SKIP
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
def observe_batches(s: Arrays, first_row: int, last_row: int, observation: Any) -> None:
    """Write the observations of some rows' batches, all but those to SKIP.

    A loop over rows, as each call hands over a hundred numbers that describe the arrays.
    """
    row_count, count = s.slots.shape
    width = s.destinations.shape[1]
    requests_end = 3 * block_size(row_count, count)
    pairs_end = requests_end + len(PAIR_FIELDS) * block_size(row_count, count * width)
    destinations_end = pairs_end + len(DESTINATION_FIELDS) * block_size(row_count, width)
    for e in range(first_row, last_row):
        row = s.rows[e]
        if row.command == SKIP:
            continue
        block = block_size(row_count, count)
        for i in range(count):
            k = e * count + i
            active = i < row.batch
            observation[k] = active
            observation[k + block] = observation[k + 2 * block] = 0.0
            if active:
                request = s.requests[e, s.slots[e, i].request]
                observation[k + block] = request.input
                observation[k + 2 * block] = request.predicted_output
        block = block_size(row_count, count * width)
        first = requests_end + e * count * width
        for i in range(row.batch):
            _write_pairs(observation, first + i * width, block, s.tables[e, i])
        for field in range(len(PAIR_FIELDS)):
            for k in range(row.batch * width, count * width):
                observation[first + field * block + k] = 0.0
        for i in range(row.batch, count):
            observation[first + LEGAL * block + i * width] = 1.0
        _write_destinations(
            observation, pairs_end + e * width, block_size(row_count, width), s.destinations[e]
        )
        for k in range(4):
            observation[destinations_end + 4 * e + k] = row.weights[k]


@njit
def observe_requests(s: Arrays, first_row: int, last_row: int, observation: Any) -> None:
    """Write the observations of some rows' requests at their positions, all but those to SKIP.

    At an episode's end they are zeros and a full mask.
    """
    row_count, width = s.destinations.shape
    block = block_size(row_count, width)
    singles = (len(PAIR_FIELDS) + len(DESTINATION_FIELDS) + 1) * block
    single = block_size(row_count, 1)
    fours, four = singles + 3 * single, block_size(row_count, 4)
    for e in range(first_row, last_row):
        row = s.rows[e]
        if row.command == SKIP:
            continue
        first = e * width
        i = s.slots[e, row.position].order
        observation[singles + e] = observation[singles + e + single] = 0.0
        observation[singles + e + 2 * single] = row.batch - row.position
        if row.batch:
            _write_pairs(observation, first, block, s.tables[e, i])
            request = s.requests[e, s.slots[e, i].request]
            observation[singles + e] = request.input
            observation[singles + e + single] = request.predicted_output
        else:
            for field in range(len(PAIR_FIELDS)):
                for d in range(width):
                    observation[first + field * block + d] = field == LEGAL
        first += len(PAIR_FIELDS) * block
        _write_destinations(observation, first, block, s.destinations[e])
        first += len(DESTINATION_FIELDS) * block
        for d in range(width):
            destination = s.destinations[e, d]
            added = new_work(destination.predicted_longest, destination.predicted_work, destination.speedup)
            observation[first + d] = destination.shown + added
        for k in range(4):
            # Quality loss is a mean over requests; a step adds to their sum.
            parts = row.batch if k == 0 else 1
            observation[fours + 4 * e + k] = parts * (row.bounds[0, k, 1] - row.bounds[0, k, 0])
            observation[fours + 4 * e + k + four] = row.weights[k]
