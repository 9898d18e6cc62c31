"""Figures of both families by condition: the heat map, and the score over an axis of the conditions."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from routing_gym.evaluation.drawing import YARDSTICK, log_ticks
from routing_gym.evaluation.statistics import Estimate
from routing_gym.reporting.common_figures import SCORE
from routing_gym.reporting.figure import Figure
from routing_gym.reporting.view import (
    View,
    called,
    cells,
    identifying,
    interval,
    key_of,
    panel,
    short_names,
    wide,
)
from routing_gym.studies.config import is_number

Floats = NDArray[np.float64]
# A router's estimates, beside where they lie on the axis.
Line = list[tuple[float, Estimate]]

MOST_ROWS, COLUMNS = 60, 7
# Worse, equal, better; ink is chosen for each cell, as cells look the same on a light and a dark page.
MAP = ("#A6440A", "#F0B27A", "#E4E4E4", "#7FB2DC", "#0B5394")
INKS = ("#010101", "#FFFFFF")
# A difference that is as large as this share of all of them has the full colour.
FULL = 0.95
ALIKE = 1e-9
QUARTILES = (0.5, 0.25, 0.75)

MOST_PANELS = 6
P99 = "p99_all_ms"
AXES = {
    "load": "load ρ",
    "rate_per_s": "rate, requests/s",
    "requests": "requests per batch R",
    "destinations": "destinations M",
    "replicas": "replicas N",
}


def heatmap(view: View) -> Figure | None:
    """Mean score of each router under each condition, coloured by what the best documented router has."""
    results, show = view.results, view.results.show
    shown = [k for k in range(len(results.conditions)) if not np.isnan(view.means[:, k]).all()]
    if not 1 < len(shown) <= MOST_ROWS:
        return None
    names = short_names([results.conditions[k] for k in shown])
    means = show.scale * view.means[:, shown].T
    base = show.scale * view.best_documented()[shown]
    better = show.sign * (means - base[:, None])
    routers = [k for k, label in enumerate(results.routers) if results.roles[label] == "router"]
    sizes = np.abs(better[:, routers])
    sizes = sizes[np.isfinite(sizes)]
    labels = results.routers
    parts = math.ceil(len(labels) / COLUMNS)
    blocks = [block.tolist() for block in np.array_split(np.arange(len(labels)), parts)]
    decimals = show.decimals[1] if show.scale > 1.0 else show.decimals[1] - 1
    full = max(float(np.quantile(sizes, FULL)), 10.0**-decimals) if len(sizes) else 1.0
    best = _best(better, routers)
    _, column = SCORE[show.family]
    documented = bool(results.group("documented"))
    other = "the best documented router of the condition" if documented else results.reference
    return Figure(
        "heatmap",
        "Router by condition",
        f"Mean {show.score}{', %,' if show.scale > 1.0 else ''} over {view.seeds}; bold: the best router's, "
        f"which may be chance. Blue is better and orange worse than {other}, in full colour from "
        f"{full:.3g} {show.unit} on. No intervals are shown: small differences may be chance."
        + view.unfinished,
        [
            panel(
                _draw_heat,
                means[:, block],
                better[:, block] / full,
                names,
                [labels[k] for k in block],
                best[:, block],
                decimals,
                height=1.25 + 0.235 * len(shown),
            )
            for block in blocks
        ],
        ("condition", "router", column, "better_than_documented" if documented else "better_than_reference"),
        [
            cells(results.conditions[place]["name"], label, means[row, k], better[row, k])
            for row, place in enumerate(shown)
            for k, label in enumerate(labels)
        ],
        {
            # The edge is the page's ink: on a dark page the dark ones would be lost.
            name: {"color": colour, "marker": "s", "mec": YARDSTICK, "mew": 0.8}
            for name, colour in (("better", MAP[-1]), ("equal", MAP[2]), ("worse", MAP[0]))
        },
    )


def _best(better: Floats, routers: Sequence[int]) -> NDArray[np.bool_]:
    """Return where a router is the best under a condition (conditions, routers); not where all are alike."""
    others = np.full(better.shape, -np.inf)
    others[:, routers] = np.where(np.isnan(better[:, routers]), -np.inf, better[:, routers])
    top = others.max(axis=1, keepdims=True)
    best = np.isfinite(others) & (others >= top - ALIKE)
    return best & (np.isfinite(others) & ~best).any(axis=1, keepdims=True)


def _draw_heat(
    axes: Any,
    means: Floats,
    shades: Floats,
    names: Sequence[str],
    labels: Sequence[str],
    best: NDArray[np.bool_],
    decimals: int,
) -> None:
    from matplotlib.colors import LinearSegmentedColormap

    colours = LinearSegmentedColormap.from_list("difference", MAP)
    rows, columns = means.shape
    axes.grid(False)
    axes.spines[:].set_visible(False)
    shades = np.where(np.isnan(shades) & ~np.isnan(means), 0.0, shades)
    axes.pcolormesh(
        np.ma.masked_invalid(shades), cmap=colours, vmin=-1.0, vmax=1.0, edgecolors="none", rasterized=False
    )
    for row in range(rows):
        for column in range(columns):
            value, shade = means[row, column], shades[row, column]
            if np.isnan(value):
                continue
            ink = _ink(colours((np.clip(shade, -1.0, 1.0) + 1.0) / 2.0))
            axes.text(
                column + 0.5,
                row + 0.5,
                f"{value:.{decimals}f}",
                color=ink,
                weight="bold" if best[row, column] else "normal",
                fontsize=8.5,
                ha="center",
                va="center",
            )
    axes.set_ylim(rows, 0)
    axes.set_xticks(np.arange(columns) + 0.5, labels, rotation=35, ha="left", rotation_mode="anchor")
    axes.set_yticks(np.arange(rows) + 0.5, names)
    axes.tick_params(length=0, labelsize=8.5, top=True, labeltop=True, bottom=False, labelbottom=False)


def _ink(colour: Sequence[float]) -> str:
    """Return the ink with the larger contrast on a cell's colour (WCAG's relative luminance)."""
    red, green, blue = (((c + 0.055) / 1.055) ** 2.4 if c > 0.04 else c / 12.92 for c in colour[:3])
    return INKS[0] if 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.18 else INKS[1]


def against(view: View) -> Figure | None:
    """The score over a label of the conditions; of the cluster p99 over all arrivals below it."""
    results = view.results
    axis: str = results.part.get("axis") or ""
    conditions = results.conditions
    across = [condition["labels"].get(axis) for condition in conditions]
    numbers = [value for value in across if is_number(value)]
    if len(numbers) < len(across) or len(set(numbers)) < 2:
        return None
    rates = len({condition["labels"].get("rate_per_s") for condition in conditions}) > 1
    names = identifying(conditions, ["rate_per_s" if axis == "load" and rates else axis])
    panels: dict[tuple[str, ...], list[int]] = {}
    for k, condition in enumerate(conditions):
        panels.setdefault(key_of(condition, names), []).append(k)
    titles = {key: called(conditions[places[0]], names) for key, places in panels.items()}
    show = results.show
    title, column = SCORE[show.family]
    latency = show.family == "cluster"
    shown = [(show.score, show.scale, interval, column, title, False)]
    if latency:
        shown.append((P99, 1.0, _quartiles, P99, "p99 over all arrivals, ms", True))
    ticks = sorted(set(numbers))
    drawn, rows = [], []
    named: set[str] = set()
    unbounded = False
    for metric, scale, estimate, name, label, logarithmic in shown:
        for key, places in panels.items():
            lines = _lines(view, places, numbers, scale, metric, estimate)
            rows += [
                cells(titles[key], name, router, x, value)
                for router, line in lines.items()
                for x, value in line
            ]
            finite = {
                router
                for router, line in lines.items()
                if any(math.isfinite(value.value) for _, value in line)
            }
            if finite and list(panels).index(key) < MOST_PANELS:
                named |= finite
                unbounded |= any(_unbounded(value) for line in lines.values() for _, value in line)
                drawn.append(
                    panel(_draw_lines, lines, view.styles, axis, ticks, label, logarithmic, title=titles[key])
                )
    return Figure(
        "against",
        f"Against {AXES.get(axis, axis)}",
        f"Mean {show.score} {view.with_interval('band')}."
        + view.unfinished
        + (
            " Then p99 of latency over all arrivals: the median over seeds, with the middle half of them as "
            "a band; a line stops where in half of the seeds more than 1 % of arrivals do not complete."
            if latency
            else ""
        )
        + (
            " ▲: in a quarter of the seeds it is infinite, so that the band has no upper end."
            if unbounded
            else ""
        )
        + (" Dotted: load 1, more than which nobody can serve." if _marked(axis, ticks) else "")
        + (
            f" Of {len(panels)} groups of conditions the first {MOST_PANELS} are drawn; the data hold all."
            if len(panels) > MOST_PANELS
            else ""
        )
        + view.left_out,
        drawn,
        ("panel", "metric", "router", axis, "value", "low", "high"),
        rows,
        view.legend([label for label in view.drawn if label in named]),
    )


def _marked(axis: str, ticks: Sequence[float]) -> bool:
    """Return whether load 1 is within the axis."""
    return axis == "load" and ticks[0] <= 1.0 <= ticks[-1]


def _lines(
    view: View,
    places: Sequence[int],
    across: Sequence[float],
    scale: float,
    metric: str,
    estimate: Callable[[Floats], Estimate | None],
) -> dict[str, Line]:
    """Return each drawn router's estimates of a metric under some conditions, by where these lie across."""
    lines = {}
    ordered = sorted(places, key=lambda k: across[k])
    for label in view.drawn:
        values = scale * view.results.of(label, metric)
        found = ((across[k], estimate(values[k])) for k in ordered)
        line = [(x, value) for x, value in found if value is not None]
        if line:
            lines[label] = line
    return lines


