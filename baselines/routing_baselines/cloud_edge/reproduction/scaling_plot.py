"""Our counterpart of the source's Figure 7: J by number of destinations. Needs matplotlib."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from routing_baselines.cloud_edge.reproduction.published import DECISION, PAIR, PUBLISHED, Played, figures
from routing_gym.evaluation.drawing import grid, save

SHOWN = (*PAIR, "greedy", "local_search", "optimal")
PANELS = (
    ("source_objective", "source's J", PAIR),
    ("objective", "J in fixed bounds", SHOWN),
    (DECISION.metric, "decision, ms", SHOWN),
)


def draw_scaling(path: Path, conditions: Sequence[Played], styles: Mapping[str, Any]) -> Path:
    """Draw means with 95 % intervals, and what is published of the ends; return the path.

    Args:
        path: of the PNG.
        conditions: with the label `destinations`, ascending.
        styles: per router, as `drawing.styles_of` returns them.

    Raises:
        ImportError: matplotlib is not installed.
    """
    published = PUBLISHED["figure_7"]
    destinations = [played.labels["destinations"] for played in conditions]
    found = {name: [figures(played, name) for played in conditions] for name in SHOWN}
    figure, panels = grid(len(PANELS), 4.2, 3.4, columns=3)
    handles: dict[str, Any] = {}
    for panel, (metric, title, names) in zip(panels, PANELS, strict=True):
        for name in names:
            rows = found[name]
            handles[name] = panel.plot(destinations, [row[metric].ours for row in rows], **styles[name])[0]
            if rows[0][metric].low is not None:
                low, high = ([getattr(row[metric], end) for row in rows] for end in ("low", "high"))
                panel.fill_between(destinations, low, high, color=styles[name]["color"], alpha=0.15, lw=0)
        panel.set_xscale("log", base=2)
        panel.set_xticks(destinations, [str(count) for count in destinations])
        panel.minorticks_off()
        panel.set(xlabel="destinations M", ylabel=title)
    ends = [published["destinations"][0], published["destinations"][-1]]
    for name in PAIR:
        row = published["routers"][name]
        marks: dict[str, Any] = {
            "color": styles[name]["color"],
            "marker": "D",
            "ms": 7,
            "mfc": "none",
            "ls": "",
        }
        handles[f"{name}, published"] = panels[0].plot(ends, row["objective"], **marks)[0]
        panels[2].plot(ends, 1000.0 * np.array(row["decision_s"]), **marks)
    panels[0].set_ylim(bottom=0.0)
    panels[1].set_ylim(bottom=0.0)
    panels[2].set_yscale("log")
    return save(figure, path, handles)
