"""What an assignment of a batch is worth: the four terms, their bounds, and J (DESIGN 4).

`pair_parts` and `finish_time` are the physics, written once: the environment's kernel and every router
that searches call them. A batch's tables are made once; assignments are then scored one or many at a time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from routing_gym.common.jit import njit

Floats = NDArray[np.float64]
BYTES_PER_TOKEN = 4.0


class BatchTables(NamedTuple):
    """A batch of R requests, in the order in which they are dispatched, against M destinations.

    All arrays are C-contiguous; those of pairs have shape (R, M), those of destinations (M,).
    """

    loss: Floats  # 1 - q
    cost: Floats  # USD
    energy: Floats  # J
    infer: Floats  # T_infer, s
    transfer: Floats  # T_trans, s
    legal: NDArray[np.bool_]
    backlog: Floats  # B_d, s
    speedup: Floats  # S_d = FB_d / F1_d
    weights: Floats  # ω, (4,), in the order of `rewards.CLOUD_EDGE_TERMS`

    @classmethod
    def from_observation(cls, observation: Mapping[str, NDArray[Any]]) -> BatchTables:
        """Read the tables from one observation of `CloudEdgeBatch` (no leading axes), active slots only."""
        active = np.asarray(observation["active"]) > 0
        backlog = np.asarray(observation["backlog_s"], np.float64)
        count = int(active.sum())

        def pairs(name: str) -> Floats:
            table = np.asarray(observation[name]).reshape(len(active), len(backlog))
            return np.ascontiguousarray(table[:count], np.float64)

        return cls(
            1.0 - pairs("quality"),
            pairs("cost"),
            pairs("energy"),
            pairs("infer_s"),
            pairs("transfer_s"),
            pairs("legal") > 0,
            backlog,
            np.asarray(observation["speedup"], np.float64),
            np.asarray(observation["weights"], np.float64),
        )


class FinishParts(NamedTuple):
    """When each request finishes and of what that is made, s after dispatch; arrays (R,).

    `finish = infer + transfer + queue` (source, eq. 4).
    """

    infer: Floats
    transfer: Floats
    queue: Floats
    finish: Floats


@njit
def pair_parts(destination: Any, input_tokens: float, output_tokens: float, rtt_s: float) -> Any:
    """Return T_infer (s), T_trans (s), C (USD) and E (J) of one request at one destination.

    Args:
        destination: a record with the fields of `catalogue.PHYSICS`.
        input_tokens: n_in.
        output_tokens: n_out.
        rtt_s: the path's round-trip time now.
    """
    infer = input_tokens * destination.prefill_s + output_tokens * destination.decode_s
    up = input_tokens * destination.up_s
    down = output_tokens * destination.down_s
    cost = input_tokens * destination.price_in + output_tokens * destination.price_out + destination.fee
    cost += (input_tokens + output_tokens) * destination.price_traffic
    energy = infer * destination.power_w + up * destination.transmit_w + down * destination.receive_w
    return infer, rtt_s + up + down, cost, energy


@njit
def finish_time(backlog: float, work: float, speedup: float, infer: float, transfer: float) -> float:
    """Return finish(r) = B + max(T_infer, ΣT/S) + T_trans, s; `work` is ΣT up to r and with it."""
    return backlog + max(infer, work / speedup) + transfer


@njit
def new_work(longest: float, work: float, speedup: float) -> float:
    """Return what a dispatch adds to a destination's backlog: max(max T_infer, ΣT/S), s."""
    return max(longest, work / speedup)


@njit
def term_bounds(tables: BatchTables) -> Floats:
    """Return the fixed bounds (4, 2) of the terms: lo and hi over legal pairs, without backlog.

    No router can move them, not by its past either. Zeros for an empty batch.
    """
    bounds = np.empty((4, 2))
    write_bounds(tables, bounds)
    return bounds


