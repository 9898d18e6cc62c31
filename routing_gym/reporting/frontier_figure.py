"""Quality against cost of cloud–edge routers, with the hulls of those that have a dial (RouterBench)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from routing_gym.evaluation.cloud_edge_plots import MARKERS
from routing_gym.evaluation.frontier import aiq, non_decreasing_hull
from routing_gym.evaluation.statistics import Estimate
from routing_gym.reporting.figure import Figure
from routing_gym.reporting.view import View, called, cells, identifying, interval, key_of, panel, spread
from routing_gym.studies.config import is_number

Floats = NDArray[np.float64]

MOST_PANELS = 4
DIAL = "weights"
COLUMNS = (
    *("panel", "kind", "condition", "router"),
    *("cost", "cost_low", "cost_high", "quality", "quality_low", "quality_high"),
)
# US dollars for so many requests.
PER_REQUESTS = 1000.0


@dataclass(frozen=True)
class Family:
    """Points of one router, at several settings or one.

    Attributes:
        label: without what varies.
        points: of each setting: condition, router, cost and quality with their intervals.
        hull: corners (k, 2), where there are several settings.
        aiq: of the hull over the panel's range.
    """

    label: str
    points: list[tuple[str, str, Estimate, Estimate]]
    hull: Floats | None = None
    aiq: float | None = None


def frontier(view: View) -> Figure | None:
    """Quality of answers over cost per request, where requests cost something."""
    conditions = view.results.conditions
    names = identifying(conditions, [DIAL])
    groups: dict[tuple[str, ...], list[int]] = {}
    for k, condition in enumerate(conditions):
        groups.setdefault(key_of(condition, names), []).append(k)
    settings = bases(view.results.run["routers"])
    base_of = {
        label: base for label, base in settings.items() if label in view.drawn or _has_dial(base, settings)
    }
    out = len(settings) - len(base_of)
    looks: dict[str, dict[str, Any]] = {}
    for label, base in base_of.items():
        marker = MARKERS[len(looks) % len(MARKERS)]
        looks.setdefault(base, {"color": view.styles[label]["color"], "marker": marker})
    keys = list(groups)
    panels, rows, ranges = [], [], []
    drawn: dict[str, None] = {}
    for key in (keys[k] for k in spread(len(keys), MOST_PANELS)):
        name = called(conditions[groups[key][0]], names)
        families, span = _with_hulls(_families(view, groups[key], base_of))
        if not any(cost.value > 0.0 for family in families for _, _, cost, _ in family.points):
            continue
        drawn |= dict.fromkeys(family.label for family in families)
        panels.append(panel(_draw, families, looks, title=name, height=3.4))
        rows += [line for family in families for line in _rows(name, family)]
        found = [f"{one.label} {one.aiq:.3f}" for one in families if one.aiq is not None]
        if found and span is not None:
            where = f"{name}: " if name else ""
            ranges.append(f"{where}{', '.join(found)} over {span[0]:.3g} to {span[1]:.3g} $")
    if not panels:
        return None
    return Figure(
        "frontier",
        "Quality against cost",
        "Mean quality of answers over mean cost of a thousand requests, a point per router and setting: up "
        "and to the left is better. Energy and completion time are not shown. No intervals are shown "
        "(the data have those of points): small differences may be chance."
        + (
            " Lines are non-decreasing convex hulls: what a router reaches by mixing its settings at random. "
            "AIQ is a hull's mean quality from the least cost that every hull has to the largest of any; "
            f"past its own end a hull is level (Hu et al., 2024, arXiv 2403.12031): {'; '.join(ranges)}."
            if ranges
            else ""
        )
        + (f" {len(panels)} of {len(groups)} groups of conditions." if len(panels) < len(groups) else "")
        + (
            f" {out} of the routers with the worst means {'is' if out == 1 else 'are'} left out."
            if out
            else ""
        ),
        panels,
        COLUMNS,
        rows,
        {label: looks[label] for label in drawn},
    )


def bases(routers: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return each router's label without its dial: a number that is all in which others of its name differ.

    Routers whose settings differ in several numbers have none: their settings trade nothing.

    Args:
        routers: of the run's plan: `label`, `name` and `params`.
    """
    found = {}
    for router in routers:
        relatives = [other["params"] for other in routers if other["name"] == router["name"]]
        varied = [
            key
            for key in dict.fromkeys(key for params in relatives for key in params)
            if len({str(params.get(key)) for params in relatives}) > 1
        ]
        dials = [
            key for key in varied if all(is_number(params[key]) for params in relatives if key in params)
        ]
        if len(dials) == 1:
            kept = [f"{key}={value}" for key, value in router["params"].items() if key not in dials]
            found[router["label"]] = ":".join([router["name"].partition("/")[2], *kept])
        else:
            found[router["label"]] = router["label"]
    return found


