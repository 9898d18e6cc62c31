"""What the plots of all families share. Needs matplotlib (extra `plots`)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from routing_gym.evaluation.statistics import Estimate

# Okabe and Ito's colours, told apart by people with every kind of colour vision; black is for yardsticks.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#8C6D31", "#755CB0")
DASHES = ((), (5, 2), (2, 1.5), (6, 2, 1, 2))
YARDSTICK = "#222222"
YARDSTICK_DASHES = ((1, 1), (4, 1.2, 1, 1.2))


def styles_of(run: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Give each router a colour and a dash by its place in the list; yardsticks are black."""
    styles = {}
    yardsticks = 0
    for k, (router, role) in enumerate(zip(run["routers"], run["roles"], strict=True)):
        colour = COLOURS[k % len(COLOURS)]
        dashes: tuple[float, ...] = DASHES[(k // 2 + k // len(COLOURS)) % len(DASHES)]
        if role == "yardstick":
            colour, dashes = YARDSTICK, YARDSTICK_DASHES[yardsticks % len(YARDSTICK_DASHES)]
            yardsticks += 1
        styles[router["label"]] = {"color": colour, "dashes": dashes, "lw": 1.6}
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
        dress(panel)
    return figure, panels[:count]


def dress(panel: Any) -> None:
    """Give a panel the look of all of them: no box, a faint grid."""
    panel.spines[["top", "right"]].set_visible(False)
    panel.grid(alpha=0.25, lw=0.6)


def interval_row(
    panel: Any, place: float, estimate: Estimate, colour: str, text: str, right: float = -math.inf
) -> None:
    """Draw an estimate and its interval on a line of a panel; yardsticks as diamonds.

    Args:
        panel: matplotlib's axes.
        place: of the line.
        estimate: without an interval where its ends are NaN.
        colour: of the router.
        text: beside all of it.
        right: where other marks on the line end.
    """
    panel.plot([estimate.low, estimate.high], [place, place], color=colour, lw=3, alpha=0.45)
    panel.plot(estimate.value, place, "D" if colour == YARDSTICK else "o", color=colour, ms=5)
    panel.annotate(
        text,
        (max(right, estimate.value, *(() if math.isnan(estimate.high) else (estimate.high,))), place),
        xytext=(6, 0),
        textcoords="offset points",
        va="center",
        fontsize=8.5,
    )


def log_ticks(axis: Any) -> None:
    """Name 1, 2 and 5 of each decade of a logarithmic axis that spans few."""
    from matplotlib.ticker import LogLocator

    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter("")


def name_rows(panel: Any, labels: Sequence[str]) -> None:
    """Name the lines of a panel, from the lowest up."""
    panel.set_yticks(range(len(labels)), labels, fontsize=9)
    panel.set_ylim(-0.6, len(labels) - 0.4)


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
