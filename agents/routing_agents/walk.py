"""A learned router's assignment of whole batches, compiled: one request after the other (DESIGN 4, 5).

It does what `routing_gym.evaluation.sequential.Sequential` does with the router, in a single call: the
features are those of `routing_gym.cloud_edge.features`, the network is that of `routing_agents.inference`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from routing_agents.compiled import INFINITY, ONE, ZERO, Network, make_layers, make_network, write_logits
from routing_agents.inference import Sizes, Weights
from routing_gym.cloud_edge.evaluator import BatchTables, new_work, term_bounds
from routing_gym.cloud_edge.features import CONTEXT_FEATURES, PAIR_FEATURES
from routing_gym.cloud_edge.observation import DESTINATION_FIELDS, PAIR_FIELDS
from routing_gym.common.config import packaged
from routing_gym.common.features import TINY
from routing_gym.common.jit import njit

Floats = NDArray[np.float32]

(QUALITY, CLUSTER_ERROR, COST, ENERGY, INFER, TRANSFER, LEGAL) = range(len(PAIR_FIELDS))
(BACKLOG, SPEEDUP, IS_CLOUD, TOKEN_PRICE, OUTSTANDING) = range(len(DESTINATION_FIELDS))
ELEMENT, CONTEXT = len(PAIR_FEATURES), len(CONTEXT_FEATURES)


class Batches(NamedTuple):
    """Batches, one per row, as they are observed; float32. The kernel counts up what is outstanding."""

    pairs: Floats  # (rows, 7, R_max, M), by `PAIR_FIELDS`
    destinations: Floats  # (rows, 5, M), by `DESTINATION_FIELDS`
    weights: Floats  # ω, (rows, 4)
    requests: NDArray[np.int64]  # how many each batch has, (rows,)
    order: NDArray[np.int64]  # the slots in the order in which they are assigned, (rows, R_max)


class Moment(NamedTuple):
    """What one request sees: fields of its batch, and what is made of them. Arrays are C-contiguous, float32.

    Attributes:
        pairs: (7, R_max, M), of the batch.
        destinations: (5, M).
        load: provisional, s, (M,).
        weights: ω, (4,).
        ranges: of the terms over the batch, (4,).
        scales: the window (s) and R_max that features are held against, (2,).
        above: scratch, (M,): a value less the least of a legal destination.
        growth: scratch, (M,): of J.
        elements: the features of destinations, (M, 23).
        context: the other features, (1, 15).
    """

    pairs: Floats
    destinations: Floats
    load: Floats
    weights: Floats
    ranges: Floats
    scales: Floats
    above: Floats
    growth: Floats
    elements: Floats
    context: Floats


class Walk:
    """Assigns batches with a `set` network.

    Computed in float32: its logits are those of `inference.Forward` to 1e-5 where they are of order 1, and
    it chooses as that does wherever two of them are not as close. Destinations that are alike have the
    same logit, and ties go to the lowest index.
    """

    def __init__(self, sizes: Sizes, weights: Weights) -> None:
        """Take over the weights, named and shaped as `inference.weight_shapes` says, of a `set` network."""
        self._network = make_network(sizes, weights)
        usual = packaged("cloud_edge", "default")
        self._scales = np.array([usual["window_s"], usual["max_requests"]], np.float32)

    def __call__(self, observation: Mapping[str, NDArray[Any]]) -> NDArray[np.int64]:
        """Return a destination for each request (…, R_max), and 0 for inactive slots.

        Args:
            observation: of `CloudEdgeBatch`, with any leading axes; each request has a legal destination.
        """
        *lead, slots = np.shape(observation["active"])
        width, rows = np.shape(observation["backlog_s"])[-1], int(np.prod(lead, dtype=np.int64))

        def table(names: tuple[str, ...], *shape: int) -> Floats:
            fields = [np.reshape(observation[name], (rows, *shape)) for name in names]
            return np.stack(fields, axis=1).astype(np.float32, copy=False)

        active = np.reshape(observation["active"], (rows, slots)) > 0
        tokens = np.reshape(observation["predicted_output_tokens"], (rows, slots))
        batches = Batches(
            table(PAIR_FIELDS, slots, width),
            table(DESTINATION_FIELDS, width),
            table(("weights",), 4)[:, 0],
            active.sum(axis=1),
            # As in `Sequential`: the longest first; inactive slots hold zeros and stay last.
            np.argsort(-tokens, axis=1, kind="stable"),
        )
        actions = np.zeros((rows, slots), np.int64)
        _assign(batches, self._network, self._scales, actions)
        return actions.reshape(*lead, slots)


@njit
def _assign(batches: Batches, network: Network, scales: Floats, actions: NDArray[np.int64]) -> None:
    """Write each active slot's destination into `actions` (rows, R_max)."""
    width, hidden = batches.destinations.shape[2], network.encoder_out.shape[0]
    load, ranges = np.empty(width, np.float32), np.empty(4, np.float32)
    above, growth = np.empty(width, np.float32), np.empty(width, np.float32)
    elements, context = np.empty((width, ELEMENT), np.float32), np.empty((1, CONTEXT), np.float32)
    layers = make_layers(width, hidden)
    work, longest = np.empty(width), np.empty(width)
    for e in range(len(actions)):
        count, pairs, destinations = batches.requests[e], batches.pairs[e], batches.destinations[e]
        weights = batches.weights[e]
        moment = Moment(pairs, destinations, load, weights, ranges, scales, above, growth, elements, context)
        _write_ranges(moment, count)
        for d in range(width):
            work[d] = longest[d] = 0.0
            load[d] = destinations[BACKLOG, d]
        for position in range(count):
            slot = batches.order[e, position]
            write_features(moment, slot, np.float32(count - position))
            write_logits(network, elements, context, layers)
            d = _best(pairs[LEGAL, slot], layers.logits)
            actions[e, slot] = d
            infer = np.float64(pairs[INFER, slot, d])
            work[d] += infer
            longest[d] = max(longest[d], infer)
            destinations[OUTSTANDING, d] += ONE
            speedup = np.float64(destinations[SPEEDUP, d])
            load[d] = np.float64(destinations[BACKLOG, d]) + new_work(longest[d], work[d], speedup)


