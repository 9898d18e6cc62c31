"""The spaces of the inference cluster: the observation's fields and their bounds, and the actions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from gymnasium import spaces

from routing_gym.cluster.config import ClusterConfig
from routing_gym.cluster.distribution import ClusterDistribution, Conditions
from routing_gym.cluster.observation import OWN_FIELDS, REPLICA_FIELDS
from routing_gym.cluster.workload import Workload
from routing_gym.rewards import CLUSTER_TERMS


def observation_space(conditions: Conditions, workload: Workload) -> spaces.Dict:
    """Return the space of one row's observations: finite boxes, float32, raw units (DESIGN 3).

    Args:
        conditions: what the row's episodes are sampled from; the bounds hold for every sample.
        workload: a workload of these conditions, which knows the largest token counts.
    """
    config = conditions.base if isinstance(conditions, ClusterDistribution) else conditions
    count, step = config.replicas, config.time_step_ms
    queue = config.queue_capacity + 1.0
    horizon = workload.cutoff_ms
    a, b, c = workload.demand
    largest_demand = a + b * workload.prompt_maximum + c * workload.output_range[1]
    smallest_demand = a
    pace = conditions.slowest_pace * (config.jitter.low + config.jitter.width)
    predicted = workload.output_range[1]
    # Observed service is rounded up to the next boundary, and lasts no longer than the episode.
    service = min(largest_demand * pace + step, horizon)
    speed = min(pace + step / smallest_demand, horizon / smallest_demand)
    highest = {
        "outstanding": queue,
        "outstanding_prompt_tokens": queue * workload.prompt_maximum,
        "outstanding_predicted_tokens": queue * predicted,
        "service_ewma": max(service, config.reference_ms),
        "speed_ewma": max(speed, 1.0),
        "reward_ewma": 1.0,
        "completed": horizon / step,
        "oldest_age": horizon,
        "since_completion": horizon,
        "healthy": 1.0,
        "eligible": 1.0,
        "waiting": queue - 1.0,
        "in_flight": 1.0,
        "in_flight_age": horizon,
    }
    full = config.observation == "full"
    boxes: dict[str, spaces.Space[Any]] = {
        name: _box(highest[name], count) for name in (REPLICA_FIELDS if full else OWN_FIELDS)
    }
    boxes["request"] = spaces.Box(
        np.zeros(3, np.float32),
        np.array([workload.prompt_maximum, predicted, horizon], np.float32),
        dtype=np.float32,
    )
    boxes["arrival_gap"] = _box(horizon, 1)
    boxes["deadline"] = _box(config.deadline_ms, 1)
    if full:
        boxes["signal_age"] = _box(max(config.signal_interval_ms, step), 1)
    return spaces.Dict(boxes)


def _box(high: float, size: int) -> spaces.Box:
    return spaces.Box(np.zeros(size, np.float32), np.full(size, high, np.float32), dtype=np.float32)


def action_space(config: ClusterConfig) -> spaces.Discrete:
    """Return Discrete(N), or Discrete(N + 1) under admission."""
    return spaces.Discrete(config.replicas + config.admission)


def reward_space(configs: Iterable[ClusterConfig]) -> spaces.Box:
    """Return the space of a step's reward terms, (5,), of any of these conditions.

    What `credit = decision` paid ahead may have to be taken back.
    """
    lowest = -np.inf if any(config.credit == "decision" for config in configs) else 0.0
    return spaces.Box(lowest, np.inf, (len(CLUSTER_TERMS),), np.float64)
