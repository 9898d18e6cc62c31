"""Plots of a cloud–edge run: the terms and their trade-offs, how searches converge, and backlogs."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from routing_gym.evaluation.drawing import YARDSTICK, grid, log_ticks, mean_curve, save
from routing_gym.evaluation.statistics import bootstrap_mean

Records = Sequence[Mapping[str, Any]]

# Metric, axis label, and what it is multiplied by.
OBJECTIVE = ("objective", "J", 1.0)
TERMS = (
    ("quality_loss", "quality loss Q", 1.0),
    ("cost_usd", "cost C, m$", 1000.0),
    ("energy_j", "energy E, J", 1.0),
    ("completion_s", "completion time T, s", 1.0),
)
MARKERS = ("o", "s", "^", "v", "D", "P", "X", "<", ">", "p", "h")
POINTS = 101


def draw(
    folder: Path,
    run: Mapping[str, Any],
    conditions: Records,
    rows: Records,
    curves: Records,
    styles: Mapping[str, Any],
) -> list[Path]:
    """Draw a run's plots into `folder` and return their paths; see `plots.write_plots`.

    Convergence is drawn where some search tells of it, backlogs where episodes have several windows.
    """
    written = [
        _terms(folder / "terms.png", run, conditions, rows, styles),
        _tradeoffs(folder / "tradeoffs.png", conditions, rows, styles),
    ]
    searches = [
        label
        for label in styles
        if styles[label]["color"] != YARDSTICK
        and any(curve["router"] == label and "convergence" in curve for curve in curves)
    ]
    if searches:
        written.append(_convergence(folder / "convergence.png", conditions, curves, styles, searches))
    longer = [condition for condition in conditions if condition["config"]["windows"] > 1]
    if longer:
        written.append(_backlog(folder / "backlog.png", longer, curves, styles))
    return written


def _values(rows: Records, condition: Mapping[str, Any], label: str, metric: str) -> list[float]:
    """Return a metric of a router's episodes under a condition, where it is defined."""
    mine = [row for row in rows if row["condition"] == condition["name"] and row["router"] == label]
    return [row[metric] for row in mine if row[metric] is not None]


def _terms(
    path: Path, run: Mapping[str, Any], conditions: Records, rows: Records, styles: Mapping[str, Any]
) -> Path:
    """J and the four raw terms (source, Fig. 5): means with bootstrap intervals, a row per condition."""
    shown = (OBJECTIVE, *TERMS)
    figure, panels = grid(len(shown) * len(conditions), 2.7, 0.8 + 0.24 * len(styles), len(shown))
    labels = list(styles)[::-1]
    for panel, (condition, (metric, title, scale)) in zip(
        panels, itertools.product(conditions, shown), strict=True
    ):
        for place, label in enumerate(labels):
            values = _values(rows, condition, label, metric)
            if not values:
                continue
            mean, low, high = (scale * value for value in bootstrap_mean(values))
            colour = styles[label]["color"]
            panel.barh(place, mean, 0.7, color=colour, alpha=0.45)
            panel.plot([low, high], [place, place], color=colour, lw=2.5)
            panel.annotate(
                f"{mean:.4g}",
                (max(high, mean), place),
                xytext=(4, 0),
                textcoords="offset points",
                va="center",
                fontsize=8,
            )
        named = metric == OBJECTIVE[0]
        panel.set_yticks(range(len(labels)), labels if named else [], fontsize=9)
        panel.set_ylim(-0.6, len(labels) - 0.4)
        panel.set_xlim(0, 1.22 * max(panel.get_xlim()[1], 1e-12))
        panel.set_xlabel(title)
        if named:
            panel.set_title(condition["name"], fontsize=10, loc="left")
    figure.suptitle(f"Mean over {len(run['seeds'])} seeds with 95 % bootstrap interval", fontsize=9)
    figure.savefig(path, dpi=130)
    return path


def _tradeoffs(path: Path, conditions: Records, rows: Records, styles: Mapping[str, Any]) -> Path:
    """Each pair of raw terms, a point per router: down and to the left is better.

    Later routers have smaller points, so that those which coincide are all seen.
    """
    pairs = list(itertools.combinations(TERMS, 2))
    columns = 3 if len(conditions) == 1 else len(pairs)
    figure, panels = grid(len(pairs) * len(conditions), 3.6, 3.0, columns)
    handles: dict[str, Any] = {}
    for panel, (condition, (across, up)) in zip(panels, itertools.product(conditions, pairs), strict=True):
        for k, (label, style) in enumerate(styles.items()):
            x, y = (_values(rows, condition, label, metric) for metric, _, _ in (across, up))
            if x and y:
                handles[label] = panel.scatter(
                    across[2] * np.mean(x),
                    up[2] * np.mean(y),
                    marker=MARKERS[k % len(MARKERS)],
                    s=30 + 90 * (1 - k / len(styles)),
                    color=style["color"],
                    alpha=0.8,
                    linewidths=0.6,
                    edgecolors="white",
                )
        panel.margins(0.12)
        panel.set_xlabel(across[1])
        panel.set_ylabel(up[1])
        if (across, up) == pairs[0]:
            panel.set_title(condition["name"], fontsize=10, loc="left")
    return save(figure, path, handles)


