"""Observations of the cluster for tests of routers: written down, or drawn at random."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from routing_gym.cluster.observation import REPLICA_FIELDS

Observation = dict[str, np.ndarray]

# What is not 0 of a replica that has nothing to do.
IDLE = {
    "service_ewma": 11.0,
    "speed_ewma": 1.0,
    "reward_ewma": 1 - 11 / 60,
    "healthy": 1.0,
    "eligible": 1.0,
}


def observation(**fields: Any) -> Observation:
    """Return an observation with these fields, which decide the number of replicas.

    The others are those of replicas with nothing to do, and a request of 100 prompt tokens, 50 predicted.
    """
    whole = {"request": [100, 50, 0], "arrival_gap": [5], "deadline": [50], "signal_age": [0]}
    count = next(len(value) for name, value in fields.items() if name not in whole)
    per_replica = dict.fromkeys(REPLICA_FIELDS, 0.0) | IDLE
    defaults = {name: np.full(count, value) for name, value in per_replica.items()}
    assert fields.keys() <= defaults.keys() | whole.keys()
    return {name: np.asarray(value, np.float32) for name, value in {**defaults, **whole, **fields}.items()}


def random_observation(rng: np.random.Generator, shape: tuple[int, ...], replicas: int) -> Observation:
    """Return observations with these leading axes; small whole numbers make ties common."""
    per = (*shape, replicas)
    outstanding = rng.integers(0, 5, per)
    fields = {
        "outstanding": outstanding,
        "outstanding_prompt_tokens": outstanding * rng.choice([100, 400], per),
        "outstanding_predicted_tokens": outstanding * rng.choice([20, 60, 300], per),
        "service_ewma": rng.choice([8.0, 11.0, 16.5], per),
        "speed_ewma": rng.choice([0.7, 1.0, 1.5], per),
        "reward_ewma": rng.choice([0.2, 0.8], per),
        "completed": rng.choice([0, 1, 7, 300], per),
        "oldest_age": rng.uniform(0, 200, per),
        "since_completion": rng.uniform(0, 200, per),
        "healthy": np.ones(per),
        "eligible": rng.random(per) < rng.choice([0.15, 0.7, 1.0]),
        "waiting": np.maximum(outstanding - 1, 0),
        "in_flight": np.minimum(outstanding, 1),
        "in_flight_age": rng.uniform(0, 30, per),
        "request": np.stack(
            [rng.integers(16, 2049, shape), rng.integers(4, 513, shape), rng.uniform(0, 60, shape)], axis=-1
        ),
        "arrival_gap": rng.uniform(0, 20, (*shape, 1)),
        "deadline": np.full((*shape, 1), 50.0),
        "signal_age": np.zeros((*shape, 1)),
    }
    return {name: np.asarray(value, np.float32) for name, value in fields.items()}


@st.composite
def observations(
    draw: st.DrawFn, shapes: st.SearchStrategy[tuple[int, ...]]
) -> tuple[Observation, tuple[int, ...]]:
    """Draw observations of 1 to 6 replicas, and the leading axes that they have."""
    shape = draw(shapes)
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    return random_observation(rng, shape, draw(st.integers(1, 6))), shape


def row(batch: Observation, index: tuple[int, ...]) -> Observation:
    """Return one observation of a batch."""
    return {name: value[index] for name, value in batch.items()}


def fits(batch: Observation) -> np.ndarray:
    """Return which replicas are eligible, all of them where none is (…, N)."""
    eligible = batch["eligible"] > 0
    return eligible | ~eligible.any(axis=-1, keepdims=True)
