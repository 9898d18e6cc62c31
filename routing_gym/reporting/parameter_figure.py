"""The score against routers' parameters: of a part, and of the candidates of which it has chosen one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from routing_gym.evaluation.drawing import COLOURS, DASHES, YARDSTICK, log_ticks
from routing_gym.evaluation.statistics import Estimate
from routing_gym.reporting.analysis import analyse, over_conditions
from routing_gym.reporting.common_figures import SCORE
from routing_gym.reporting.figure import Figure, Panel
from routing_gym.reporting.sweeps import Sweep, sweeps
from routing_gym.reporting.view import View, cells, panel, wide

MOST_PANELS = 8
# Of the largest to the least decision time from which it is drawn: less may be the machine's unrest.
SLOWER = 2.0
DECISION = "decision_ms_median"
SHIPPED = "shipped value"
RING = {"color": YARDSTICK, "marker": "o", "mfc": "none", "ms": 9, "mew": 1.1}

Style = Mapping[str, Any]
Levels = Mapping[str, tuple[float, Style]]


@dataclass(frozen=True)
class Curve:
    """A line of a sweep as it is drawn.

    Attributes:
        name: in the legend; empty of the only one of a sweep.
        estimates: of the mean score, by value of the parameter.
        times: of a decision, ms, by value of the parameter, where there are any.
        shipped: the value that ships; None where the line has no such point.
        style: of the line.
    """

    name: str
    estimates: Mapping[float, Estimate]
    times: Mapping[float, float]
    shipped: float | None
    style: Style


def parameters(view: View) -> Figure | None:
    """The score against a parameter of a router that is there with several of its values."""
    show = view.results.show
    analysed = [line.label for line in view.analysis.lines]
    routers = [router for router in view.results.run["routers"] if router["label"] in analysed]
    found = sweeps(routers, show.family)
    if not found:
        return None
    title, column = SCORE[show.family]
    levels = {sweep.name: _levels(view, sweep.name) for sweep in found}
    looks = _looks(found, [style["color"] for level in levels.values() for _, style in level.values()])
    panels: list[Panel] = []
    rows: list[tuple[Any, ...]] = []
    legend: dict[str, Style] = {}
    drawn: list[bool] = []
    for sweep in found:
        curves = [_curve(view, sweep, second, looks) for second in sweep.lines]
        for curve in curves:
            others = ":".join([*sweep.held, *([curve.name] if curve.name else [])])
            rows += [
                cells(sweep.name, sweep.parameter, value, others, estimate, curve.times.get(value))
                for value, estimate in curve.estimates.items()
            ]
        level = levels[sweep.name]
        name = ":".join([sweep.name, *sweep.held])
        wanted = [panel(_draw_scores, curves, sweep.parameter, title, list(level.values()), title=name)]
        times = [time for curve in curves for time in curve.times.values()]
        if times and max(times) > SLOWER * min(times):
            wanted.append(panel(_draw_times, curves, sweep.parameter, title=name))
        wanted = wanted[: MOST_PANELS - len(panels)]
        if wanted:
            panels += wanted
            drawn.append(len(wanted) > 1)
            legend |= {curve.name: curve.style for curve in curves if curve.name}
            if any(curve.shipped is not None for curve in curves):
                legend[SHIPPED] = RING
            legend |= {label: style for label, (_, style) in level.items()}
    count = len(view.places)
    return Figure(
        "parameters",
        "Against a router's parameters",
        f"Mean {show.score} over {f'{count} conditions' if count > 1 else 'the condition'} by the value of a "
        f"parameter, {view.with_interval('band')}. Other parameters are as shipped, unless "
        "a title or a line's name says otherwise."
        + (
            " Decision time is the median; it depends on the machine, and is drawn where values differ in it "
            f"more than {SLOWER:g}-fold."
            if any(drawn)
            else ""
        )
        + (
            f" {len(drawn)} of {len(found)} series are drawn; the data hold all."
            if len(drawn) < len(found)
            else ""
        )
        + " Values share their seeds, so that two may differ for sure although their bands overlap. The best "
        "one is picked by what is shown here, which flatters it.",
        panels,
        ("name", "parameter", "value", "other_parameters", column, "low", "high", "decision_ms"),
        rows,
        legend,
    )


def candidates(view: View) -> Figure | None:
    """The same of the candidates that one was chosen of, on development seeds."""
    selection = view.results.selection
    figure = None if selection is None else parameters(View(selection, analyse(selection)))
    if figure is None:
        return None
    caption = f"{figure.caption} The one chosen is played anew on the seeds of the other figures."
    return replace(figure, name="selection", title="Candidates on development seeds", caption=caption)


def _levels(view: View, name: str) -> Levels:
    """Return what the best yardstick and the best router of another name are called, have, and look like."""
    show = view.results.show
    named = {router["label"]: router["name"].partition("/")[2] for router in view.results.run["routers"]}
    levels = {}
    for role, yardstick, look in (("yardstick", True, {}), ("other router", False, {"dashes": (5, 2)})):
        others = [
            line for line in view.analysis.lines if line.yardstick == yardstick and named[line.label] != name
        ]
        if others:
            best = max(others, key=lambda line: show.sign * line.mean)
            style = {**view.styles[best.label], **look, "lw": 1.1}
            levels[f"best {role}: {best.label}"] = show.scale * best.mean, style
    return levels


def _looks(found: Sequence[Sweep], taken: Sequence[str]) -> dict[str, Style]:
    """Return the style of each line's name, in colours that nothing else has."""
    colours = [colour for colour in COLOURS if colour not in taken]
    names = dict.fromkeys(sweep.called(second) for sweep in found for second in sweep.lines)
    return {
        name: {
            "color": colours[k % len(colours)],
            "dashes": DASHES[k // len(colours) % len(DASHES)],
            "lw": 1.6,
        }
        for k, name in enumerate(names)
    }


def _curve(view: View, sweep: Sweep, second: float | None, looks: Mapping[str, Style]) -> Curve:
    show = view.results.show
    line = sweep.lines[second]
    estimates = {value: view.over(label, show.score, show.scale) for value, label in line.items()}
    times = {
        value: over_conditions(view.results.of(label, DECISION)[view.places], median=True)
        for value, label in line.items()
    }
    usual = sweep.shipped.get(sweep.parameter)
    there = usual in line and (sweep.second is None or sweep.shipped.get(sweep.second) == second)
    name = sweep.called(second)
    return Curve(
        name,
        {value: estimate for value, estimate in estimates.items() if estimate is not None},
        {value: time for value, time in times.items() if time is not None},
        usual if there else None,
        looks[name],
    )


def _draw_scores(
    axes: Any, curves: Sequence[Curve], parameter: str, title: str, levels: Sequence[tuple[float, Style]]
) -> None:
    for curve in curves:
        bounds = np.array([(estimate.low, estimate.high) for estimate in curve.estimates.values()])
        axes.fill_between(list(curve.estimates), *bounds.T, color=curve.style["color"], alpha=0.15, lw=0)
        means = {value: estimate.value for value, estimate in curve.estimates.items()}
        _draw_line(axes, curve, means)
    for score, style in levels:
        axes.axhline(score, **style)
    _label(axes, curves, parameter, title)


def _draw_times(axes: Any, curves: Sequence[Curve], parameter: str) -> None:
    for curve in curves:
        _draw_line(axes, curve, curve.times)
    times = [time for curve in curves for time in curve.times.values()]
    if wide(times):
        axes.set_yscale("log")
        log_ticks(axes.yaxis)
    else:
        axes.set_ylim(bottom=0.0)
    _label(axes, curves, parameter, "median decision time, ms")


def _draw_line(axes: Any, curve: Curve, line: Mapping[float, float]) -> None:
    axes.plot(list(line), list(line.values()), marker="o", ms=3, **curve.style)
    if curve.shipped is not None and curve.shipped in line:
        axes.plot(curve.shipped, line[curve.shipped], **RING)


def _label(axes: Any, curves: Sequence[Curve], parameter: str, title: str) -> None:
    if wide([value for curve in curves for value in curve.estimates]):
        axes.set_xscale("log")
        log_ticks(axes.xaxis)
    axes.set_xlabel(parameter, fontsize=9)
    axes.set_ylabel(title, fontsize=9)
    axes.tick_params(labelsize=8.5)