def _convergence(
    path: Path, conditions: Records, curves: Records, styles: Mapping[str, Any], searches: Sequence[str]
) -> Path:
    """J of what a search would return in each episode's first batch, over the time of the decision."""
    figure, panels = grid(len(conditions), 5.4, 3.1)
    handles: dict[str, Any] = {}
    for panel, condition in zip(panels, conditions, strict=True):
        here = [curve for curve in curves if curve["condition"] == condition["name"]]
        handles |= draw_convergence(panel, convergence_of(here, searches), proven(here, searches), styles)
        panel.set_title(condition["name"], fontsize=10, loc="left")
    return save(figure, path, handles)


def convergence_of(curves: Records, searches: Sequence[str]) -> dict[str, tuple[Any, Any]]:
    """Return each search's `mean_convergence` in these episodes' first batches, where it tells of it."""
    found: dict[str, list[Any]] = {}
    for curve in curves:
        if curve["router"] in searches and "convergence" in curve:
            found.setdefault(curve["router"], []).append(np.array(curve["convergence"]))
    return {label: mean_convergence(found[label]) for label in searches if label in found}


def proven(curves: Records, searches: Sequence[str]) -> float | None:
    """Return the mean proven optimum of the first batches of these episodes; None where none was proven."""
    bounds = {
        curve["seed"]: curve["bound"][np.flatnonzero(curve["requests"])[0]]
        for curve in curves
        if curve["router"] in searches and "bound" in curve and any(curve["requests"])
    }
    return float(np.mean(list(bounds.values()))) if bounds else None


def draw_convergence(
    panel: Any, found: Mapping[str, tuple[Any, Any]], optimum: float | None, styles: Mapping[str, Any]
) -> dict[str, Any]:
    """Draw what `convergence_of` and `proven` return; return the handles."""
    handles: dict[str, Any] = {}
    for label, (instants, best) in found.items():
        (handles[label],) = panel.plot(1000.0 * instants, best, drawstyle="steps-post", **styles[label])
        panel.plot(1000.0 * instants[-1], best[-1], "o", ms=4, color=styles[label]["color"])
    if optimum is not None:
        handles["proven optimum"] = panel.axhline(optimum, color=YARDSTICK, lw=1.1, ls=":")
    panel.set_xscale("log")
    log_ticks(panel.xaxis)
    panel.set_xlabel("time since the decision began, ms")
    panel.set_ylabel("J of the assignment that it would return")
    return handles


def mean_convergence(found: Sequence[Any]) -> tuple[Any, Any]:
    """Return the median time (n,), s, and the mean J (n,) at which searches have done so much of their steps.

    A search that the machine has held up so moves the others' times by little.

    Args:
        found: per search (k, 2), a step each: when it was done, and the J of the best assignment then.
    """
    shares = np.linspace(0.0, 1.0, POINTS)
    steps = np.array([one[(shares * (len(one) - 1)).astype(np.int64)] for one in found])
    return np.median(steps[..., 0], axis=0), steps[..., 1].mean(axis=0)


def _backlog(path: Path, conditions: Records, curves: Records, styles: Mapping[str, Any]) -> Path:
    """Work that is left over after each window's dispatch, over all destinations."""
    figure, panels = grid(len(conditions), 5.4, 2.9)
    handles: dict[str, Any] = {}
    for panel, condition in zip(panels, conditions, strict=True):
        for label, style in styles.items():
            backlog = mean_curve(curves, condition["name"], label, "backlog_s")
            if backlog is not None:
                (handles[label],) = panel.plot(np.arange(1, len(backlog) + 1), backlog, **style)
        panel.set_ylim(bottom=0)
        panel.set_title(condition["name"], fontsize=10, loc="left")
        panel.set_xlabel("window")
        panel.set_ylabel("total backlog, s")
        panel.xaxis.get_major_locator().set_params(integer=True)
    return save(figure, path, handles)
