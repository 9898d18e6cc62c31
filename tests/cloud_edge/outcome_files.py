"""A small table of outcomes on disk, its embeddings, and configs that read them."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from routing_gym.cloud_edge.config import CloudEdgeConfig
from routing_gym.cloud_edge.outcomes import OutcomeContents, OutcomesConfig
from routing_gym.quality.vectors import write_embeddings

MODELS = ("large", "small", "tiny")
COLUMNS = {
    "id": "id",
    "prompt": "prompt",
    "group": "task",
    "prompt_tokens": "tokens",
    "score": "{model} score",
    "completion_tokens": "{model} length",
    "models": list(MODELS),
}
FIT = {"profile": 0.4, "validation": 0.2, "neighbours": 5, "threshold": 0.2, "clusters": 3}
CATALOGUE = {
    "efficiency": 0.2,
    "speedup": 8.0,
    "utilisation": 1.0,
    "network": {
        tier: {"rtt_ms": 10, "up_mbps": 1, "down_mbps": 1, "transmit_w": 1, "receive_w": 1, "price_gb_usd": 0}
        for tier in ("cloud", "edge")
    },
    "nodes": [
        {"name": "rack", "tier": "cloud", "models": ["large"], "power_w": 300, "tflops": 300},
        {"name": "box", "tier": "edge", "models": ["small", "tiny"], "power_w": 60, "tflops": 50},
    ],
    "models": {
        "large": {"parameters_b": 70, "price_in_usd": 5, "price_out_usd": 10},
        "small": {"parameters_b": 8, "price_in_usd": 0.2, "price_out_usd": 0.2},
        "tiny": {"parameters_b": 1, "price_in_usd": 0, "price_out_usd": 0},
    },
}


def rows(count: int = 120, seed: int = 0) -> list[dict[str, Any]]:
    """Return rows of two tasks; what a model scores depends on the task, and its length on the model."""
    rng = np.random.default_rng(seed)
    listed = []
    for r in range(count):
        task = ("sums", "verse")[r % 2]
        row: dict[str, Any] = {"id": f"q{r}", "prompt": f"{task} number {r}", "task": task}
        row["tokens"] = int(rng.integers(5, 400))
        for k, model in enumerate(MODELS):
            row[f"{model} score"] = float(rng.integers(0, 2)) if task == "sums" else (0.75, 0.5, 0.25)[k]
            row[f"{model} length"] = int(rng.integers(1, 100)) * (k + 1)
        listed.append(row)
    return listed


def write(path: Path, listed: list[dict[str, Any]]) -> Path:
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(listed[0]))
        writer.writeheader()
        writer.writerows(listed)
    return path


def vectors(listed: list[dict[str, Any]], seed: int = 1) -> np.ndarray:
    """Return unit vectors that tell the tasks apart."""
    rng = np.random.default_rng(seed)
    centres = {"sums": np.eye(8)[0], "verse": np.eye(8)[1]}
    found = np.array([centres[row["task"]] + 0.15 * rng.standard_normal(8) for row in listed])
    return (found / np.linalg.norm(found, axis=1, keepdims=True)).astype(np.float32)


class Files:
    """A table and its embeddings on disk, and configs that read them."""

    def __init__(self, folder: Path, listed: list[dict[str, Any]]) -> None:
        self.rows = listed
        self.table = write(folder / "outcomes.csv", listed)
        self.embeddings = folder / "embeddings.npz"
        write_embeddings(self.embeddings, [row["id"] for row in listed], vectors(listed))

    def workload(self, **fields: Any) -> dict[str, Any]:
        plain = {"kind": "outcomes", "table": str(self.table), "columns": COLUMNS, "fit": FIT}
        return {**plain, "prediction": "mean", **fields}

    def retrieved(self, **fields: Any) -> dict[str, Any]:
        return self.workload(prediction="store", embeddings=str(self.embeddings), **fields)

    def config(self, workload: Mapping[str, Any] | None = None, **fields: Any) -> CloudEdgeConfig:
        chosen = {"catalogue": CATALOGUE, "windows": 2, "requests": 4, "max_requests": 4}
        return CloudEdgeConfig.create({**chosen, "workload": workload or self.workload(), **fields})

    def contents(self, workload: Mapping[str, Any], models: tuple[str, ...] = MODELS) -> OutcomeContents:
        config = self.config(workload).workload
        assert isinstance(config, OutcomesConfig)
        return OutcomeContents(config, models)