@njit
def _best(legal: Floats, logits: Floats) -> int:
    """Return the legal destination with the highest logit (M, 1)."""
    highest, best = -INFINITY, 0
    for d in range(len(legal)):
        if legal[d] > 0 and logits[d, 0] > highest:
            highest, best = logits[d, 0], d
    return best


@njit
def _write_ranges(moment: Moment, count: int) -> None:
    """Write hi - lo of each term; of quality loss, of the sum over the batch, not of the mean."""
    table = np.empty((len(PAIR_FIELDS), count, len(moment.load)))
    legal = np.empty(table.shape[1:], np.bool_)
    for r in range(count):
        for d in range(len(moment.load)):
            for field in range(len(PAIR_FIELDS)):
                table[field, r, d] = moment.pairs[field, r, d]
            table[QUALITY, r, d] = 1.0 - table[QUALITY, r, d]
            legal[r, d] = table[LEGAL, r, d] > 0.0
    destinations, weights = moment.destinations.astype(np.float64), moment.weights.astype(np.float64)
    tables = BatchTables(
        table[QUALITY],
        table[COST],
        table[ENERGY],
        table[INFER],
        table[TRANSFER],
        legal,
        destinations[BACKLOG],
        destinations[SPEEDUP],
        weights,
    )
    bounds = term_bounds(tables)
    for k in range(4):
        parts = count if k == 0 else 1
        moment.ranges[k] = parts * (bounds[k, 1] - bounds[k, 0])


@njit
def _squash(value: float, unit: float) -> float:
    return value / max(abs(value) + unit, TINY)


@njit
def _over(value: float, unit: float) -> float:
    return value * (ONE / max(unit, TINY)) if unit > ZERO else ZERO


@njit
def _clipped(value: float, low: float) -> float:
    return min(max(value, low), ONE)


@njit
def _write_terms(m: Moment, slot: int, remaining: float) -> None:
    """Write the features of quality loss, cost and energy, and what these add to J."""
    width = len(m.load)
    m.growth[:] = ZERO
    for k in range(3):
        least, spread = INFINITY, ZERO
        for d in range(width):
            # The fields of cost and energy follow each other as the terms do.
            m.above[d] = ONE - m.pairs[QUALITY, slot, d] if k == 0 else m.pairs[COST + k - 1, slot, d]
            if m.pairs[LEGAL, slot, d] > 0:
                least = min(least, m.above[d])
        for d in range(width):
            m.above[d] -= least
            if m.pairs[LEGAL, slot, d] > 0:
                spread = max(spread, m.above[d])
        for d in range(width):
            growth = _over(m.above[d], m.ranges[k])
            m.growth[d] += m.weights[k] * growth
            m.elements[d, 4 + k] = _clipped(_over(m.above[d], spread), -ONE)
            m.elements[d, 7 + k] = _squash(growth * remaining, ONE)
        m.context[0, k] = _clipped(m.weights[k], ZERO)
        m.context[0, 6 + k] = np.sqrt(_clipped(_over(spread, m.ranges[k]), ZERO))
    m.context[0, 3] = _clipped(m.weights[3], ZERO)


