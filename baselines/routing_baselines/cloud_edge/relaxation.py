"""A lower bound of J in well under a millisecond: one cap on the completion time, no queues.

Given T, J is a sum over requests of what each pair costs, plus what T costs. If nothing finishes after a cap
C, then no request is on a destination where it would finish after C even without a queue; so

    J >= Σ_r min over d with B_d + T_infer + T_trans <= C of pair(r, d) + rate · (C − lo_T)   for C <= T < C',

where C' is the next finish time without a queue. The least of that over all C bounds every assignment from
below. With one pair fixed, the same sum bounds every assignment that uses the pair.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from routing_gym.cloud_edge.evaluator import BatchTables, Floats, finish_time
from routing_gym.common.jit import njit


class Relaxation(NamedTuple):
    """J of an assignment is the sum of `pair` over its pairs, plus `rate` · (T − `origin`).

    K caps are kept, those at which the cheapest usable pair of some request changes.
    """

    pair: Floats  # (R, M), what a pair adds to J by loss, cost and energy; inf where not legal
    direct: Floats  # (R, M), B_d + T_infer + T_trans, s; inf where not legal
    rate: float  # what a second of completion time adds to J
    origin: float  # lo of the completion time, s
    caps: Floats  # (K,), ascending, s
    least: Floats  # (K, R), the cheapest usable pair of each request under each cap
    rounding: float  # by how much floating-point sums of J may differ

    @property
    def values(self) -> Floats:
        """The lower bound of J (K,) of assignments that complete between one cap and the next."""
        return self.least.sum(axis=1) + self.rate * (self.caps - self.origin)

    @property
    def bound(self) -> float:
        """The lower bound of J of every assignment."""
        return float(self.values.min()) - self.rounding

    def assignment(self) -> Any:
        """Return the cheapest usable pairs (R,) under the cap that gives the bound."""
        cap = self.caps[self.values.argmin()]
        return np.where(self.direct <= cap, self.pair, np.inf).argmin(axis=1)

    def pair_bounds(self) -> Floats:
        """Return the lower bounds of J (R, M) of assignments that use a pair; inf where not legal."""
        others = self.values[:, None] - self.least
        later = np.minimum.accumulate(others[::-1])[::-1]
        later = np.concatenate((later, np.full((1, later.shape[1]), np.inf)))
        at = np.maximum(np.searchsorted(self.caps, self.direct, side="right") - 1, 0)
        rows = np.arange(len(self.pair))[:, None]
        late = self.rate * np.maximum(np.where(np.isinf(self.pair), 0.0, self.direct) - self.caps[at], 0.0)
        return np.minimum(others[at, rows] + late, later[at + 1, rows]) + self.pair - self.rounding


def relax(tables: BatchTables, bounds: Floats) -> Relaxation:
    """Relax a batch that is not empty.

    Args:
        tables: the batch; every request has a legal destination.
        bounds: (4, 2), lo and hi of each term, as `term_bounds` gives them.
    """
    count = len(tables.infer)
    width = bounds[:, 1] - bounds[:, 0]
    scale = np.divide(tables.weights, width, out=np.zeros(4), where=width > 0.0)
    pair = np.zeros(tables.infer.shape)
    for share, table in (
        (scale[0] / count, tables.loss),
        (scale[1], tables.cost),
        (scale[2], tables.energy),
    ):
        if share:
            pair += share * (table - np.where(tables.legal, table, np.inf).min(axis=1, keepdims=True))
    pair[~tables.legal] = np.inf
    direct = _direct(tables)
    caps, least = _scan(pair, direct)
    # A sum of R terms in the order of the evaluator, and one in any other, err by at most R ulps of it each.
    size = np.abs(bounds).sum(axis=1)
    size[3] += tables.backlog.max()
    rounding = 2.0 * (count + 8) * np.finfo(np.float64).eps * float(np.abs(scale) @ size)
    return Relaxation(pair, direct, float(scale[3]), float(bounds[3, 0]), caps, least, rounding)


@njit
def _direct(tables: BatchTables) -> Floats:
    """Return when each request would finish on each destination without a queue, s (R, M)."""
    count, width = tables.infer.shape
    direct = np.full((count, width), np.inf)
    for r in range(count):
        for d in range(width):
            if tables.legal[r, d]:
                infer = tables.infer[r, d]
                direct[r, d] = finish_time(
                    tables.backlog[d], infer, tables.speedup[d], infer, tables.transfer[r, d]
                )
    return direct


@njit
def _scan(pair: Floats, direct: Floats) -> tuple[Floats, Floats]:
    """Raise the cap through all finish times; see `Relaxation.caps` and `Relaxation.least`."""
    count, width = pair.shape
    values, times = pair.ravel(), direct.ravel()
    order = np.argsort(times)
    caps = np.empty(order.size)
    least = np.empty((order.size, count))
    now = np.full(count, np.inf)
    known = reached = position = 0
    while position < order.size and times[order[position]] < np.inf:
        cap = times[order[position]]
        changed = False
        while position < order.size and times[order[position]] == cap:
            request = order[position] // width
            value = values[order[position]]
            if value < now[request]:
                reached += now[request] == np.inf
                now[request] = value
                changed = True
            position += 1
        if changed and reached == count:
            caps[known] = cap
            least[known] = now
            known += 1
    return caps[:known].copy(), least[:known].copy()