@njit
def write_bounds(tables: BatchTables, bounds: Floats) -> None:
    """Write what `term_bounds` returns."""
    count, width = tables.infer.shape
    bounds[:] = 0.0
    if count == 0:
        return
    for r in range(count):
        loss_lo = cost_lo = energy_lo = direct_lo = np.inf
        loss_hi = cost_hi = energy_hi = -np.inf
        for d in range(width):
            if tables.legal[r, d]:
                loss_lo = min(loss_lo, tables.loss[r, d])
                loss_hi = max(loss_hi, tables.loss[r, d])
                cost_lo = min(cost_lo, tables.cost[r, d])
                cost_hi = max(cost_hi, tables.cost[r, d])
                energy_lo = min(energy_lo, tables.energy[r, d])
                energy_hi = max(energy_hi, tables.energy[r, d])
                direct_lo = min(direct_lo, tables.infer[r, d] + tables.transfer[r, d])
        bounds[0, 0] += loss_lo
        bounds[0, 1] += loss_hi
        bounds[1, 0] += cost_lo
        bounds[1, 1] += cost_hi
        bounds[2, 0] += energy_lo
        bounds[2, 1] += energy_hi
        bounds[3, 0] = max(bounds[3, 0], direct_lo)
    bounds[0, 0] /= count
    bounds[0, 1] /= count
    for d in range(width):
        work = longest = furthest = 0.0
        for r in range(count):
            if tables.legal[r, d]:
                work += tables.infer[r, d]
                longest = max(longest, tables.infer[r, d])
                furthest = max(furthest, tables.transfer[r, d])
        bounds[3, 1] = max(bounds[3, 1], new_work(longest, work, tables.speedup[d]) + furthest)


@njit
def assignment_terms(tables: BatchTables, assignment: Any, work: Floats, terms: Floats) -> None:
    """Write Q, C, E and T of an assignment (R,) into `terms` (4,); `work` (M,) is scratch."""
    work[:] = 0.0
    terms[:] = 0.0
    count = len(tables.infer)
    for r in range(count):
        d = assignment[r]
        infer = tables.infer[r, d]
        work[d] += infer
        terms[0] += tables.loss[r, d]
        terms[1] += tables.cost[r, d]
        terms[2] += tables.energy[r, d]
        finish = finish_time(tables.backlog[d], work[d], tables.speedup[d], infer, tables.transfer[r, d])
        terms[3] = max(terms[3], finish)
    if count:
        terms[0] /= count


@njit
def population_terms(tables: BatchTables, assignments: Any) -> Floats:
    """Return Q, C, E and T (P, 4) of assignments (P, R)."""
    terms = np.empty((len(assignments), 4))
    work = np.empty(len(tables.backlog))
    for p in range(len(assignments)):
        assignment_terms(tables, assignments[p], work, terms[p])
    return terms


@njit
def objective(terms: Floats, bounds: Floats, weights: Floats) -> float:
    """Return J = Σ ω · (term - lo)/(hi - lo); a term whose bounds coincide counts 0."""
    value = 0.0
    for k in range(4):
        width = bounds[k, 1] - bounds[k, 0]
        if width > 0.0:
            value += weights[k] * (terms[k] - bounds[k, 0]) / width
    return value


def normalise(terms: Floats, bounds: Floats) -> Floats:
    """Return terms (…, 4) within bounds (…, 4, 2): 0 at lo, 1 at hi, 0 where the bounds coincide."""
    low, width = bounds[..., 0], bounds[..., 1] - bounds[..., 0]
    return np.where(width > 0.0, (terms - low) / np.where(width > 0.0, width, 1.0), 0.0)


