"""Figures of the inference cluster: latency over all arrivals, and who pays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from routing_gym.cluster.metrics import CDF_GRID_MS
from routing_gym.evaluation.cluster_plots import DEADLINE, LATENCIES_MS, draw_latency
from routing_gym.evaluation.drawing import mean_curve
from routing_gym.evaluation.statistics import Estimate
from routing_gym.reporting.figure import Figure
from routing_gym.reporting.view import View, cells, panel, short_names

MOST_PANELS = 4
DIGITS = 5
# Attainment of a class of requests, by what they ask for.
CLASSES = {
    "attainment_q1": "smallest\nquarter",
    "attainment_q2": "second",
    "attainment_q3": "third",
    "attainment_q4": "largest\nquarter",
    "attainment_largest_5pct": "largest\n5 %",
}


def cluster_figures(view: View) -> list[Figure | None]:
    """Return the figures that only this family has."""
    return [latency_cdf(view), who_pays(view)]


def latency_cdf(view: View) -> Figure | None:
    """Distributions of latency over all arrivals, under the hardest conditions."""
    conditions = view.results.conditions
    names = short_names(conditions)
    panels, rows = [], []
    drawn: dict[str, None] = {}
    chosen = hardest(view)
    for k in chosen:
        condition = conditions[k]
        curves = view.results.curves(condition["name"])
        found = {label: mean_curve(curves, condition["name"], label, "latency_cdf") for label in view.drawn}
        cdfs = {label: cdf for label, cdf in found.items() if cdf is not None}
        if not cdfs:
            continue
        drawn |= dict.fromkeys(cdfs)
        deadline = condition["config"]["deadline_ms"]
        panels.append(panel(_draw_cdfs, deadline, cdfs, view.styles, title=names[k]))
        shown = np.flatnonzero((CDF_GRID_MS >= LATENCIES_MS[0]) & (CDF_GRID_MS <= LATENCIES_MS[1]))
        rows += [
            cells(condition["name"], label, round(CDF_GRID_MS[i], DIGITS), round(float(cdf[i]), DIGITS))
            for label, cdf in cdfs.items()
            for i in shown
        ]
    if not panels:
        return None
    several = len(conditions) > len(panels)
    scenarios = len({condition["labels"].get("scenario") for condition in conditions}) > 1
    return Figure(
        "latency_cdf",
        "Latency over all arrivals",
        f"Mean over {view.seeds} of the share of all arrivals complete by a latency; red: the deadline."
        " A curve that stays below 1 shows what was shed or left unfinished."
        + (
            f" {len(panels)} of {len(conditions)} conditions: the hardest by the best documented router's "
            f"attainment{', of each scenario first' if scenarios else ''}."
            if several
            else ""
        )
        + " How the seeds vary is not shown."
        + view.left_out,
        panels,
        ("condition", "router", "latency_ms", "share_of_arrivals"),
        rows,
        {"deadline": {"color": DEADLINE, "dashes": (), "lw": 1.1}} | view.legend(list(drawn)),
    )


def _draw_cdfs(axes: Any, deadline_ms: float, cdfs: Mapping[str, Any], styles: Mapping[str, Any]) -> None:
    draw_latency(axes, deadline_ms, cdfs, styles)
    axes.tick_params(labelsize=8.5)


def hardest(view: View) -> list[int]:
    """Return up to four conditions: those in which the best documented router does worst.

    The hardest of each scenario come first, then each one's second, and so on.
    """
    best = view.best_documented()
    seen: dict[Any, int] = {}
    ranked: list[tuple[int, int, int]] = []
    for k in sorted(np.flatnonzero(~np.isnan(best)).tolist(), key=lambda k: best[k]):
        scenario = view.results.conditions[k]["labels"].get("scenario")
        seen[scenario] = seen.get(scenario, 0) + 1
        ranked.append((seen[scenario], len(ranked), k))
    return sorted(k for _, _, k in sorted(ranked)[:MOST_PANELS])


def who_pays(view: View) -> Figure | None:
    """Attainment of small and large requests."""
    found = {label: [view.over(label, metric, 100.0) for metric in CLASSES] for label in view.drawn}
    found = {label: estimates for label, estimates in found.items() if any(estimates)}
    if not found:
        return None
    count = len(view.places)
    return Figure(
        "who_pays",
        "Who pays",
        f"Mean attainment over {f'{count} conditions' if count > 1 else 'the condition'} by what requests "
        "ask of a replica: quarters of demand, and the largest 5 %, "
        f"{view.with_interval('interval')}. Large requests are the harder ones, so that every line falls; "
        "one that falls more steeply than another's serves small requests at large ones' cost. The lines "
        "only guide the eye." + view.left_out,
        [panel(_draw_classes, found, view.styles, height=3.6)],
        ("router", "requests", "attainment_pct", "low", "high"),
        [
            cells(label, metric, estimate)
            for label, estimates in found.items()
            for metric, estimate in zip(CLASSES, estimates, strict=True)
            if estimate is not None
        ],
        view.legend(list(found)),
    )


def _draw_classes(
    axes: Any, found: Mapping[str, Sequence[Estimate | None]], styles: Mapping[str, Mapping[str, Any]]
) -> None:
    # Side by side, so that intervals of routers that do alike are all seen.
    offsets = np.linspace(-0.16, 0.16, len(found)) if len(found) > 1 else [0.0]
    for offset, (label, estimates) in zip(offsets, found.items(), strict=True):
        points = [(place + offset, *estimate) for place, estimate in enumerate(estimates) if estimate]
        x, value, low, high = np.array(points).T
        axes.plot(x, value, marker="o", ms=3.5, **{**styles[label], "lw": 1.0})
        axes.vlines(x, low, high, color=styles[label]["color"], lw=1.8, alpha=0.6)
    axes.set_xticks(range(len(CLASSES)), CLASSES.values(), fontsize=8.5)
    axes.set_ylabel("attainment, %", fontsize=9)
    axes.tick_params(axis="y", labelsize=8.5)