def _has_dial(base: str, settings: Mapping[str, str]) -> bool:
    return list(settings.values()).count(base) > 1


def _families(view: View, places: Sequence[int], base_of: Mapping[str, str]) -> list[Family]:
    """Return the points of routers under these conditions, the settings of one router together."""
    results = view.results
    grouped: dict[str, list[tuple[str, str, Estimate, Estimate]]] = {}
    for label, base in base_of.items():
        cost = results.of(label, "cost_usd") * results.of(label, "nonempty_windows")
        with np.errstate(divide="ignore", invalid="ignore"):
            each = PER_REQUESTS * cost / results.of(label, "dispatched")
        quality = results.of(label, "quality")
        for k in places:
            paid, had = interval(each[k]), interval(quality[k])
            if paid is not None and had is not None:
                grouped.setdefault(base, []).append((results.conditions[k]["name"], label, paid, had))
    return [Family(base, points) for base, points in grouped.items()]


def _with_hulls(families: Sequence[Family]) -> tuple[list[Family], tuple[float, float] | None]:
    """Give routers with several settings their hulls and AIQ; return the range of costs, None without hulls.

    The range begins where the last hull begins, and ends at the largest cost of a hull.
    """
    hulls = {}
    for family in families:
        points = np.array([(cost.value, quality.value) for _, _, cost, quality in family.points])
        if len(np.unique(points, axis=0)) > 1:
            hulls[family.label] = non_decreasing_hull(*points.T)
    if not hulls:
        return list(families), None
    low = max(float(hull[0, 0]) for hull in hulls.values())
    high = max(float(hull[-1, 0]) for hull in hulls.values())
    return [
        Family(one.label, one.points, hulls[one.label], aiq(hulls[one.label], low, high))
        if one.label in hulls
        else one
        for one in families
    ], (low, high)


def _rows(name: str, family: Family) -> list[tuple[Any, ...]]:
    rows = [cells(name, "point", *point) for point in family.points]
    if family.hull is not None:
        rows += [
            cells(name, "hull", None, family.label, cost, None, None, quality, None, None)
            for cost, quality in family.hull
        ]
        rows.append(cells(name, "aiq", None, family.label, None, None, None, family.aiq, None, None))
    return rows


def _draw(axes: Any, families: Sequence[Family], looks: Mapping[str, Mapping[str, Any]]) -> None:
    right = max(cost.value for family in families for _, _, cost, _ in family.points)
    for k, family in enumerate(families):
        look = looks[family.label]
        if family.hull is not None:
            corners = np.vstack([family.hull, (right, family.hull[-1, 1])])
            axes.plot(*corners.T, color=look["color"], lw=1.3, zorder=1)
        axes.scatter(
            [cost.value for _, _, cost, _ in family.points],
            [quality.value for *_, quality in family.points],
            # Later ones are smaller, so that those which coincide are all seen.
            s=20 + 60 * (1 - k / len(families)),
            alpha=0.85,
            linewidths=0,
            zorder=2,
            **look,
        )
    axes.margins(0.08)
    axes.set_xlabel("cost of 1000 requests, $", fontsize=9)
    axes.set_ylabel("mean quality", fontsize=9)
    axes.tick_params(labelsize=8.5)
