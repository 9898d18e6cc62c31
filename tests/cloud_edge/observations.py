"""Observations of cloud–edge batches for tests of routers: written down, or drawn at random."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from routing_gym.cloud_edge.evaluator import BatchTables, term_bounds

Observation = dict[str, np.ndarray]

# What a field is unless a test says otherwise.
OF_REQUESTS = {"input_tokens": 100.0, "predicted_output_tokens": 50.0}
OF_PAIRS = {
    "quality": 0.5,
    "cluster_error": 0.5,
    "cost": 0.001,
    "energy": 10.0,
    "infer_s": 1.0,
    "transfer_s": 0.05,
    "legal": 1.0,
}
OF_DESTINATIONS = {
    "backlog_s": 0.0,
    "speedup": 2.0,
    "is_cloud": 0.0,
    "token_price": 1.0,
    "outstanding": 0.0,
}


def make_observation(
    requests: int, destinations: int, slots: int | None = None, **fields: Any
) -> Observation:
    """Return the batch observation of `requests` requests in `slots` slots (by default as many).

    Fields are given without padding, in any shape that broadcasts to (R,), (R, M) or (M,).
    """
    slots = requests if slots is None else slots
    known = OF_REQUESTS | OF_PAIRS | OF_DESTINATIONS | {"weights": 0.25}
    assert fields.keys() <= known.keys(), fields.keys() - known.keys()
    given = known | fields
    pairs = {name: np.zeros((slots, destinations), np.float32) for name in OF_PAIRS}
    pairs["legal"][:, 0] = 1
    for name, table in pairs.items():
        table[:requests] = given[name]
    shown = {"active": np.arange(slots) < requests}
    shown |= {name: np.zeros(slots, np.float32) for name in OF_REQUESTS}
    for name in OF_REQUESTS:
        shown[name][:requests] = given[name]
    shown |= {name: table.reshape(-1) for name, table in pairs.items()}
    shown |= {name: np.broadcast_to(given[name], destinations) for name in OF_DESTINATIONS}
    shown["weights"] = np.broadcast_to(given["weights"], 4)
    return {name: np.array(values, np.float32) for name, values in shown.items()}


def observe(tables: BatchTables, slots: int | None = None, **fields: Any) -> Observation:
    """Return the observation of a batch whose tables are these, but for float32."""
    known = {
        "quality": 1.0 - tables.loss,
        "cost": tables.cost,
        "energy": tables.energy,
        "infer_s": tables.infer,
        "transfer_s": tables.transfer,
        "legal": tables.legal,
        "backlog_s": tables.backlog,
        "speedup": tables.speedup,
        "weights": tables.weights,
    }
    return make_observation(*tables.infer.shape, slots, **{**known, **fields})


def make_request(destinations: int, **fields: Any) -> Observation:
    """Return a request observation: one request with these fields, the last of its batch unless told.

    Other fields follow from a batch of this one request, `provisional_load_s` being the backlog.
    """
    alone = {name: fields.pop(name) for name in ("remaining", "provisional_load_s") if name in fields}
    batch = make_observation(1, destinations, **fields)
    bounds = term_bounds(BatchTables.from_observation(batch))
    del batch["active"]
    more = {
        "provisional_load_s": batch["backlog_s"],
        "remaining": [1.0],
        "term_range": bounds[:, 1] - bounds[:, 0],
    }
    return {name: np.array(values, np.float32) for name, values in {**batch, **more, **alone}.items()}


def closing_request(destinations: int) -> Observation:
    """Return what `CloudEdgeRequest` shows at the end of an episode."""
    shown = {name: np.zeros_like(values) for name, values in make_request(destinations).items()}
    return {**shown, "legal": np.ones(destinations, np.float32)}


def random_legality(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Return a mask (…, M) with at least one legal destination a request."""
    legal = rng.random(shape) < rng.choice([0.2, 0.6, 1.0])
    sure = rng.integers(shape[-1], size=shape[:-1])
    return legal | (np.arange(shape[-1]) == sure[..., None])


def random_observation(
    rng: np.random.Generator, destinations: int, slots: int, requests: int | None = None
) -> Observation:
    """Return a batch of so many requests (by default any number from none to all slots).

    Few different values make ties common; cost, energy and time follow no physics.
    """
    requests = int(rng.integers(slots + 1)) if requests is None else requests
    pairs = (requests, destinations)
    return make_observation(
        requests,
        destinations,
        slots,
        input_tokens=rng.integers(1, 2000, requests),
        predicted_output_tokens=rng.choice([1, 80, 300, 900], requests),
        quality=rng.choice([0.0, 0.25, 0.5, 1.0], pairs),
        cluster_error=rng.choice([0.1, 0.4, 0.7], pairs),
        cost=rng.uniform(0, 0.01, pairs),
        energy=rng.uniform(1, 500, pairs),
        infer_s=rng.choice([0.1, 0.5, 2.0], pairs) * rng.uniform(0.8, 1.2, pairs),
        transfer_s=rng.uniform(0.005, 0.2, pairs),
        legal=random_legality(rng, pairs),
        backlog_s=rng.choice([0.0, 0.7, 3.0], destinations),
        speedup=rng.choice([1.0, 5.0, 20.0], destinations),
        is_cloud=rng.integers(2, size=destinations),
        token_price=rng.choice([0.2, 0.9, 2.0, 20.0], destinations),
        outstanding=rng.integers(0, 4, destinations),
        weights=rng.dirichlet(np.ones(4)),
    )


def stack(observations: list[Observation]) -> Observation:
    """Return observations one above the other."""
    return {name: np.stack([each[name] for each in observations]) for name in observations[0]}


@st.composite
def batches(
    draw: st.DrawFn, shapes: st.SearchStrategy[tuple[int, ...]]
) -> tuple[Observation, tuple[int, ...]]:
    """Draw batches of 0 to 7 requests and 1 to 5 destinations, and the leading axes that they have."""
    shape = draw(shapes)
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    destinations, slots = draw(st.integers(1, 5)), draw(st.integers(1, 7))
    count = int(np.prod(shape))
    flat = stack([random_observation(rng, destinations, slots) for _ in range(max(count, 1))])
    return {name: each[:count].reshape(*shape, each.shape[-1]) for name, each in flat.items()}, shape


def row(batch: Observation, index: tuple[int, ...]) -> Observation:
    """Return one observation of several."""
    return {name: values[index] for name, values in batch.items()}


def pairs(observation: Observation, name: str) -> np.ndarray:
    """Return a field of pairs of a batch observation, (…, R_max, M)."""
    width = observation["backlog_s"].shape[-1]
    return observation[name].reshape(*observation["active"].shape, width)
