"""Plots of a cluster run: latency, attainment, and queues around an event."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from routing_gym.cluster.metrics import CDF_GRID_MS, TIMELINE_POINTS
from routing_gym.evaluation.drawing import grid, interval_row, mean_curve, name_rows, save
from routing_gym.evaluation.statistics import bootstrap_mean

DEADLINE = "#D32F2F"
LATENCIES_MS = (3.0, 3000.0)


def draw(
    folder: Path,
    run: Mapping[str, Any],
    conditions: Sequence[Mapping[str, Any]],
    rows: Sequence[Mapping[str, Any]],
    curves: Sequence[Mapping[str, Any]],
    styles: Mapping[str, Any],
) -> list[Path]:
    """Draw a run's plots into `folder` and return their paths; see `plots.write_plots`."""
    written = [_attainment(folder / "attainment.png", run, conditions, rows, styles)]
    if curves:
        written.append(_latency(folder / "latency_cdf.png", conditions, curves, styles))
        written.append(_queues(folder / "queues.png", conditions, curves, styles))
    return written


def _latency(path: Path, conditions: Sequence[Any], curves: Sequence[Any], styles: Mapping[str, Any]) -> Path:
    """Latency over all arrivals: a curve that stays below 1 shows what was shed or left unfinished."""
    figure, panels = grid(len(conditions), 5.4, 3.1)
    handles: dict[str, Any] = {}
    for panel, condition in zip(panels, conditions, strict=True):
        found = {label: mean_curve(curves, condition["name"], label, "latency_cdf") for label in styles}
        cdfs = {label: cdf for label, cdf in found.items() if cdf is not None}
        handles |= draw_latency(panel, condition["config"]["deadline_ms"], cdfs, styles)
        panel.set_title(condition["name"], fontsize=10, loc="left")
    return save(figure, path, handles)


def draw_latency(
    panel: Any, deadline_ms: float, cdfs: Mapping[str, Any], styles: Mapping[str, Any]
) -> dict[str, Any]:
    """Draw routers' distributions of latency on `CDF_GRID_MS`, and the deadline; return the handles."""
    handles = {"deadline": panel.axvline(deadline_ms, color=DEADLINE, lw=1.1, zorder=0)}
    for label, cdf in cdfs.items():
        (handles[label],) = panel.plot(CDF_GRID_MS, cdf, **styles[label])
    panel.set_xscale("log")
    panel.set_xticks([2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000], minor=False)
    panel.xaxis.set_major_formatter("{x:g}")
    panel.minorticks_off()
    panel.set_xlim(*LATENCIES_MS)
    panel.set_ylim(0, 1.01)
    panel.set_xlabel("latency, ms")
    panel.set_ylabel("share of all arrivals")
    return handles


def _attainment(
    path: Path,
    run: Mapping[str, Any],
    conditions: Sequence[Any],
    rows: Sequence[Any],
    styles: Mapping[str, Any],
) -> Path:
    """Mean attainment with its bootstrap interval, one line per router, one panel per condition."""
    figure, panels = grid(len(conditions), 5.4, 0.55 + 0.27 * len(styles))
    labels = list(styles)[::-1]
    for panel, condition in zip(panels, conditions, strict=True):
        for place, label in enumerate(labels):
            values = [
                100.0 * row["attainment"]
                for row in rows
                if row["condition"] == condition["name"]
                and row["router"] == label
                and row["attainment"] is not None
            ]
            if not values:
                continue
            estimate = bootstrap_mean(values)
            interval_row(panel, place, estimate, styles[label]["color"], f"{estimate.value:.1f}")
        name_rows(panel, labels)
        panel.margins(x=0.14)
        panel.set_title(condition["name"], fontsize=10, loc="left")
        panel.set_xlabel("attainment, % of all arrivals")
    figure.suptitle(
        f"Mean over {len(run['seeds'])} seeds with 95 % bootstrap interval; ◆ yardsticks", fontsize=9
    )
    figure.savefig(path, dpi=130)
    return path


def _queues(path: Path, conditions: Sequence[Any], curves: Sequence[Any], styles: Mapping[str, Any]) -> Path:
    """Outstanding requests in the whole cluster over time, with the scenario's events marked."""
    figure, panels = grid(len(conditions), 5.4, 2.9)
    handles: dict[str, Any] = {}
    for panel, condition in zip(panels, conditions, strict=True):
        config = condition["config"]
        cutoff = condition["labels"].get("cutoff_s") or config["warmup_s"] + config["measured_s"]
        listed = [*config["scenarios"][config["scenario"]], *config["events"]]
        events = [event for event in listed if event["time_s"] <= cutoff]
        instants = np.linspace(0.0, cutoff, TIMELINE_POINTS)
        for label, style in styles.items():
            queue = mean_curve(curves, condition["name"], label, "outstanding")
            if queue is not None:
                (handles[label],) = panel.plot(instants, queue, **style)
        # Room above the curves for the events' names.
        panel.set_ylim(0, panel.get_ylim()[1] * (1.12 if events else 1.0))
        for event in events:
            panel.axvline(event["time_s"], color="#777777", lw=0.9, ls=":")
            what = event["kind"] if event["replica"] is None else f"{event['kind']} {event['replica']}"
            panel.annotate(
                what if event["factor"] is None else f"{what} ×{event['factor']:g}",
                (event["time_s"], 1.0),
                xycoords=("data", "axes fraction"),
                xytext=(3, -3),
                textcoords="offset points",
                va="top",
                fontsize=8,
                color="#333333",
            )
        if events:
            times = [event["time_s"] for event in events]
            panel.set_xlim(max(0.0, min(times) - 2.0), min(cutoff, max(times) + 4.0))
        panel.set_title(condition["name"], fontsize=10, loc="left")
        panel.set_xlabel("time, s")
        panel.set_ylabel("outstanding requests")
    return save(figure, path, handles)
