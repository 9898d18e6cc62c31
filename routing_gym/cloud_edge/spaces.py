"""The spaces of cloud–edge environments: the observations' fields and their bounds, and the actions."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from routing_gym.cloud_edge.config import CloudEdgeConfig
from routing_gym.cloud_edge.observation import batch_fields, request_fields
from routing_gym.cloud_edge.workload import Workload

EXACT = frozenset({"active", "quality", "cluster_error", "legal", "is_cloud", "weights"})


def _highest(workload: Workload) -> dict[str, Any]:
    """Return the largest value of each field: a number, or one per destination (M,)."""
    config, physics = workload.config, workload.physics
    longest_output = workload.predicted_maximum  # all that is observed is predicted
    up = workload.input_maximum * physics["up_s"]
    down = longest_output * physics["down_s"]
    infer = workload.input_maximum * physics["prefill_s"] + longest_output * physics["decode_s"]
    transfer = workload.rtt_maximum_s + up + down
    tokens = workload.input_maximum + longest_output
    cost = physics["fee"] + workload.input_maximum * physics["price_in"]
    cost = cost + longest_output * physics["price_out"] + tokens * physics["price_traffic"]
    energy = infer * physics["power_w"] + up * physics["transmit_w"] + down * physics["receive_w"]
    new = infer * np.maximum(1.0, config.max_requests / physics["speedup"])
    backlog = config.windows * new
    longest = (new + transfer).max()
    return {
        "active": 1.0,
        "input_tokens": workload.input_maximum,
        "predicted_output_tokens": workload.predicted_maximum,
        "quality": 1.0,
        "cluster_error": 1.0,
        "cost": cost,
        "energy": energy,
        "infer_s": infer,
        "transfer_s": transfer,
        "legal": 1.0,
        "backlog_s": backlog,
        "speedup": physics["speedup"],
        "is_cloud": 1.0,
        "token_price": physics["token_price"],
        "outstanding": float(config.windows * config.max_requests),
        "provisional_load_s": backlog + new,
        "remaining": float(config.max_requests),
        "term_range": np.array(
            [
                config.max_requests,
                config.max_requests * cost.max(),
                config.max_requests * energy.max(),
                longest,
            ]
        ),
        "weights": 1.0,
    }


def _space(sizes: dict[str, int], workload: Workload) -> spaces.Dict:
    highest = _highest(workload)
    boxes: dict[str, spaces.Space[Any]] = {}
    for name, size in sizes.items():
        # One value for all, one per destination, or one per pair: requests repeat the destinations'.
        high = np.resize(np.atleast_1d(highest[name]), size)
        if name not in EXACT:
            high = high * (1.0 + 1e-6)  # rounding to float32 may go up
        high = np.where(high > 0.0, high, 1.0)  # a box has a width, also where nothing is charged
        boxes[name] = spaces.Box(np.zeros(size, np.float32), high.astype(np.float32), dtype=np.float32)
    return spaces.Dict(boxes)


def batch_observation_space(workload: Workload) -> spaces.Dict:
    """Return the space of one row's batch observations: finite boxes, float32, raw units (DESIGN 4)."""
    config = workload.config
    return _space(batch_fields(config.max_requests, config.destination_count), workload)


def request_observation_space(workload: Workload) -> spaces.Dict:
    """Return the space of one row's request observations: finite boxes, float32, raw units (DESIGN 4)."""
    return _space(request_fields(workload.config.destination_count), workload)


def batch_action_space(config: CloudEdgeConfig) -> spaces.MultiDiscrete:
    """Return MultiDiscrete([M] · R_max)."""
    return spaces.MultiDiscrete(np.full(config.max_requests, config.destination_count))


def request_action_space(config: CloudEdgeConfig) -> spaces.Discrete:
    """Return Discrete(M)."""
    return spaces.Discrete(config.destination_count)
