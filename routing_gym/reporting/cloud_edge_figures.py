"""Figures of cloud–edge batches: the four terms, how searches converge, and what decisions take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from routing_gym.evaluation.cloud_edge_plots import (
    TERMS,
    convergence_of,
    draw_convergence,
    proven,
)
from routing_gym.evaluation.cloud_edge_report import dispatched
from routing_gym.evaluation.decisions import decision_percentiles
from routing_gym.evaluation.drawing import YARDSTICK, name_rows
from routing_gym.reporting.common_figures import broken, draw_estimates, height_of
from routing_gym.reporting.figure import Figure
from routing_gym.reporting.frontier_figure import frontier
from routing_gym.reporting.view import Floats, View, cells, panel, short_names, spread

MOST_PANELS = 4
DECISION = ("decision_ms_median", "decision_ms_p99")

Curves = Mapping[int, Sequence[Mapping[str, Any]]]
Times = Mapping[str, tuple[float, float]]


def cloud_edge_figures(view: View) -> list[Figure | None]:
    """Return the figures that only this family has."""
    conditions = view.results.conditions
    curves = {k: view.results.curves(conditions[k]["name"]) for k in spread(len(conditions), MOST_PANELS)}
    return [terms(view), frontier(view), convergence(view, curves), decision_time(view, curves)]


def terms(view: View) -> Figure | None:
    """The four raw terms of the batch problem, over all conditions."""
    labels = [line.label for line in view.analysis.lines]
    panels, rows = [], []
    for metric, title, scale in TERMS:
        found = [(label, view.over(label, metric, scale)) for label in labels]
        kept = [(label, value, _figures(value.value)) for label, value in found if value is not None]
        rows += [cells(title, label, value) for label, value, _ in kept]
        if any(value.value for _, value, _ in kept):
            height = height_of([label for label, _, _ in kept])
            panels.append(panel(draw_estimates, kept, view.styles, title, {}, height=height))
    if not panels:
        return None
    count = len(view.places)
    return Figure(
        "terms",
        "The four terms",
        "What J is made of, before weights and bounds, per batch: less is better in each. Means"
        + (f" over {count} conditions" if count > 1 else "")
        + f", {view.with_interval('interval')}; ◆ yardsticks. A router may be good in one "
        "term because it is bad in another. A term that is 0 throughout is not drawn.",
        panels,
        ("term", "router", "mean", "low", "high"),
        rows,
    )


def _figures(value: float) -> str:
    """Format a number with four digits that count, or all before the point."""
    return f"{value:.4g}" if abs(value) < 1e4 else f"{value:.0f}"


def convergence(view: View, curves: Curves) -> Figure | None:
    """What searches would return over the time of a decision."""
    conditions, roles = view.results.conditions, view.results.roles
    names = short_names(conditions)
    searches = [label for label in view.drawn if roles[label] == "router"]
    panels, rows = [], []
    drawn: dict[str, None] = {}
    optima = False
    left_out: dict[str, None] = {}
    for k, listed in curves.items():
        others = (curve["router"] for curve in listed if "convergence" in curve)
        left_out |= dict.fromkeys(label for label in others if label not in view.drawn)
        found = convergence_of(listed, searches)
        if not found:
            continue
        optimum = proven(listed, searches)
        drawn |= dict.fromkeys(found)
        optima |= optimum is not None
        panels.append(panel(_draw_convergence, found, optimum, view.styles, title=names[k]))
        name = conditions[k]["name"]
        rows += [
            cells(name, label, 1000.0 * instant, best)
            for label, curve in found.items()
            for instant, best in zip(*curve, strict=True)
        ]
        if optimum is not None:
            rows.append(cells(name, "proven optimum", None, optimum))
    if not panels:
        return None
    return Figure(
        "convergence",
        "Convergence of searches",
        f"J, on predictions, of what a search would return in each episode's first batch: mean over "
        f"{view.seeds}, at the median time by which so much of its work was done."
        + (" Dotted: mean proven optimum." if optima else "")
        + _some(len(panels), len(conditions))
        + " Times depend on the machine."
        + (f" Left out, as their means are among the worst: {', '.join(left_out)}." if left_out else ""),
        panels,
        ("condition", "router", "ms", "objective_predicted"),
        rows,
        view.legend(list(drawn))
        | ({"proven optimum": {"color": YARDSTICK, "dashes": (1, 1.6), "lw": 1.1}} if optima else {}),
    )


def _draw_convergence(axes: Any, found: Any, optimum: float | None, styles: Mapping[str, Any]) -> None:
    draw_convergence(axes, found, optimum, styles)
    axes.set_ylabel("J that it would return", fontsize=9)
    axes.tick_params(labelsize=8.5)


def decision_time(view: View, curves: Curves) -> Figure | None:
    """Median and p99 of the time that assigning a batch takes."""
    conditions = view.results.conditions
    names = short_names(conditions)
    panels, rows = [], []
    for k, listed in curves.items():
        times = _times(view, k, listed)
        if not times:
            continue
        height = height_of(list(times))
        panels.append(panel(_draw_times, times, view.styles, height=height, title=names[k]))
        rows += [cells(conditions[k]["name"], label, *pair) for label, pair in times.items()]
    if not panels:
        return None
    return Figure(
        "decision_time",
        "Decision time",
        "Time to assign a batch: median (filled) and p99 (hollow) over all decisions."
        + _some(len(panels), len(conditions))
        + " It depends on the machine and on what else runs there; intervals would say nothing of that.",
        panels,
        ("condition", "router", "median_ms", "p99_ms"),
        rows,
    )


def _times(view: View, place: int, curves: Sequence[Mapping[str, Any]]) -> Times:
    """Return each router's median and p99, ms: over its decisions, or else medians of its episodes' own."""
    found: dict[str, list[Any]] = {}
    for curve in curves:
        if "decision_ms" in curve:
            found.setdefault(curve["router"], []).append(dispatched(curve, "decision_ms")[:, 0])
    times = {}
    for label in view.results.routers:
        if label in found:
            figures = decision_percentiles(np.concatenate(found[label]))
            pair = [figures[metric] for metric in DECISION]
        else:
            pair = [_median(view.results.of(label, metric)[place]) for metric in DECISION]
        median, p99 = pair
        if median is not None and p99 is not None:
            times[label] = (median, p99)
    return times


def _median(values: Floats) -> float | None:
    """Return the median of the finite values; None without one."""
    finite = values[np.isfinite(values)]
    return float(np.median(finite)) if len(finite) else None


def _draw_times(axes: Any, times: Times, styles: Mapping[str, Mapping[str, Any]]) -> None:
    labels = list(times)[::-1]
    for place, label in enumerate(labels):
        median, p99 = times[label]
        colour = styles[label]["color"]
        axes.plot([median, p99], [place, place], color=colour, lw=1.2, alpha=0.6)
        axes.plot(median, place, "o", color=colour, ms=5)
        axes.plot(p99, place, "o", color=colour, ms=5, mfc="none")
        axes.annotate(
            f"{median:.2g} / {p99:.2g}",
            (p99, place),
            xytext=(6, 0),
            textcoords="offset points",
            va="center",
            fontsize=8.5,
        )
    name_rows(axes, [broken(label) for label in labels])
    axes.set_xscale("log")
    axes.margins(x=0.22)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter("")
    axes.set_xlabel("decision time, ms: median / p99", fontsize=9)
    axes.tick_params(axis="x", labelsize=8.5)


def _some(shown: int, count: int) -> str:
    return f" {shown} of {count} conditions, spread over their order." if shown < count else ""
