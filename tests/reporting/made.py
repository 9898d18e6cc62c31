"""What the tests of figures share: results in memory whose every number is known, and figures as drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from routing_gym.reporting.figure import Figure, Panel
from routing_gym.studies.results import PartResults

FIRST_SEED = 20_000
YARDSTICKS = ("clairvoyant", "bound", "optimal")


@dataclass(frozen=True)
class Made(PartResults):
    """Results that lie nowhere.

    Attributes:
        tables: (routers, conditions, seeds) by metric.
        kept: curves by condition.
        asked: conditions whose curves were read, in order.
    """

    tables: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)
    kept: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)

    def scores(self, metric: str) -> NDArray[np.float64]:
        shape = len(self.routers), len(self.conditions), len(self.seeds)
        return self.tables.get(metric, np.full(shape, 0.0 if metric == "invalid_actions" else np.nan))

    def curves(self, condition: str) -> list[Mapping[str, Any]]:
        self.asked.append(condition)
        return list(self.kept.get(condition, []))


def made(
    scores: Mapping[str, ArrayLike],
    labels: Sequence[Mapping[str, Any]] | None = None,
    family: str = "cluster",
    part: Mapping[str, Any] | None = None,
    reference: str | None = None,
    curves: Mapping[str, Sequence[Mapping[str, Any]]] | None = None,
    params: Mapping[str, Mapping[str, Any]] | None = None,
    **metrics: Mapping[str, ArrayLike],
) -> Made:
    """Return results with these scores.

    Args:
        scores: (conditions, seeds) by router; yardsticks are known by their names.
        labels: of each condition, by default numbers.
        family: of environments.
        part: description of the part.
        reference: by default the first router.
        curves: by condition; these are named `condition 0`, `condition 1`, …
        params: of routers, by label.
        metrics: others, (conditions, seeds) by router.
    """
    routers = list(scores)
    score = {"cluster": "attainment", "cloud_edge": "objective"}[family]
    tables = {
        name: np.array([np.atleast_2d(np.asarray(table[label], np.float64)) for label in routers])
        for name, table in {score: scores, **metrics}.items()
    }
    _, count, seeds = tables[score].shape
    chosen = [FIRST_SEED + k for k in range(seeds)]
    tables["seed"] = np.where(np.isnan(tables[score]), np.nan, np.array(chosen, np.float64))
    conditions = [
        {"name": f"condition {k}", "labels": dict(one), "config_hash": "", "config": {"deadline_ms": 50.0}}
        for k, one in enumerate(labels or [{"place": k} for k in range(count)])
    ]
    plan = {
        "run": {
            "family": family,
            "environment": "",
            "routers": [
                {
                    "label": label,
                    "name": f"{family}/{label.partition(':')[0]}",
                    "params": dict((params or {}).get(label, {})),
                }
                for label in routers
            ],
            "roles": ["yardstick" if label in YARDSTICKS else "router" for label in routers],
            "conditions": conditions,
            "seeds": chosen,
            "reference": reference or routers[0],
        },
        "command": "",
        "versions": {"routing-gym": "0.1.0"},
        "python": "",
        "machine": "",
        "part": dict(part or {}),
    }
    return Made("made", Path("nowhere"), plan, None, tables, curves or {})


def drawn(panel: Panel) -> Any:
    """Return matplotlib axes with a panel on them, laid out once so that what cannot be drawn raises."""
    from matplotlib.figure import Figure as Canvas

    canvas = Canvas(figsize=(panel.width, panel.height), layout="constrained")
    axes = canvas.subplots()
    panel.draw(axes)
    canvas.draw_without_rendering()
    return axes


def texts(axes: Any) -> list[str]:
    """Return the texts in a panel, beside its axes' own."""
    return [text.get_text() for text in axes.texts]


def records(figure: Figure) -> list[dict[str, Any]]:
    """Return a figure's data as records, each as long as there are columns."""
    return [dict(zip(figure.columns, row, strict=True)) for row in figure.rows]


def luck(*shape: int, seed: int = 0) -> NDArray[np.float64]:
    """Return scores between 0.3 and 0.7."""
    return 0.3 + 0.4 * np.random.default_rng(seed).random(shape)
