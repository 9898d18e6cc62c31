"""Plots of predicted quality: calibration and AUC, the choice of K, and the deferral curve.

They need matplotlib (extra `plots`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from routing_gym.evaluation.cloud_edge_plots import MARKERS
from routing_gym.evaluation.drawing import COLOURS, DASHES, YARDSTICK, grid, save
from routing_gym.evaluation.quality_report import Deferral, Trials
from routing_gym.quality.assessment import Assessment


def write_plots(
    folder: Path,
    assessment: Assessment,
    found: Deferral | None,
    trials: Trials,
    settings: Mapping[str, Any],
) -> list[Path]:
    """Draw what there is into a folder that exists; return the paths.

    Args:
        folder: where the PNG files go.
        assessment: what was measured.
        found: the deferral curve, if there is one.
        trials: what cross-validation tried; empty without it.
        settings: what was chosen, by the names of `FitSettings`.

    Raises:
        ImportError: matplotlib is not installed.
    """
    written = [draw_assessment(folder / "assessment.png", assessment)]
    if trials:
        written.append(draw_cross_validation(folder / "cross_validation.png", trials, settings))
    if found is not None:
        written.append(draw_deferral(folder / "deferral.png", found))
    return written


def draw_assessment(path: Path, assessment: Assessment) -> Path:
    """Draw the reliability diagram beside the AUC of each model with its 95 % interval; return the path.

    Of several tasks, hollow marks below show the AUC within them. The bins of a model lie on the diagonal
    where its predictions are calibrated. Models without a recorded score are left out.

    Raises:
        ImportError: matplotlib is not installed.
    """
    shown = [*(one for one in assessment.models if one.rows), assessment.pooled]
    figure, (reliability, areas) = grid(2, 4.9, max(3.6, 1.2 + 0.3 * len(shown)))
    handles: dict[str, Any] = {
        "calibrated": reliability.plot([0, 1], [0, 1], color=YARDSTICK, lw=1, ls=":")[0]
    }
    several = len({one.group for one in assessment.groups}) > 1
    areas.axvline(0.5, color=YARDSTICK, lw=1, ls=":")
    for k, one in enumerate(shown):
        pooled = one is assessment.pooled
        style: dict[str, Any] = {
            "color": YARDSTICK if pooled else COLOURS[k % len(COLOURS)],
            "marker": "o" if pooled else MARKERS[k % len(MARKERS)],
            "ms": 5,
        }
        (handles[one.model],) = reliability.plot(
            [held.predicted for held in one.bins],
            [held.recorded for held in one.bins],
            lw=2.2 if pooled else 0.9,
            alpha=1.0 if pooled else 0.75,
            **style,
        )
        place = len(shown) - 1 - k
        areas.plot(one.auc[1:3], [place, place], color=style["color"], lw=2.2)
        areas.plot(one.auc.value, place, **style)
        if several:
            lower = place - 0.3
            areas.plot(one.auc_within_tasks[1:3], [lower, lower], color=style["color"], lw=0.9)
            (handles["within tasks"],) = areas.plot(
                one.auc_within_tasks.value, lower, **style, mfc="white", ls="none"
            )
    reliability.set_xlim(-0.02, 1.02)
    reliability.set_ylim(-0.02, 1.02)
    reliability.set_xlabel("mean prediction of a bin")
    reliability.set_ylabel("mean recorded score")
    reliability.set_title("calibration", fontsize=10, loc="left")
    areas.set_yticks(range(len(shown)), [one.model for one in reversed(shown)], fontsize=9)
    areas.set_ylim(-0.8, len(shown) - 0.4)
    areas.set_xlabel("AUC and its 95 % interval (½: no signal)")
    areas.set_title("how well prompts are ranked", fontsize=10, loc="left")
    if "within tasks" in handles:
        handles["within tasks"] = handles.pop("within tasks")  # the last
    return save(figure, path, handles)


def draw_cross_validation(path: Path, trials: Trials, chosen: Mapping[str, Any]) -> Path:
    """Draw the errors that were made with each setting tried; return the path.

    Over K the mean squared error and the AUC, a line per threshold; over the number of clusters, where those
    were tried, the mean squared error.

    Args:
        path: of the PNG file.
        trials: what was tried.
        chosen: `neighbours`, `threshold` and `clusters` of what to mark.

    Raises:
        ImportError: matplotlib is not installed.
    """
    figure, panels = grid(1 + len(trials), 3.7, 3.2, 3)
    handles: dict[str, Any] = {}
    thresholds = sorted({trial.threshold for trial in trials["neighbours"]})
    for k, threshold in enumerate(thresholds):
        line = [trial for trial in trials["neighbours"] if trial.threshold == threshold]
        marked = [trial for trial in line if trial[:2] == (chosen["neighbours"], chosen["threshold"])]
        for panel, measure in zip(panels, ("mse", "auc"), strict=False):
            handles[f"cosine > {threshold:g}"] = _over(panel, line, measure, marked, k)
    labels = ["neighbours K"] * 2
    if "clusters" in trials:
        marked = [trial for trial in trials["clusters"] if trial.clusters == chosen["clusters"]]
        handles["errors by cluster"] = _over(panels[2], trials["clusters"], "mse", marked, len(thresholds))
        labels.append("clusters")
    for panel, label, measure in zip(
        panels, labels, ("mean squared error", "AUC", "mean squared error"), strict=False
    ):
        panel.set_xlabel(label)
        panel.set_ylabel(measure)
        for mark in panel.collections:
            handles["chosen"] = mark
    return save(figure, path, handles)


def _over(panel: Any, trials: Sequence[Any], measure: str, marked: Sequence[Any], k: int) -> Any:
    """Draw a measure over the first field of trials, as the k-th line, and ring those that are marked."""
    trials = sorted(trials)
    values = [[getattr(trial, measure) for trial in part] for part in (trials, marked)]
    across = [[trial[0] for trial in part] for part in (trials, marked)]
    (line,) = panel.plot(
        across[0],
        values[0],
        color=COLOURS[k % len(COLOURS)],
        dashes=DASHES[k % len(DASHES)],
        marker=MARKERS[k % len(MARKERS)],
        ms=4,
        lw=1.5,
    )
    if marked:
        panel.scatter(across[1], values[1], s=130, facecolors="none", edgecolors=YARDSTICK, zorder=3)
    panel.set_xscale("log")
    panel.set_xticks(across[0], [str(count) for count in across[0]])
    panel.set_xticks([], minor=True)
    return line


def draw_deferral(path: Path, found: Deferral) -> Path:
    """Draw mean score over mean cost as λ grows, every model alone marked; return the path.

    Args:
        path: of the PNG file.
        found: the curve.

    Raises:
        ImportError: matplotlib is not installed.
    """
    figure, [panel] = grid(1, 6.6, 3.8)
    _, scores, costs = found.curve.T
    (line,) = panel.plot(costs, scores, color=YARDSTICK, lw=1.8, zorder=2)
    handles: dict[str, Any] = {"least cluster error + λ·price": line}
    for k, (model, (score, cost)) in enumerate(found.singles.items()):
        handles[model] = panel.scatter(
            cost, score, marker=MARKERS[k % len(MARKERS)], s=55, color=COLOURS[k % len(COLOURS)], zorder=3
        )
    if min(*costs, *(cost for _, cost in found.singles.values())) > 0.0:
        panel.set_xscale("log")
    panel.set_xlabel(f"mean cost, {found.cost}")
    panel.set_ylabel("mean recorded score")
    return save(figure, path, handles)
