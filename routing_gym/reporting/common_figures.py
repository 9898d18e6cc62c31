"""Figures of both families over all conditions: the ranking, and performance profiles."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from routing_gym.evaluation.drawing import YARDSTICK, interval_row, name_rows
from routing_gym.evaluation.scales import Profile, performance_profile
from routing_gym.evaluation.statistics import Estimate
from routing_gym.reporting.analysis import FLOOR
from routing_gym.reporting.figure import Figure
from routing_gym.reporting.tables import counted
from routing_gym.reporting.view import View, cells, panel

ROW_IN, BROKEN_ROW_IN, FRAME_IN = 0.25, 0.33, 0.75
# What the score is called, and the column of a figure's data that holds it.
SCORE = {
    "cluster": ("attainment, % of all arrivals", "attainment_pct"),
    "cloud_edge": ("J per batch, less is better", "objective"),
}
LONG_LABEL = 28
THRESHOLDS = 101
# Where documented routers are hardly better than random, normalised scores of others have no limit.
MOST = 3.0


def rank(view: View) -> Figure | None:
    """Routers by their mean score over all conditions, with intervals, beside what a source publishes."""
    show, lines = view.results.show, view.analysis.lines
    if not lines:
        return None
    found = {line.label: view.over(line.label, show.score, show.scale) for line in lines}
    estimates = {label: estimate for label, estimate in found.items() if estimate is not None}
    published = {line.label: show.scale * line.published for line in lines if line.published is not None}
    ordered = sorted(estimates, key=lambda label: -show.sign * estimates[label].value)
    title, column = SCORE[show.family]
    count = len(view.places)
    return Figure(
        "rank",
        "Ranking",
        f"Mean {show.score} over {f'{count} conditions' if count > 1 else 'the condition'}, best first, "
        f"{view.with_interval('interval')}; ◆ yardsticks."
        + (" Hollow: what the source reports." if published else "")
        + " Routers share their seeds, so that two of them may differ for sure although their intervals "
        "overlap: see the paired differences in the table.",
        [
            panel(
                draw_estimates,
                [(label, estimates[label], _decimals(view, estimates[label])) for label in ordered],
                view.styles,
                title,
                published,
                height=height_of(ordered),
            )
        ],
        ("router", "role", column, "low", "high", "published"),
        [
            cells(label, view.results.roles[label], estimates[label], published.get(label))
            for label in ordered
        ],
    )


def _decimals(view: View, estimate: Estimate) -> str:
    return f"{estimate.value:.{view.results.show.decimals[0]}f}"


def draw_estimates(
    axes: Any,
    lines: Sequence[tuple[str, Estimate, str]],
    styles: Mapping[str, Mapping[str, Any]],
    title: str,
    published: Mapping[str, float],
) -> None:
    """Draw estimates a line each, the first at the top.

    Args:
        axes: of matplotlib.
        lines: label, estimate and the text beside it.
        styles: of the routers.
        title: of the axis.
        published: hollow marks, by label.
    """
    for place, (label, estimate, text) in enumerate(reversed(lines)):
        there = published.get(label, -math.inf)
        interval_row(axes, place, estimate, styles[label]["color"], text, there)
        if label in published:
            axes.plot(there, place, "o", ms=9, mfc="none", color=YARDSTICK, mew=1.1)
    name_rows(axes, [broken(label) for label, _, _ in reversed(lines)])
    axes.margins(x=0.2)
    axes.set_xlabel(title, fontsize=9)
    axes.tick_params(axis="x", labelsize=8.5)


def height_of(labels: Sequence[str]) -> float:
    """Return the height of a panel with a line for each label, inches."""
    row = BROKEN_ROW_IN if any("\n" in broken(label) for label in labels) else ROW_IN
    return FRAME_IN + row * len(labels)


def broken(label: str) -> str:
    """Return a router's label, on two lines where it is long."""
    head, colon, tail = label.partition(":")
    return f"{head}{colon}\n{tail}" if len(label) > LONG_LABEL and tail else label


def profile(view: View) -> Figure | None:
    """Performance profiles of normalised scores (Agarwal et al., 2021)."""
    normalised = view.analysis.normalised
    if normalised is None or not normalised.kept:
        return None
    scores = {label: normalised.scores[label] for label in view.drawn if label in normalised.scores}
    tops = [
        float(np.quantile(runs, 0.99))
        for label, runs in scores.items()
        if view.results.roles[label] == "router"
    ]
    thresholds = np.linspace(0.0, min(max(1.1, 1.05 * max(tops)), MOST), THRESHOLDS)
    profiles = {label: performance_profile(normalised, label, thresholds) for label in scores}
    out = len(normalised.left_out)
    return Figure(
        "profile",
        "Performance profiles",
        "Share of runs (a condition and a seed each) whose normalised score is above τ: 0 is random routing, "
        "1 the best documented router of the condition, both in the mean over seeds. Higher is better; bands "
        f"are pointwise 95 % bootstrap intervals over {view.seeds}. "
        + counted(len(normalised.kept), "condition")
        + (f"; {out} {'is' if out == 1 else 'are'} not normalised and listed above." if out else ".")
        + view.left_out,
        [panel(_draw_profiles, thresholds, profiles, view.styles, height=3.3)],
        ("router", "threshold", "share", "low", "high"),
        [
            cells(label, *values)
            for label, found in profiles.items()
            for values in zip(thresholds, *found, strict=True)
        ],
        view.legend(list(profiles)),
    )


def _draw_profiles(
    axes: Any, thresholds: Any, profiles: Mapping[str, Profile], styles: Mapping[str, Mapping[str, Any]]
) -> None:
    for label, found in profiles.items():
        axes.fill_between(thresholds, found.low, found.high, color=styles[label]["color"], alpha=0.13, lw=0)
        axes.plot(thresholds, found.share, **styles[label])
    axes.axvline(1.0, color=YARDSTICK, lw=0.8, ls=":")
    axes.set_xlim(0.0, thresholds[-1])
    axes.set_ylim(0.0, 1.02)
    axes.set_xlabel(f"normalised score τ ({FLOOR} 0, best documented 1)", fontsize=9)
    axes.set_ylabel("share of runs above τ", fontsize=9)
    axes.tick_params(labelsize=8.5)