class BatchEvaluator:
    """Scores whole assignments of one batch.

    Attributes:
        tables: the batch.
        bounds: (4, 2), lo and hi of each term.
    """

    def __init__(self, tables: BatchTables) -> None:
        """Work out the bounds.

        Raises:
            ValueError: arrays that do not fit together, numbers that are not finite or negative where they
                must not be, or a request without a legal destination.
        """
        shape = tables.infer.shape
        for name in ("loss", "cost", "energy", "transfer", "legal"):
            if getattr(tables, name).shape != shape:
                raise ValueError(f"{name} has shape {getattr(tables, name).shape}; infer has {shape}")
        for name, needed in (("backlog", shape[1:]), ("speedup", shape[1:]), ("weights", (4,))):
            if getattr(tables, name).shape != needed:
                raise ValueError(f"{name} has shape {getattr(tables, name).shape}; it must be {needed}")
        if tables.legal.dtype != np.bool_:
            raise ValueError(f"legal has type {tables.legal.dtype}; it must be bool")
        for name in ("loss", "cost", "energy", "infer", "transfer"):
            _check_numbers(name, getattr(tables, name)[tables.legal])
        for name in ("backlog", "speedup", "weights"):
            _check_numbers(name, getattr(tables, name))
        if not (tables.speedup > 0).all():
            raise ValueError(f"speedup = {tables.speedup.min():g}: must be above 0")
        nowhere = np.flatnonzero(~tables.legal.any(axis=1))
        if len(nowhere):
            raise ValueError(f"legal: request {nowhere[0]} has no legal destination")
        self.tables = tables
        self.bounds = term_bounds(tables)

    def terms(self, assignments: Any) -> Floats:
        """Return Q (mean loss), C (USD), E (J) and T (s), shape (…, 4), of assignments (…, R).

        Raises:
            ValueError: another number of requests, or a destination that is unknown or not legal.
        """
        choices = self._checked(assignments)
        lead, count = choices.shape[:-1], choices.shape[-1]
        flat = choices.reshape(math.prod(lead), count)  # -1 is ambiguous for an empty batch
        return population_terms(self.tables, flat).reshape(*lead, 4)

    def objective(self, assignments: Any) -> Floats:
        """Return J, shape (…,), of assignments (…, R); raises as `terms`."""
        return normalise(self.terms(assignments), self.bounds) @ self.tables.weights

    def finish_parts(self, assignment: Any) -> FinishParts:
        """Return when each request of an assignment (R,) finishes, and its parts; raises as `terms`."""
        choices = self._checked_one(assignment)
        rows = np.arange(len(choices))
        infer, transfer = self.tables.infer[rows, choices], self.tables.transfer[rows, choices]
        work = np.zeros(len(self.tables.backlog))
        finish = np.empty(len(choices))
        for r, d in enumerate(choices.tolist()):
            work[d] += infer[r]
            finish[r] = finish_time(
                self.tables.backlog[d], work[d], self.tables.speedup[d], infer[r], transfer[r]
            )
        return FinishParts(infer, transfer, finish - infer - transfer, finish)

    def new_work(self, assignment: Any) -> Floats:
        """Return new_d, what an assignment (R,) adds to the backlogs, s (M,); raises as `terms`."""
        choices = self._checked_one(assignment)
        infer = self.tables.infer[np.arange(len(choices)), choices]
        work, longest = np.zeros(len(self.tables.backlog)), np.zeros(len(self.tables.backlog))
        np.add.at(work, choices, infer)
        np.maximum.at(longest, choices, infer)
        return np.maximum(longest, work / self.tables.speedup)

    def _checked_one(self, assignment: Any) -> NDArray[np.int64]:
        choices = self._checked(assignment)
        if choices.ndim > 1:
            raise ValueError(f"assignment has shape {choices.shape}; it must be {choices.shape[-1:]}")
        return choices

    def _checked(self, assignments: Any) -> NDArray[np.int64]:
        choices = np.asarray(assignments)
        count, width = self.tables.infer.shape
        if choices.ndim == 0 or choices.shape[-1] != count or (count and choices.dtype.kind not in "iu"):
            raise ValueError(
                f"assignments have shape {choices.shape} and type {choices.dtype}; they must be whole "
                f"numbers of shape (…, {count})"
            )
        choices = choices.astype(np.int64)
        outside = (choices < 0) | (choices >= width)
        if outside.any():
            where = tuple(int(k) for k in np.argwhere(outside)[0])
            raise ValueError(f"assignments{list(where)} = {choices[where]}: must be from 0 to {width - 1}")
        illegal = ~self.tables.legal[np.arange(count), choices]
        if illegal.any():
            where = tuple(int(k) for k in np.argwhere(illegal)[0])
            raise ValueError(
                f"assignments{list(where)} = {choices[where]}: is not legal for request {where[-1]}"
            )
        return choices


def _check_numbers(name: str, values: Floats) -> None:
    wrong = values[~(np.isfinite(values) & (values >= 0))]
    if len(wrong):
        raise ValueError(f"{name} has {wrong[0]:g}; all of it must be finite and not negative")


def cross_router_objective(terms: Floats, weights: Sequence[float]) -> Floats:
    """Return the source's J, for tables only: min–max over the compared routers per batch (eq. 6), averaged.

    It changes when a router joins or leaves, so it is never a reward.

    Args:
        terms: (routers, batches, 4), raw Q, C, E, T.
        weights: ω, (4,).

    Returns:
        (routers,), the mean over batches; NaN of no batch. A term in which all routers agree counts 0.
    """
    if terms.shape[1] == 0:
        return np.full(len(terms), np.nan)
    bounds = np.stack((terms.min(axis=0), terms.max(axis=0)), axis=-1)
    return (normalise(terms, bounds) @ np.asarray(weights, np.float64)).mean(axis=1)
