"""Plots of a run, by family. Needs matplotlib (extra `plots`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from routing_gym.evaluation import cloud_edge_plots, cluster_plots
from routing_gym.evaluation.drawing import styles_of

MOST_PANELS = 8


def write_plots(
    folder: Path,
    plan: Mapping[str, Any],
    rows: Sequence[Mapping[str, Any]],
    curves: Sequence[Mapping[str, Any]],
) -> list[Path]:
    """Draw a run's plots into `folder` and return their paths; of many conditions, the first `MOST_PANELS`.

    Args:
        folder: where the PNG files go.
        plan: the run's plan.
        rows: its episodes.
        curves: its curves; without any, only what can be drawn of the episodes is.

    Raises:
        ImportError: matplotlib is not installed.
    """
    run = plan["run"]
    family = {"cluster": cluster_plots, "cloud_edge": cloud_edge_plots}[run["family"]]
    return family.draw(folder, run, run["conditions"][:MOST_PANELS], rows, curves, styles_of(run))
