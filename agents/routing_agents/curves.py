"""Pictures of a training run. Needs matplotlib, which Stable-Baselines3 brings."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from routing_agents.run_folder import CURVES, EVALUATIONS, PROGRESS, read_table
from routing_gym.evaluation.drawing import COLOURS, YARDSTICK, grid

LEARNED, OVERALL = "learned", "all"
_WIDTH, _HEIGHT = 5.4, 3.0
# Panels beside the score, and what each shows of what algorithms log; those without a value are left out.
_PANELS = {
    "mean reward of an episode": ("rollout/ep_rew_mean",),
    "entropy of the policy": ("train/entropy_loss",),
    "KL divergence of an update": ("train/approx_kl",),
    "explained variance of returns": ("train/explained_variance",),
    "loss": ("train/value_loss", "train/loss"),
    "exploration rate": ("rollout/exploration_rate",),
    "steps per second, evaluations left out": ("time/training_steps_per_s",),
}


def draw_curves(folder: Path, metric: str) -> Path:
    """Draw a run's curves from its tables, and return the picture's path.

    Args:
        folder: of the run.
        metric: column of the evaluations that routers are chosen by.
    """
    progress, evaluations = read_table(folder / PROGRESS), read_table(folder / EVALUATIONS)
    drawn = {}
    for title, names in _PANELS.items():
        name = next((name for name in names if any(row.get(name) for row in progress)), None)
        if name:
            drawn[title] = _line(progress, name)
    figure, panels = grid(2 + len(drawn), _WIDTH, _HEIGHT)
    _draw_score(panels[0], evaluations, metric)
    _draw_conditions(panels[1], evaluations, metric)
    for panel, (title, (steps, values)) in zip(panels[2:], drawn.items(), strict=True):
        sign = -1.0 if title.startswith("entropy") else 1.0  # what is logged is its negative
        panel.plot(steps, [sign * value for value in values], color=COLOURS[0], lw=1.4)
        panel.set_title(title, fontsize=10, loc="left")
    for panel in panels:
        panel.set_xlabel("million steps")
    path = folder / CURVES
    temporary = path.with_name(f".{path.name}")
    figure.savefig(temporary, dpi=110, format="png")
    temporary.replace(path)
    return path


def _line(rows: Sequence[Any], name: str) -> tuple[list[float], list[float]]:
    found = [(int(row["steps"]) / 1e6, float(row[name])) for row in rows if row.get(name)]
    return [steps for steps, _ in found], [value for _, value in found]


def _draw_score(panel: Any, evaluations: Sequence[Any], metric: str) -> None:
    """Draw the score over all conditions, beside the references."""
    overall = [row for row in evaluations if row["condition"] == OVERALL and row[metric]]
    for row in overall:
        if row["router"] != LEARNED:
            panel.axhline(float(row[metric]), color=YARDSTICK, lw=1.1, ls="--")
            panel.annotate(
                row["router"],
                (1.0, float(row[metric])),
                xycoords=("axes fraction", "data"),
                xytext=(-2, 3),
                textcoords="offset points",
                ha="right",
                fontsize=8,
            )
    steps, values = _line([row for row in overall if row["router"] == LEARNED], metric)
    panel.plot(steps, values, color=COLOURS[0], lw=1.8, marker="o", ms=3)
    if len(values) > 2:  # what a network does untrained would flatten all the rest
        shown = [*values[1:], *(float(row[metric]) for row in overall if row["router"] != LEARNED)]
        room = 0.1 * (max(shown) - min(shown)) or 0.01
        panel.set_ylim(min(shown) - room, max(shown) + room)
    panel.set_title(f"{metric} on development seeds, all conditions", fontsize=10, loc="left")


def _draw_conditions(panel: Any, evaluations: Sequence[Any], metric: str) -> None:
    """Draw the score under each condition."""
    conditions: dict[str, list[Any]] = {}
    for row in evaluations:
        if row["router"] == LEARNED and row["condition"] != OVERALL:
            conditions.setdefault(row["condition"], []).append(row)
    for k, rows in enumerate(conditions.values()):
        panel.plot(*_line(rows, metric), color=COLOURS[k % len(COLOURS)], lw=0.9, alpha=0.7)
    panel.set_title(f"{metric} on development seeds, each condition", fontsize=10, loc="left")
