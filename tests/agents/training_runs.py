"""Training runs of seconds, shared by the tests of training."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from routing_agents.checkpoint import STATE
from routing_agents.run_folder import read_table
from routing_agents.train_config import TrainConfig

# Short episodes, so that many of them end within a run.
SHORT = {"env_kwargs.warmup_s": 0.125, "env_kwargs.measured_s": 0.375}
EVALUATION = {
    "evaluation.every": 500,
    "evaluation.seeds": [10000, 10001],
    "evaluation.conditions.scenario": ["steady"],
    "evaluation.conditions.rate_per_s": [180, 250],
    "evaluation.conditions.heterogeneity": [1.0],
    "evaluation.references": ["cluster/least_work"],
}
SMALL = {"rows": 8, "policy.hidden": 16, "log_every": 250, **SHORT, **EVALUATION}
ROLLOUTS = {"hyperparameters.n_steps": 32, "hyperparameters.batch_size": 64}
OWN: dict[str, dict[str, Any]] = {
    "cluster-ppo": ROLLOUTS,
    "cluster-ppo-weights": ROLLOUTS,
    "cluster-maskable-ppo": ROLLOUTS,
    "cluster-a2c": {},
    "cluster-dqn": {
        "hyperparameters.buffer_size": 1000,
        "hyperparameters.learning_starts": 300,
        "hyperparameters.target_update_interval": 400,
        "hyperparameters.batch_size": 32,
    },
}


def tiny(name: str = "cluster-ppo", steps: int = 2048, **fields: Any) -> TrainConfig:
    """Return a shipped config of the cluster, cut down; `__` in a field's name stands for a dot."""
    given = {field.replace("__", "."): value for field, value in fields.items()}
    return TrainConfig.create(name, {**SMALL, **OWN[name], "steps": steps, **given})


# Columns that tell how long something took.
TIMES = {"time/fps", "time/time_elapsed", "time/training_steps_per_s"}


def members(path: Path) -> dict[str, Any]:
    """Return what a checkpoint holds, what it says of times left out."""
    with zipfile.ZipFile(path) as archive:
        # Stable-Baselines3's own `data` holds a time of the start, and is not read.
        found: dict[str, Any] = {name: archive.read(name) for name in archive.namelist() if name != "data"}
    state = json.loads(found.pop(STATE))
    for episode in state.get("episodes", ()):
        del episode["t"]
    for name in [name for name in found if name.endswith(".npy")]:
        array = np.lib.format.read_array(io.BytesIO(found.pop(name)), allow_pickle=False)
        # Field by field: what lies between them is nobody's.
        fields = {field: array[field] for field in array.dtype.names} if array.dtype.names else {"": array}
        found |= {f"{name} {field}": (values.shape, values.tobytes()) for field, values in fields.items()}
    return {**found, "state": json.dumps(state, sort_keys=True)}


def untimed(rows: list[dict[str, str]]) -> list[dict[str, str]]:
    return [{name: cell for name, cell in row.items() if name not in TIMES} for row in rows]


def assert_same_run(first: Path, second: Path) -> None:
    """Assert that two runs hold the same weights, state, progress and evaluations, bit for bit."""
    for name in ("last.zip", "best.zip"):
        one, other = members(first / name), members(second / name)
        assert one.keys() == other.keys()
        assert [key for key in one if one[key] != other[key]] == []
    assert read_table(first / "evaluations.csv") == read_table(second / "evaluations.csv")
    assert untimed(read_table(first / "progress.csv")) == untimed(read_table(second / "progress.csv"))
