"""Routers for tests: random weights, described and saved as trained ones are."""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import routing_gym.policy
from routing_agents.folder import save
from routing_agents.inference import Sizes, weight_shapes
from routing_agents.manifest import Conditions, Manifest
from routing_gym.common.features import Features

HIDDEN = 12


def random_weights(sizes: Sizes, seed: int = 0) -> dict[str, np.ndarray]:
    """Return weights whose logits are of order 1, as after training."""
    rng = np.random.default_rng(seed)
    shapes = weight_shapes(sizes)
    return {
        name: (rng.normal(size=shape) / np.sqrt(shape[-1])).astype(np.float32)
        for name, shape in shapes.items()
    }


def random_features(
    rng: np.random.Generator, lead: tuple[int, ...], count: int, element: int, context: int
) -> Features:
    return Features(
        rng.uniform(-1, 1, (*lead, count, element)).astype(np.float32),
        rng.uniform(-1, 1, (*lead, context)).astype(np.float32),
    )


def describe(config: Conditions, **fields: Any) -> Manifest:
    given: dict[str, Any] = {
        "network": "set",
        "hidden": HIDDEN,
        "command": "routing-gym train made-up --seed 7",
        "training": {"algorithm": "PPO", "steps": 1000, "seed": 7, "hyperparameters": {"gamma": 0.99}},
        "scores": {"development": {"attainment": 0.8125, "p99_all_ms": None}},
    }
    return Manifest.create(config, **{**given, **fields})


def save_random(folder: Path, config: Conditions, seed: int = 0, **fields: Any) -> Path:
    """Save a router with random weights, and return its folder."""
    manifest = describe(config, **fields)
    save(folder, manifest, random_weights(manifest.sizes, seed))
    return folder


def register(monkeypatch: pytest.MonkeyPatch, **classes: str) -> None:
    """Register routers as a package's entry points would, by `family__name`."""
    group = routing_gym.policy.GROUP
    more = [EntryPoint(name.replace("__", "/"), value, group) for name, value in classes.items()]
    monkeypatch.setattr(routing_gym.policy, "entry_points", lambda group: [*entry_points(group=group), *more])
