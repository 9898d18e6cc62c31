"""Pure functions of the observations of `CloudEdgeRequest`, for learning."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from routing_gym.cloud_edge.observation import DESTINATION_FIELDS, PAIR_FIELDS
from routing_gym.common.config import packaged
from routing_gym.common.features import TINY, Features, squash, stacked

# `growth` is what a choice adds to a normalised term of J, (term - lo)/(hi - lo). A request's part in a sum
# over the batch is taken times the requests that remain, so that it is of order 1.
PAIR_FEATURES: tuple[str, ...] = (
    "legal",  # 0 or 1
    "is_cloud",  # 0 or 1
    "quality",  # predicted
    "cluster_error",
    "loss_above_best",  # quality lost against the best legal destination, in units of the spread among them
    "cost_above_best",  # the same of cost
    "energy_above_best",  # the same of energy
    "loss_growth",  # of quality loss, against the best legal destination, times the requests that remain
    "cost_growth",  # the same of cost
    "energy_growth",  # the same of energy
    "time_growth",  # of completion time: what the request would add to the batch's as it stands
    "growth",  # of J, against the legal destination with the least, in units of the spread among them
    "infer",  # T_infer, in units of the batch's range of completion times
    "finish",  # load that would be left and T_trans, in the same unit
    "finish_above_best",  # the same, less that of the legal destination that finishes first
    "load_growth",  # load that would be added, in the same unit
    "load",  # load that would be left, in units of the destinations' mean load as it stands
    "carried",  # what of it is left after a shipped window, in units of one
    "backlog",  # from earlier batches, in units of the batch's range of completion times
    "assigned",  # load from this batch, in the same unit
    "outstanding",  # requests, in units of those that remain
    "concurrency",  # speed-up S, in units of the requests that remain
    "token_price",  # in units of the mean over legal destinations
)
CONTEXT_FEATURES: tuple[str, ...] = (
    "weight_quality",  # ω
    "weight_cost",
    "weight_energy",
    "weight_time",
    "remaining",  # requests of the batch left, in units of the shipped R_max
    "last",  # 1 / requests left
    "quality_share",  # square root of the request's share in the batch's spread of quality loss
    "cost_share",  # the same of cost
    "energy_share",  # the same of energy
    "time_range",  # the batch's range of completion times, in units of the shipped window
    "makespan",  # load of the destination that would finish last as it stands, in units of that range
    "best_finish",  # of the legal destination that finishes first, in units of that range
    "carried_mean",  # what would be left after a shipped window as it stands, in units of that range
    "service",  # T_infer of the fastest legal destination, in units of the shipped window
    "legal_share",  # of the destinations
)


def request_features(observation: Mapping[str, NDArray[Any]]) -> Features:
    """Return the features of the destinations, `PAIR_FEATURES`, and of the rest, `CONTEXT_FEATURES`.

    Terms are held against the observed ranges of the batch (DESIGN 4), so that a unit of money or energy does
    not matter. An assignment's load is estimated: a destination shows what it has to do, and not which part
    of it is the longest request.

    Args:
        observation: of `CloudEdgeRequest`, with any leading axes.
    """
    # Destinations go first and rows last: minima over destinations are then cheap.
    seen = {name: np.array(np.transpose(observation[name]), np.float32, order="C") for name in _FIELDS}
    window, slots = _usual()
    legal, ranges, weights = seen["legal"] > 0, seen["term_range"], seen["weights"]
    (shown,) = seen["remaining"]
    remaining, time_range = np.maximum(shown, 1.0), ranges[3]

    spreads, above, growth = [], [], []
    for k, values in enumerate((1.0 - seen["quality"], seen["cost"], seen["energy"])):
        more = values - _least(values, legal)
        spreads.append(np.where(legal, more, 0.0).max(axis=0))
        above.append(np.clip(_over(more, spreads[k]), -1.0, 1.0))
        growth.append(_over(more, ranges[k]))

    backlog, before, infer = seen["backlog_s"], seen["provisional_load_s"], seen["infer_s"]
    assigned = np.maximum(before - backlog, 0.0)
    # At most that, and exactly that where concurrency is what limits, or for a first request.
    load = np.maximum(before + infer / np.maximum(seen["speedup"], TINY), backlog + infer)
    finish = load + seen["transfer_s"]
    first = _least(finish, legal)
    makespan = np.where(assigned > 0, before, 0.0).max(axis=0)
    time_growth = _over(np.maximum(finish - makespan, 0.0), time_range)

    total = weights[0] * growth[0] + weights[1] * growth[1] + weights[2] * growth[2]
    total += weights[3] * time_growth
    total -= _least(total, legal)
    price = seen["token_price"]
    mean_price = np.where(legal, price, 0.0).sum(axis=0)
    mean_price /= np.maximum(legal.sum(axis=0, dtype=np.float32), 1.0)
    elements = (
        legal,
        seen["is_cloud"],
        np.clip(seen["quality"], 0.0, 1.0),
        np.clip(seen["cluster_error"], 0.0, 1.0),
        *above,
        *(squash(part * remaining, np.float32(1.0)) for part in growth),
        squash(time_growth, np.float32(1.0)),
        np.clip(_over(total, np.where(legal, total, 0.0).max(axis=0)), -1.0, 1.0),
        squash(infer, time_range),
        squash(finish, time_range),
        squash(finish - first, time_range),
        squash(load - before, time_range),
        squash(load, before.mean(axis=0)),
        squash(np.maximum(load - window, 0.0), window),
        squash(backlog, time_range),
        squash(assigned, time_range),
        squash(seen["outstanding"], remaining),
        squash(seen["speedup"], remaining),
        squash(price, mean_price),
    )
    context = (
        *np.clip(weights, 0.0, 1.0),
        squash(shown, slots),
        1.0 / remaining,
        *(np.sqrt(np.clip(_over(spreads[k], ranges[k]), 0.0, 1.0)) for k in range(3)),
        squash(time_range, window),
        squash(makespan, time_range),
        squash(first, time_range),
        squash(np.maximum(before - window, 0.0).mean(axis=0), time_range),
        squash(_least(infer, legal), window),
        legal.mean(axis=0, dtype=np.float32),
    )
    return stacked(elements, context)


_FIELDS = (
    *PAIR_FIELDS,
    *DESTINATION_FIELDS,
    "provisional_load_s",
    "remaining",
    "term_range",
    "weights",
)


def _over(value: Any, unit: Any) -> Any:
    """Return value/unit, and 0 where the unit is 0: a term whose bounds coincide counts 0 (DESIGN 4)."""
    return value * np.where(unit > 0, 1.0 / np.maximum(unit, TINY), np.float32(0.0))


def _least(values: Any, legal: NDArray[np.bool_]) -> Any:
    """Return the least value of a legal destination (…), or where none is legal of all."""
    least = np.where(legal, values, np.float32(np.inf)).min(axis=0)
    return np.where(np.isfinite(least), least, values.min(axis=0))


@cache
def _usual() -> tuple[np.float32, np.float32]:
    """Return the shipped window (s) and R_max: scales that an observation does not hold."""
    config = packaged("cloud_edge", "default")
    return np.float32(config["window_s"]), np.float32(config["max_requests"])
