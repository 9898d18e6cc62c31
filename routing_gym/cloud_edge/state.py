"""The state of cloud–edge episodes as structured arrays: the dtypes below are the schema of the kernels.

One row is one episode. `rows[e]` holds what is single in it, `destinations[e, d]` each destination,
`requests[e, r]` the workload and what became of it, in order of arrival, `pairs[e, r, k]` what model k makes
of request r, `paths[e, w, d]` the surroundings of each window, `windows[e, w]` what came of it, and
`slots[e, i]` and `tables[e]` the batch to be assigned.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from routing_gym.cloud_edge.catalogue import PHYSICS
from routing_gym.cloud_edge.config import CloudEdgeConfig
from routing_gym.cloud_edge.contents import Contents
from routing_gym.cloud_edge.workload import Arrivals, Surroundings, Workload
from routing_gym.common.jit import njit

NONE = -1  # no request, no window, no destination

ROW = np.dtype(
    [
        # settings
        ("window_s", "f8"),
        ("weights", "f8", (4,)),
        ("window_count", "i4"),
        ("max_requests", "i4"),
        ("on_actual", "i1"),  # whether the reward is what happened
        ("credit", "i1"),  # whether a request pays its part at once
        # interface
        ("command", "i1"),
        ("done", "i1"),
        ("action", "i4"),  # of a request environment; a batch environment's are in `slots`
        ("reward", "f8"),
        ("terms", "f8", (4,)),  # of the step just taken: minus the normalised terms
        # progress
        ("window", "i4"),  # whose batch is to be dispatched, at its end
        ("batch", "i4"),  # requests in it
        ("position", "i4"),  # of the walk of a request environment
        ("request_count", "i4"),
        ("next_request", "i4"),  # the first that has not arrived
        ("first_waiting", "i4"),  # none before it waits
        ("in_flight", "i4"),  # requests that have been sent and have not finished
        ("invalid_actions", "i4"),
        ("bounds", "f8", (2, 4, 2)),  # of the predicted and the actual tables
        ("credited", "f8", (4,)),  # normalised terms that the batch's requests have paid
        ("makespan", "f8"),  # of those requests, s
    ],
    align=True,
)

# What an observation looks at, apart from PHYSICS: at each decision all of it is fetched.
DESTINATION = np.dtype(
    [
        ("speedup", "f8"),  # these four are copies of PHYSICS
        ("token_price", "f8"),
        ("model", "i4"),
        ("is_cloud", "i1"),
        ("shown", "f8"),  # the monitor's backlog, on predicted durations, s
        ("backlog", "f8"),  # B_d on actual durations, s
        ("outstanding", "i4"),
        # of the batch: Σ T_infer and max T_infer of what is assigned, predicted and actual
        ("assigned", "i4"),
        ("predicted_work", "f8"),
        ("predicted_longest", "f8"),
        ("work", "f8"),
        ("longest", "f8"),
    ],
    align=True,
)

REQUEST = np.dtype(
    [
        ("arrival", "f8"),
        ("finish", "f8"),  # s after dispatch
        ("predicted_finish", "f8"),
        ("input", "f8"),
        ("predicted_output", "f8"),
        ("window", "i4"),  # at whose end it was dispatched; NONE before
        ("destination", "i4"),
        ("edge_only", "i1"),
        ("set_aside", "i1"),  # had no legal destination at some dispatch
        ("invalid", "i1"),  # was given an illegal destination
    ],
    align=True,
)

PAIR = np.dtype(
    [
        ("quality", "f4"),
        ("predicted_quality", "f4"),
        ("cluster_error", "f4"),
        ("output", "f4"),
        ("predicted_output", "f4"),
    ],
    align=True,
)

PATH = np.dtype([("rtt_s", "f8"), ("up", "i1")], align=True)

WINDOW = np.dtype(
    [
        ("requests", "i4"),
        ("terms", "f8", (4,)),  # raw, actual
        ("objective", "f8"),  # J on the actual tables
        ("objective_predicted", "f8"),
        ("backlog", "f8"),  # Σ B_d after the dispatch
        ("largest_backlog", "f8"),
    ],
    align=True,
)

IN_FLIGHT = np.dtype([("until", "f8"), ("destination", "i4")], align=True)

SLOT = np.dtype([("request", "i4"), ("choice", "i4"), ("order", "i4")], align=True)

# Planes of `tables`: the seven fields of pairs in an observation, in its order, with 1 - q for quality. A
# slot's planes lie together, as a request environment looks at one slot of each row at a time.
LOSS, CLUSTER_ERROR, COST, ENERGY, INFER, TRANSFER, LEGAL = range(7)
PLANES = 7


class Arrays(NamedTuple):
    """What kernels work on, each but the last with a leading axis of rows."""

    rows: NDArray[Any]  # (rows,) ROW
    destinations: NDArray[Any]  # (rows, M) DESTINATION
    physics: NDArray[Any]  # (rows, M) catalogue.PHYSICS
    requests: NDArray[Any]  # (rows, room) REQUEST, in order of arrival
    pairs: NDArray[Any]  # (rows, room, K) PAIR
    paths: NDArray[Any]  # (rows, room, M) PATH, by window
    windows: NDArray[Any]  # (rows, room) WINDOW
    in_flight: NDArray[Any]  # (rows, room) IN_FLIGHT, in no order
    slots: NDArray[Any]  # (rows, R_max) SLOT
    tables: NDArray[Any]  # (rows, R_max, PLANES, M) float64
    scratch: NDArray[Any]  # (R_max, PLANES, M) float64: one row's actual tables, while its bounds are made


class CloudEdgeState:
    """The arrays of a number of episodes with equally many destinations and slots."""

    def __init__(
        self, rows: int, destinations: int, slots: int, requests: float = 0.0, models: int = 1
    ) -> None:
        """Allocate `rows` empty episodes with room for about `requests` each; there is more where needed."""
        room = int(1.1 * requests)
        self.rows = np.zeros(rows, ROW)
        self.destinations = np.zeros((rows, destinations), DESTINATION)
        self.physics = np.zeros((rows, destinations), PHYSICS)
        self.requests = np.zeros((rows, room), REQUEST)
        self.pairs = np.zeros((rows, room, models), PAIR)
        self.paths = np.zeros((rows, 0, destinations), PATH)
        self.windows = np.zeros((rows, 0), WINDOW)
        self.in_flight = np.zeros((rows, room), IN_FLIGHT)
        self.slots = np.zeros((rows, slots), SLOT)
        self.tables = np.zeros((rows, slots, PLANES, destinations))
        self.scratch = np.zeros((slots, PLANES, destinations))
        self.tables[:, :, LEGAL, 0] = 1.0  # a mask is never all false, not even before the first episode

    @property
    def arguments(self) -> Arrays:
        """The arrays as kernels take them; made anew where `load` may have moved them."""
        return Arrays(*(getattr(self, name) for name in Arrays._fields))

    def load(
        self,
        e: int,
        config: CloudEdgeConfig,
        workload: Workload,
        arrivals: Arrivals,
        surroundings: Surroundings,
    ) -> None:
        """Put a fresh episode into row `e`, before its first window."""
        count, models = len(arrivals.arrival_s), arrivals.contents.quality.shape[1]
        self.requests = _with_room(self.requests, (count,))
        self.pairs = _with_room(self.pairs, (count, models))
        self.in_flight = _with_room(self.in_flight, (count,))
        self.paths = _with_room(self.paths, (config.windows, len(config.destinations)))
        self.windows = _with_room(self.windows, (config.windows,))

        row = np.zeros((), ROW)
        row["window_s"] = config.window_s
        row["weights"] = config.weights
        row["window_count"] = config.windows
        row["max_requests"] = config.max_requests
        row["on_actual"] = config.reward_on == "actual"
        row["credit"] = config.credit == "decision"
        row["window"] = NONE
        row["request_count"] = count
        self.rows[e] = row

        destinations = self.destinations[e]
        destinations[:] = np.zeros((), DESTINATION)
        for name in ("speedup", "token_price", "model", "is_cloud"):
            destinations[name] = workload.physics[name]
        self.physics[e] = workload.physics
        self.windows[e] = np.zeros((), WINDOW)
        self.paths["rtt_s"][e, : config.windows] = surroundings.rtt_s
        self.paths["up"][e, : config.windows] = surroundings.up
        _fill(self.requests[e], self.pairs[e], arrivals.arrival_s, arrivals.edge_only, arrivals.contents)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return copies of all arrays, from which `restore` goes on."""
        return {name: getattr(self, name).copy() for name in Arrays._fields}

    def restore(self, arrays: dict[str, NDArray[Any]]) -> None:
        """Take over copies of arrays made by `arrays`.

        Raises:
            ValueError: they are of another number of rows, slots or destinations, which the kernel would not
                notice, or of another version.
        """
        shape, needed = arrays["tables"].shape, self.tables.shape
        if shape != needed:
            raise ValueError(
                f"the state has (rows, slots, destinations) = {(*shape[:2], shape[3])}; this environment has "
                f"{(*needed[:2], needed[3])}"
            )
        if arrays["rows"].dtype != ROW:
            raise ValueError("the state was saved by another version: its rows have other fields")
        for name in Arrays._fields:
            setattr(self, name, arrays[name].copy())


