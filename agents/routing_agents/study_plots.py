"""Pictures of the study. Needs matplotlib (extra `plots`)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from routing_agents.study_report import GOAL
from routing_agents.study_scores import Results, defined_mean, median_over_conditions
from routing_gym.evaluation.drawing import COLOURS, YARDSTICK, grid, save

PANEL = "rate_per_s"
TRAINED, DOCUMENTED, REFERENCE, SEEDS = COLOURS[0], COLOURS[1], COLOURS[2], COLOURS[5]
OTHERS = [colour for colour in COLOURS if colour not in (TRAINED, SEEDS)]
BOUND = "bound"
LATENCIES = ("p99 over all arrivals, ms (median over conditions)", "mean latency of completed requests, ms")
TICKS_MS = (20, 30, 40, 50, 60, 80, 100, 120, 150, 200, 300, 400, 600, 1000, 2000)


def draw(folder: Path, results: Mapping[str, Results]) -> list[Path]:
    """Draw what the parts of the study have pictures of, `learned_PART.png`, and return their paths.

    Raises:
        ImportError: matplotlib is not installed.
    """
    written = []
    for name, mine in results.items():
        path = folder / f"learned_{name}.png"
        other = results.get(mine.report.beside or "")
        if mine.report.steered:
            written.append(_frontier(path, mine.beside(other) if other else mine, other))
        elif mine.report.split and PANEL in mine.crossed:
            written.append(_by_size(path, mine, other))
        elif mine.family == "cluster" and PANEL in mine.crossed:
            written.append(_by_condition(path, mine))
    return written


def _lines(results: Results) -> list[tuple[str, str, str, Any]]:
    """Return what is drawn of a cluster part: name, colour, marker, attainment (routers, conditions)."""

    def means(*routers: str) -> Any:
        return 100.0 * np.array([results.scores(router, "attainment").mean(axis=1) for router in routers])

    usual, trained, selection = results.reference, results.trained, results.played.selection
    if selection is not None:
        usual = f"{usual.partition(':')[0]}, best of {len(selection.routers)}"
    drawn = [
        ("best documented", DOCUMENTED, "s", means(*results.documented).max(axis=0, keepdims=True)),
        (usual, REFERENCE, "o", means(results.reference)),
        (f"trained, {len(trained)} seeds", TRAINED, "o", means(*trained)),
    ]
    for router, marker in ((GOAL, "D"), (BOUND, "|")):
        if router in results.routers:
            drawn.append((router, YARDSTICK, marker, means(router)))
    return drawn


def _by_condition(path: Path, results: Results) -> Path:
    """One row per condition, one panel per rate; trained routers as their mean and range."""
    rates = results.values(PANEL)
    rows = [field for field in results.crossed if field != PANEL]
    count = len(results.where(PANEL, rates[0]).conditions)
    figure, panels = grid(len(rates), 3.9, 0.8 + 0.36 * count, columns=3)
    handles: dict[str, Any] = {}
    for k, (panel, rate) in enumerate(zip(panels, rates, strict=True)):
        here = results.where(PANEL, rate)
        places = np.arange(len(here.conditions))[::-1]
        for name, colour, marker, values in _lines(here):
            panel.hlines(places, values.min(axis=0), values.max(axis=0), color=colour, lw=3, alpha=0.4)
            size = 11 if marker == "|" else 5
            (handles[name],) = panel.plot(
                values.mean(axis=0), places, marker, color=colour, ms=size, mew=1.4, ls="none"
            )
        names = [", ".join(f"{c['labels'][field]}" for field in rows) for c in here.conditions]
        panel.set_yticks(places, names if k == 0 else [""] * len(names), fontsize=9)
        panel.set_ylim(-0.6, len(places) - 0.4)
        panel.margins(x=0.06)
        panel.set_title(f"{rate:g} requests/s", fontsize=10, loc="left")
        panel.set_xlabel("attainment, % of all arrivals")
    panels[0].set_ylabel(", ".join(rows))
    return save(figure, path, handles)


def _by_size(path: Path, results: Results, other: Results | None) -> Path:
    """Attainment over what the part is split by, one panel per rate; the other part is as trained."""
    split = str(results.report.split)
    few = results.load_of_replicas
    usual = f" with {few}, load kept" if few else ""
    rates = results.values(PANEL)
    figure, panels = grid(len(rates), 3.6, 3.2, columns=3)
    handles: dict[str, Any] = {}
    for panel, rate in zip(panels, rates, strict=True):
        here = results.where(PANEL, rate)
        found = [(f"{value}", here.where(split, value)) for value in here.values(split)]
        if other is not None:
            trained = other.where(PANEL, rate)
            found.insert(0, (f"{trained.conditions[0]['config'][split]}\n(trained)", trained))
        points: dict[str, list[Any]] = {}
        for place, (_, one) in enumerate(found):
            for name, colour, marker, values in _lines(one):
                whole = values.mean(axis=1)
                points.setdefault(name, []).append((place, whole, colour, marker))
        for name, series in points.items():
            places = [place for place, *_ in series]
            _, _, colour, marker = series[0]
            middle = [whole.mean() for _, whole, *_ in series]
            panel.vlines(
                places,
                [w.min() for _, w, *_ in series],
                [w.max() for _, w, *_ in series],
                color=colour,
                lw=3,
                alpha=0.4,
            )
            (handles[name],) = panel.plot(
                places, middle, color=colour, marker="_" if marker == "|" else marker, ms=6, mew=1.6, lw=1.2
            )
        panel.set_xticks(range(len(found)), [name for name, _ in found])
        panel.set_xlim(-0.3, len(found) - 0.7)
        panel.set_xlabel(split)
        panel.set_title(f"{rate:g} requests/s{usual}", fontsize=10, loc="left")
    panels[0].set_ylabel("attainment, % of all arrivals")
    return save(figure, path, handles)


def _frontier(path: Path, results: Results, other: Results | None) -> Path:
    """Attainment against tail and mean latency: the steered router's curve, and other routers as points."""
    shares = {router: f"w = {share:g}" for router, share in results.steered.items()}
    texts = [*shares.values()]
    # The ends only, on either side of the curve: it may be short.
    named = {texts[0]: (-8, 3, "right"), texts[-1]: (-8, -9, "right")}
    trained = other.trained if other else ()
    at = {router: _place(results, router) for router in results.routers if router != BOUND}
    figure, panels = grid(2, 5.4, 4.2)
    handles: dict[str, Any] = {}
    for column, (panel, title) in enumerate(zip(panels, LATENCIES, strict=True)):
        curve = np.array([(at[router][column], at[router][2]) for router in shares])
        shown = np.isfinite(curve[:, 0])
        (handles["one router, any w"],) = panel.plot(*curve[shown].T, "-o", color=TRAINED, lw=1.4, ms=4)
        for (x, y), text in zip(curve, shares.values(), strict=True):
            if math.isfinite(x) and text in named:
                right, up, side = named[text]
                panel.annotate(
                    text, (x, y), xytext=(right, up), textcoords="offset points", ha=side, fontsize=8
                )
        points = [router for router in at if router not in shares]
        for k, router in enumerate(points):
            colour, marker = OTHERS[k % len(OTHERS)], "sv^P<>"[k % 6]
            if router in trained:
                colour, marker = SEEDS, "*"
            elif results.roles[router] == "yardstick":
                colour, marker = YARDSTICK, "D"
            name = f"trained, {len(trained)} seeds" if router in trained else router
            x, y = at[router][column], at[router][2]
            if math.isfinite(x):
                (handles[name],) = panel.plot(x, y, marker, color=colour, ms=6, ls="none")
        beyond = [shares.get(router, router) for router in at if not math.isfinite(at[router][column])]
        panel.set_title(f"infinite: {', '.join(beyond)}" if beyond else "", fontsize=8, loc="left")
        panel.set_xscale("log")
        low, high = panel.get_xlim()
        panel.set_xticks([x for x in TICKS_MS if low <= x <= high])
        panel.xaxis.set_major_formatter("{x:g}")
        panel.minorticks_off()
        panel.set_xlabel(title)
    panels[0].set_ylabel("attainment, % of all arrivals")
    return save(figure, path, handles)


def _place(results: Results, router: str) -> tuple[float, float, float]:
    """Return a router's p99 over all arrivals (ms), mean latency (ms) and attainment (%)."""
    p99, _ = median_over_conditions(results.scores(router, "p99_all_ms"))
    latency = defined_mean(results.scores(router, "mean_latency_ms"))
    missing = math.inf
    return (
        missing if p99 is None else p99,
        missing if latency is None else latency,
        100.0 * float(results.scores(router, "attainment").mean()),
    )
