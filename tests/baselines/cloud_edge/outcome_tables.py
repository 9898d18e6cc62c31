"""Small tables of outcomes, in the layouts of the public ones."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np

from routing_gym.common.config import packaged


def write_table(path: Path, kind: str, rows: int = 120, seed: int = 0) -> Path:
    """Write a CSV with the columns of a known kind of table, every cell filled."""
    columns = packaged("workloads", kind)["columns"]
    names = [m["name"] if isinstance(m, dict) else m for m in columns["models"].values()]
    names = list(dict.fromkeys(names))
    rng = np.random.default_rng(seed)
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        header = [columns["id"], columns["prompt"], columns["prompt_tokens"]]
        group = [columns["group"]] if "group" in columns else []
        for name in names:
            header += [name, f"{name}|completion_tokens"]
            header += [f"{name}|total_cost"] if "cost" in columns else []
        writer.writerow([*header, *group])
        for row in range(rows):
            cells = [f"p{row}", f"Question {row}?", int(rng.integers(20, 300))]
            skill = rng.random()
            for place, _ in enumerate(names):
                tokens = int(rng.integers(1, 400))
                cells += [int(rng.random() < (skill + place / len(names)) / 2), tokens]
                cells += [tokens * 1e-6] if "cost" in columns else []
            writer.writerow([*cells, *(["mmlu"] if group else [])])
    return path


def write_embeddings(path: Path, rows: int = 120, seed: int = 1) -> Path:
    """Write embeddings of such a table's prompts."""
    vectors = np.random.default_rng(seed).normal(size=(rows, 8)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    np.savez(path, ids=np.array([f"p{row}" for row in range(rows)]), embeddings=vectors)
    return path