@njit
def _fill(
    requests: Any,
    pairs: Any,
    arrival: NDArray[np.float64],
    edge_only: NDArray[np.bool_],
    contents: Contents,
) -> None:
    """Write the workload record by record: field by field, each record would be fetched many times."""
    by_model = contents.predicted_by_model.size > 0
    for r in range(len(arrival)):
        request = requests[r]
        request.arrival = arrival[r]
        request.finish = request.predicted_finish = 0.0
        request.input = contents.input_tokens[r]
        request.predicted_output = contents.predicted_output_tokens[r]
        request.window = request.destination = NONE
        request.edge_only = edge_only[r]
        request.set_aside = request.invalid = 0
        for k in range(contents.quality.shape[1]):
            pair = pairs[r, k]
            pair.quality = contents.quality[r, k]
            pair.predicted_quality = contents.predicted_quality[r, k]
            pair.cluster_error = contents.cluster_error[r, k]
            pair.output = contents.output_tokens[r, k]
            if by_model:
                pair.predicted_output = contents.predicted_by_model[r, k]
            else:
                pair.predicted_output = contents.predicted_output_tokens[r]


def _with_room(array: NDArray[Any], needed: tuple[int, ...]) -> NDArray[Any]:
    """Return the array with room for `needed` entries per row, behind the axis of rows.

    The first of these axes grows by a quarter at least, so that longer episodes seldom move all rows.
    """
    shape = array.shape[1:]
    if all(have >= want for have, want in zip(shape, needed, strict=True)):
        return array
    first = shape[0] if needed[0] <= shape[0] else max(needed[0], 5 * shape[0] // 4)
    wanted = (first, *(max(pair) for pair in zip(shape[1:], needed[1:], strict=True)))
    larger = np.zeros((array.shape[0], *wanted), array.dtype)
    larger[tuple(slice(size) for size in array.shape)] = array
    return larger
