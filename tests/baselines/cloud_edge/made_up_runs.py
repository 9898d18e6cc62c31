"""Made-up results of one-window episodes."""

from __future__ import annotations

from typing import Any

import numpy as np

from routing_baselines.cloud_edge.reproduction import commands as reproduce
from routing_baselines.cloud_edge.reproduction.published import Played
from routing_gym.cloud_edge.metrics import WINDOW_TERMS

WEIGHTS = [0.25] * 4


def played(
    batches: int = 7, seed: int = 0, routers: tuple[str, ...] = reproduce.ROUTERS, **labels: Any
) -> Played:
    """Return made-up results."""
    rng = np.random.default_rng(seed)
    values = {name: rng.random((len(routers), batches)) for name in ("objective", *WINDOW_TERMS)}
    values["bound"] = np.tile(0.1 + rng.random(batches), (len(routers), 1))
    values["gap"] = rng.random((len(routers), batches))
    values["decision_ms_median"] = rng.random((len(routers), batches))
    known = {"requests": 30, "destinations": 11, "prediction": "perfect", "stand_ins": "", **labels}
    return Played("made up", known, WEIGHTS, routers, frozenset({"optimal"}), values)


def with_values(made: Played, **rows: dict[str, Any]) -> Played:
    """Return results in which some routers' values are these."""
    values = {metric: kept.copy() for metric, kept in made.values.items()}
    for name, given in rows.items():
        for metric, value in given.items():
            values[metric][made.routers.index(name)] = value
    return Played(made.name, made.labels, made.weights, made.routers, made.yardsticks, values)