def _quartiles(values: Floats) -> Estimate | None:
    """Return the median and the quartiles of what is defined, which may be infinite."""
    defined = values[~np.isnan(values)]
    if not len(defined):
        return None
    below, above = (np.quantile(defined, QUARTILES, method=how) for how in ("lower", "higher"))
    with np.errstate(invalid="ignore"):
        between = np.quantile(defined, QUARTILES)
    # Between a finite and an infinite value everything is infinite, as of the tables' medians.
    return Estimate(*np.where(below == above, below, np.where(np.isinf(above), above, between)).tolist())


def _unbounded(estimate: Estimate) -> bool:
    return math.isfinite(estimate.value) and math.isinf(estimate.high)


def _draw_lines(
    axes: Any,
    lines: Mapping[str, Line],
    styles: Mapping[str, Mapping[str, Any]],
    axis: str,
    ticks: Sequence[float],
    title: str,
    logarithmic: bool,
) -> None:
    for label, line in lines.items():
        x, values = np.array([x for x, _ in line]), np.array([value for _, value in line])
        values = np.where(np.isfinite(values), values, np.nan)
        axes.fill_between(x, values[:, 1], values[:, 2], color=styles[label]["color"], alpha=0.15, lw=0)
        axes.plot(x, values[:, 0], marker="o", ms=3, **styles[label])
        ends = [(at, value.value) for at, value in line if _unbounded(value)]
        if ends:
            axes.plot(*zip(*ends, strict=True), "^", ms=6, color=styles[label]["color"])
    first, last = ticks[0], ticks[-1]
    if wide(ticks):
        axes.set_xscale("log")
        axes.set_xticks(ticks, [f"{x:g}" for x in ticks])
        axes.set_xticks([], minor=True)
        axes.set_xlim(first / (last / first) ** 0.04, last * (last / first) ** 0.04)
    else:
        axes.set_xlim(first - 0.04 * (last - first), last + 0.04 * (last - first))
    if _marked(axis, ticks):
        axes.axvline(1.0, color=YARDSTICK, lw=0.9, ls=":")
    if logarithmic:
        axes.set_yscale("log")
        log_ticks(axes.yaxis)
    axes.set_xlabel(AXES.get(axis, axis), fontsize=9)
    axes.set_ylabel(title, fontsize=9)
    axes.tick_params(labelsize=8.5)
