"""What the plots of all families share. Needs matplotlib (extra `plots`)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

# Okabe and Ito's colours, told apart by people with every kind of colour vision; black is for yardsticks.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#8C6D31", "#6A51A3")
DASHES = ((), (5, 2), (2, 1.5), (6, 2, 1, 2))
YARDSTICK = "#222222"


def styles_of(run: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Give each router a colour and a dash by its place in the list; yardsticks are black."""
    styles = {}
    for k, (router, role) in enumerate(zip(run["routers"], run["roles"], strict=True)):
        yardstick = role == "yardstick"
        styles[router["label"]] = {
            "color": YARDSTICK if yardstick else COLOURS[k % len(COLOURS)],
            "dashes": (1, 1) if yardstick else DASHES[(k // 2 + k // len(COLOURS)) % len(DASHES)],
            "lw": 1.6,
        }
    return styles


def grid(count: int, width: float, height: float, columns: int = 2) -> tuple[Any, list[Any]]:
    """Return a figure and `count` panels, so many to a row."""
    from matplotlib.figure import Figure

    columns = min(count, columns)
    lines = math.ceil(count / columns)
    # A single panel is widened, so that the legend below it fits.
    size = (max(width * columns, 6.6), height * lines + 0.9)
    figure = Figure(figsize=size, layout="constrained")
    panels = figure.subplots(lines, columns, squeeze=False).ravel().tolist()
    for panel in panels[count:]:
        panel.set_visible(False)
    for panel in panels:
        panel.spines[["top", "right"]].set_visible(False)
        panel.grid(alpha=0.25, lw=0.6)
    return figure, panels[:count]


def save(figure: Any, path: Path, handles: Mapping[str, Any]) -> Path:
    """Write a figure with a legend below it, and return its path."""
    figure.legend(
        list(handles.values()),
        list(handles),
        loc="outside lower center",
        ncols=min(len(handles), int(figure.get_figwidth() / 2.0)),
        frameon=False,
        fontsize=9,
    )
    figure.savefig(path, dpi=130)
    return path


def mean_curve(curves: Sequence[Mapping[str, Any]], condition: str, router: str, key: str) -> Any:
    """Return a curve's mean over a router's episodes under a condition; None where none has it."""
    found = [c[key] for c in curves if c["condition"] == condition and c["router"] == router and key in c]
    return np.mean(found, axis=0) if found else None