@njit
def write_features(m: Moment, slot: int, remaining: float) -> None:
    """Write the features of the request in a slot, as `request_features` does, into `elements` and `context`.

    Their numbers are the places in `PAIR_FEATURES` and `CONTEXT_FEATURES`.

    Args:
        m: what it sees.
        slot: of the batch.
        remaining: requests of the batch that are not assigned, float32, at least 1.
    """
    width, time_range, window = len(m.load), m.ranges[3], m.scales[0]
    _write_terms(m, slot, remaining)
    count = makespan = total_load = total_carried = total_price = ZERO
    first = fastest = INFINITY
    for d in range(width):
        before, infer = m.load[d], m.pairs[INFER, slot, d]
        total_load += before
        total_carried += max(before - window, ZERO)
        if before > m.destinations[BACKLOG, d]:
            makespan = max(makespan, before)
        if m.pairs[LEGAL, slot, d] > 0:
            count += ONE
            total_price += m.destinations[TOKEN_PRICE, d]
            first = min(first, _left(m, slot, d) + m.pairs[TRANSFER, slot, d])
            fastest = min(fastest, infer)
    mean_load = total_load / np.float32(width)
    mean_price = total_price / max(count, ONE)

    least, most = INFINITY, ZERO
    for d in range(width):
        before, infer, backlog = m.load[d], m.pairs[INFER, slot, d], m.destinations[BACKLOG, d]
        load = _left(m, slot, d)
        finish = load + m.pairs[TRANSFER, slot, d]
        growth = _over(max(finish - makespan, ZERO), time_range)
        m.growth[d] += m.weights[3] * growth
        features = m.elements[d]
        features[0] = ONE if m.pairs[LEGAL, slot, d] > 0 else ZERO
        features[1] = m.destinations[IS_CLOUD, d]
        features[2] = _clipped(m.pairs[QUALITY, slot, d], ZERO)
        features[3] = _clipped(m.pairs[CLUSTER_ERROR, slot, d], ZERO)
        features[10] = _squash(growth, ONE)
        features[12] = _squash(infer, time_range)
        features[13] = _squash(finish, time_range)
        features[14] = _squash(finish - first, time_range)
        features[15] = _squash(load - before, time_range)
        features[16] = _squash(load, mean_load)
        features[17] = _squash(max(load - window, ZERO), window)
        features[18] = _squash(backlog, time_range)
        features[19] = _squash(max(before - backlog, ZERO), time_range)
        features[20] = _squash(m.destinations[OUTSTANDING, d], remaining)
        features[21] = _squash(m.destinations[SPEEDUP, d], remaining)
        features[22] = _squash(m.destinations[TOKEN_PRICE, d], mean_price)
        if m.pairs[LEGAL, slot, d] > 0:
            least = min(least, m.growth[d])
    for d in range(width):
        m.growth[d] -= least
        if m.pairs[LEGAL, slot, d] > 0:
            most = max(most, m.growth[d])
    for d in range(width):
        m.elements[d, 11] = _clipped(_over(m.growth[d], most), -ONE)

    context = m.context[0]
    context[4] = _squash(remaining, m.scales[1])
    context[5] = ONE / remaining
    context[9] = _squash(time_range, window)
    context[10] = _squash(makespan, time_range)
    context[11] = _squash(first, time_range)
    context[12] = _squash(total_carried / np.float32(width), time_range)
    context[13] = _squash(fastest, window)
    context[14] = count / np.float32(width)


@njit
def _left(m: Moment, slot: int, d: int) -> float:
    """Return the load that a destination would be left with, s, estimated as `request_features` does."""
    infer = m.pairs[INFER, slot, d]
    shared_out = m.load[d] + infer / max(m.destinations[SPEEDUP, d], TINY)
    return max(shared_out, m.destinations[BACKLOG, d] + infer)
