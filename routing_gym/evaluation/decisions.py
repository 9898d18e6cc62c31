"""What each decision of a batch router took, and how near to the optimum it came (DESIGN 4, 6)."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from routing_gym.cloud_edge.evaluator import BatchEvaluator, BatchTables, Floats
from routing_gym.common.percentiles import nearest_rank
from routing_gym.policy import Policy, make_policy

SOLVER = "cloud_edge/optimal"
PROVEN = "optimal"
DECISION_METRICS = ("gap", "bound", "unproven_windows", "decision_ms_median", "decision_ms_p99")

Observation = Mapping[str, NDArray[Any]]
# Decides once on an observation and its masks, so that a decision after it compiles nothing.
Rehearsal = Callable[[Observation, Any], None]


def missing_solver() -> str | None:
    """Return what keeps bounds from being proven here; None if nothing does."""
    try:
        make_policy(SOLVER)
    except ImportError as error:
        if error.name != "highspy":  # something else is broken
            raise
        return str(error)
    return None


class Bounds:
    """Proven lower bounds of J, each batch solved once, whichever routers meet it."""

    def __init__(self) -> None:
        """Make the solver.

        Raises:
            ImportError: what it needs is not installed.
        """
        self._solver = make_policy(SOLVER)
        self._known: dict[bytes, Mapping[str, Any]] = {}

    def of(
        self, tables: BatchTables, observation: Observation, found: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        """Return `bound` and `status` of a batch.

        Args:
            tables: the batch.
            observation: what it was read from, with a leading axis of one row.
            found: the diagnostics of a router that has just assigned it; if it proved a bound, that is it.
        """
        key = b"".join([np.array(tables.infer.shape).tobytes(), *(part.tobytes() for part in tables)])
        if "bound" in found:
            # A bound from a search cut short may be better for a solver that takes its time.
            if found["status"] == PROVEN:
                self._known[key] = found
            return found
        if key not in self._known:
            self._solver.predict(observation, self._solver.initial_state([0]))
            self._known[key] = self._solver.diagnostics()[0]
        return self._known[key]


class DecisionLog:
    """Asks a policy for the decisions of one episode and keeps what they took, one entry per window.

    Empty windows are kept as zeros, since nothing is decided in them.
    """

    def __init__(self, policy: Policy, bounds: Bounds | None, rehearse: Rehearsal | None = None) -> None:
        """Watch `policy`; without `bounds`, no gap is worked out. `rehearse` precedes the first decision."""
        self._policy = policy
        self._rehearse = rehearse
        self._bounds = bounds
        self._seconds: list[float] = []
        self._gap: list[float] = []
        self._bound: list[float] = []
        self._unproven = 0
        self._decided: list[bool] = []
        self._convergence: list[list[float]] | None = None

    def predict(
        self, observation: Observation, state: Any, episode_start: Any, action_masks: Any
    ) -> tuple[NDArray[np.int64], Any]:
        """Choose the one row's actions; see `Policy.predict`."""
        tables = BatchTables.from_observation({name: values[0] for name, values in observation.items()})
        count = len(tables.infer)
        if count and self._rehearse:
            self._rehearse(observation, action_masks)
            self._rehearse = None
        begun = time.perf_counter()
        actions, state = self._policy.predict(observation, state, episode_start, action_masks=action_masks)
        seconds = time.perf_counter() - begun
        self._decided.append(count > 0)
        self._seconds.append(seconds if count else 0.0)
        found = next(iter(self._policy.diagnostics()), {}) if count else {}
        if count and self._convergence is None:
            self._convergence = np.asarray(found.get("convergence", ())).tolist()
        bound = gap = 0.0
        if count and self._bounds:
            proof = self._bounds.of(tables, observation, found)
            taken = legal_choices(np.asarray(actions)[0, :count], tables.legal)
            bound = float(proof["bound"])
            gap = float(BatchEvaluator(tables).objective(taken)) - bound
            self._unproven += proof["status"] != PROVEN
        self._bound.append(bound)
        self._gap.append(gap)
        return actions, state

    def metrics(self) -> dict[str, Any]:
        """Return `gap` and `bound`, means over batches, `unproven_windows`, and the decisions' times.

        None where undefined: without batches, or without bounds.
        """
        decided = np.array(self._decided, bool)
        known = self._bounds is not None and decided.any()
        return {
            "gap": float(np.array(self._gap)[decided].mean()) if known else None,
            "bound": float(np.array(self._bound)[decided].mean()) if known else None,
            "unproven_windows": self._unproven if self._bounds else None,
            **decision_percentiles(1000.0 * np.array(self._seconds)[decided]),
        }

    def curves(self) -> dict[str, list[Any]]:
        """Return `decision_ms` and, where known, `bound` per window, and `convergence` of the first batch."""
        milliseconds = [round(1000.0 * seconds, 4) for seconds in self._seconds]
        kept: dict[str, list[Any]] = {"decision_ms": milliseconds}
        if self._bounds:
            kept["bound"] = self._bound
        if self._convergence:
            kept["convergence"] = self._convergence
        return kept


def decision_percentiles(milliseconds: Floats) -> dict[str, float | None]:
    """Return the median and the nearest-rank p99 of decision times (n,); None of none."""
    if not len(milliseconds):
        return {"decision_ms_median": None, "decision_ms_p99": None}
    return {
        "decision_ms_median": float(np.median(milliseconds)),
        "decision_ms_p99": nearest_rank(np.sort(milliseconds), 99, len(milliseconds)),
    }


def legal_choices(choices: NDArray[np.int64], legal: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return where the environment sends requests: an illegal choice goes to the next legal destination.

    Args:
        choices: (R,), destinations.
        legal: (R, M); every request has a legal destination.
    """
    width = legal.shape[1]
    cyclic = (choices[:, None] + np.arange(width)) % width
    first = np.take_along_axis(legal, cyclic, axis=1).argmax(axis=1)
    return (choices + first) % width
