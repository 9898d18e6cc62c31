"""Summaries of results as data, as tables and in Markdown (DESIGN 6)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import numpy as np

from routing_gym.evaluation.cloud_edge_report import CLOUD_EDGE
from routing_gym.evaluation.presentations import CLUSTER, DASH, INFINITE, Presentation
from routing_gym.evaluation.statistics import (
    Estimate,
    paired_difference,
    probability_of_improvement,
    stratified_iqm,
)

PRESENTATIONS = {show.family: show for show in (CLUSTER, CLOUD_EDGE)}
# Fewer seeds than this cannot give an interval of 95 %: by chance alone all of them fall on one side of the
# true difference with a probability of 2^(1 - seeds), where that is the median too.
FEW_SEEDS = 6

Row = Mapping[str, Any]


def summarise(
    plan: Mapping[str, Any], rows: Sequence[Row], curves: Sequence[Mapping[str, Any]] = ()
) -> dict[str, Any]:
    """Turn rows of episodes into a run's summary.

    Args:
        plan: the run's plan; its routers and conditions give the order.
        rows: episodes, as `results.read_episodes` returns them.
        curves: their curves, for the families that pool them.

    Returns:
        JSON-able: `reference`, `score`, `conditions` (per condition: `routers` with statistics of every
        metric over seeds, the paired `difference` to the reference, what the family pools, and `best`), and
        `overall`.
    """
    run = plan["run"]
    show = PRESENTATIONS[run["family"]]
    labels = [router["label"] for router in run["routers"]]
    roles = dict(zip(labels, run["roles"], strict=True))
    table: dict[tuple[str, str], dict[int, Row]] = {}
    for row in rows:
        table.setdefault((row["condition"], row["router"]), {})[row["seed"]] = row
    conditions = []
    for condition in run["conditions"]:
        here = {
            label: table[condition["name"], label] for label in labels if (condition["name"], label) in table
        }
        scores = {label: _scores(episodes, run["seeds"], show.score) for label, episodes in here.items()}
        reference = scores.get(run["reference"])
        pooled = {}
        if show.pool:
            name = condition["name"]
            found = ([one for one in kept if one["condition"] == name] for kept in (rows, curves))
            pooled = show.pool(condition, list(here), *found)
        conditions.append(
            {
                "name": condition["name"],
                "labels": condition["labels"],
                "config_hash": condition["config_hash"],
                **best_of({label: show.sign * s for label, s in scores.items() if roles[label] == "router"}),
                "routers": {
                    label: {
                        "role": roles[label],
                        "episodes": len(episodes),
                        "invalid_actions": _invalid(episodes),
                        "difference": None
                        if reference is None or label == run["reference"]
                        else _as_dict(paired_difference(scores[label], reference)),
                        "metrics": _statistics(list(episodes.values())),
                        **({"pooled": pooled[label]} if pooled else {}),
                    }
                    for label, episodes in here.items()
                },
            }
        )
    return {
        "family": run["family"],
        "score": show.score,
        "reference": run["reference"],
        "seeds": run["seeds"],
        "conditions": conditions,
        "overall": _overall(run, labels, roles, table, show),
    }


def best_of(scores: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Tell which router is best: one whose difference to every other excludes 0, or none.

    Args:
        scores: (seeds,) per router; more is better.

    Returns:
        `best`, a label or None, and `tied`: those that the highest mean does not beat, itself included. A
        router alone is not best.
    """
    means = {label: float(np.nanmean(s)) for label, s in scores.items() if np.isfinite(s).any()}
    if not means:
        return {"best": None, "tied": []}
    top = max(means, key=lambda label: means[label])
    tied = [top]
    for label in scores:
        difference = paired_difference(scores[top], scores[label])
        if label != top and (difference is None or not difference.excludes_zero):
            tied.append(label)
    return {
        "best": top if len(tied) == 1 < len(scores) else None,
        "tied": tied if len(tied) > 1 else [],
    }


def _invalid(episodes: Mapping[int, Row]) -> int:
    """Return how many actions over all episodes named what could not be had."""
    return sum(row.get("invalid_actions") or 0 for row in episodes.values())


def _scores(episodes: Mapping[int, Row], seeds: Sequence[int], score: str) -> np.ndarray:
    values = [episodes.get(seed, {}).get(score) for seed in seeds]
    return np.array([np.nan if value is None else value for value in values], np.float64)


def _statistics(episodes: Sequence[Row]) -> dict[str, Any]:
    """Return median, min, max and mean of each number over the episodes that define it, None without one."""
    result: dict[str, Any] = {}
    for name in episodes[0]:
        values = [row[name] for row in episodes if isinstance(row[name], (int, float))]
        if all(row[name] is None for row in episodes):
            result[name] = None
        if not values or name in ("seed", "router", "condition"):
            continue
        finite = not any(math.isinf(value) for value in values)
        result[name] = {
            "median": median(values),
            "min": min(values),
            "max": max(values),
            "mean": math.fsum(values) / len(values) if finite else math.inf,
            "defined": len(values),
        }
    return result


def _overall(
    run: Mapping[str, Any],
    labels: Sequence[str],
    roles: Mapping[str, str],
    table: Mapping[tuple[str, str], Mapping[int, Row]],
    show: Presentation,
) -> dict[str, Any]:
    """Return statistics over all conditions, of the routers whose every episode is there and defined."""
    names = [condition["name"] for condition in run["conditions"]]
    complete: dict[str, np.ndarray] = {}
    for label in labels:
        scores = np.array([_scores(table.get((name, label), {}), run["seeds"], show.score) for name in names])
        if np.isfinite(scores).all():
            complete[label] = scores
    reference = complete.get(run["reference"])
    overall = {}
    for label, scores in complete.items():
        entry = {
            "role": roles[label],
            "invalid_actions": sum(_invalid(table[name, label]) for name in names),
            "mean": float(scores.mean()),
            "iqm": _as_dict(stratified_iqm(scores)),
            "difference": None,
            "probability_of_improvement": None,
        }
        if reference is not None and label != run["reference"]:
            # Conditions share their seeds, so a seed's mean over conditions is what varies by chance.
            entry["difference"] = _as_dict(paired_difference(scores.mean(axis=0), reference.mean(axis=0)))
            better = probability_of_improvement(show.sign * scores, show.sign * reference)
            entry["probability_of_improvement"] = better
        overall[label] = entry
    return {
        "routers": overall,
        **best_of(
            {label: show.sign * s.mean(axis=0) for label, s in complete.items() if roles[label] == "router"}
        ),
    }


def _as_dict(estimate: Estimate | None) -> dict[str, Any] | None:
    return None if estimate is None else {**estimate._asdict(), "tie": not estimate.excludes_zero}


@dataclass(frozen=True)
class Sheet:
    """A table ready to be shown: cells as text, which rows are yardsticks, and which columns go first."""

    title: str
    headers: tuple[str, ...]
    rows: list[list[str]]
    yardsticks: list[bool]
    optional: Mapping[int, int] = field(default_factory=dict)


def sheets(summary: Mapping[str, Any]) -> list[Sheet]:
    """Lay out a summary's tables: one per condition, and one over all where there are several."""
    show = PRESENTATIONS[summary["family"]]
    reference = summary["reference"]
    result = []
    for condition in summary["conditions"]:
        rows = []
        for label, router in condition["routers"].items():
            cells = [column.show(router) for column in show.columns]
            rows.append(
                [_name(label, router, condition), *cells, _difference(label, router, reference, show)]
            )
        result.append(
            Sheet(
                condition["name"],
                ("router", *(column.title for column in show.columns), f"Δ to {reference}, {show.unit}"),
                rows,
                [router["role"] == "yardstick" for router in condition["routers"].values()],
                {k: column.optional for k, column in enumerate(show.columns, start=1) if column.optional},
            )
        )
    overall = summary["overall"]
    if len(summary["conditions"]) > 1 and overall["routers"]:
        rows = []
        mean_decimals, decimals = show.decimals
        for label, router in overall["routers"].items():
            iqm, better = router["iqm"], router["probability_of_improvement"]
            rows.append(
                [
                    _name(label, router, overall),
                    f"{show.scale * router['mean']:.{mean_decimals}f}",
                    "{:.{d}f} [{:.{d}f}, {:.{d}f}]".format(
                        *(show.scale * iqm[key] for key in ("value", "low", "high")), d=decimals
                    ).replace("inf", INFINITE),
                    _difference(label, router, reference, show),
                    DASH if better is None else f"{better:.2f}",
                ]
            )
        result.append(
            Sheet(
                f"All {len(summary['conditions'])} conditions, {show.score}",
                ("router", show.mean, "IQM [95 %]", f"Δ to {reference}, {show.unit}", "P(better)"),
                rows,
                [router["role"] == "yardstick" for router in overall["routers"].values()],
            )
        )
    return result


def _name(label: str, router: Mapping[str, Any], place: Mapping[str, Any]) -> str:
    invalid = router["invalid_actions"]
    mark = " ★" if place["best"] == label else ""
    return f"{label}{mark}" + (f" ({invalid} invalid)" if invalid else "")


def _difference(label: str, router: Mapping[str, Any], reference: str, show: Presentation) -> str:
    difference = router["difference"]
    if label == reference:
        return "reference"
    if difference is None:
        return DASH
    value, low, high = (show.scale * difference[key] for key in ("value", "low", "high"))
    d = show.decimals[1]
    text = f"{value:+.{d}f} [{low:+.{d}f}, {high:+.{d}f}]".replace("inf", INFINITE)
    return f"tie {text}" if difference["tie"] else text


def remarks(summary: Mapping[str, Any]) -> list[str]:
    """Say in words how to read the tables, and which conditions have no single best router."""
    show = PRESENTATIONS[summary["family"]]
    count = len(summary["seeds"])
    lines = [
        show.note,
        f"Δ: mean paired difference over {count} seed{'s' if count > 1 else ''} with its 95 % bootstrap "
        "interval; a tie where that holds 0. ★: better than every other router by such an interval. "
        f"Yardsticks (italic) {show.yardsticks}.",
    ]
    if count < FEW_SEEDS:
        lines.append(
            f"{count} seed{'s are' if count > 1 else ' is'} too few for an interval of 95 %: do not rely on "
            f"ties and ★; take {FEW_SEEDS} seeds at least."
        )
    if len(summary["conditions"]) > 1:
        lines.append(
            "Over all conditions: mean and interquartile mean (IQM, the middle half of all episodes) of "
            f"{show.score}; P(better): chance that an episode of the router beats one of the reference."
        )
    overlapping = [
        condition["name"]
        for condition in summary["conditions"]
        if count * condition["labels"].get("cutoff_s", 0.0) > condition["labels"].get("trace_s", math.inf)
    ]
    if overlapping:
        lines.append(
            "The seeds' stretches of the trace overlap, so intervals understate how much another trace would "
            f"differ: {'; '.join(overlapping)}."
        )
    lines += show.remarks(summary)
    ties = [
        f"{condition['name']}: {', '.join(condition['tied'])}"
        for condition in summary["conditions"]
        if condition["tied"]
    ]
    if ties:
        lines.append("No single best router: " + "; ".join(ties) + ".")
    listed = dict.fromkeys(label for condition in summary["conditions"] for label in condition["routers"])
    absent = [label for label in listed if label not in summary["overall"]["routers"]]
    if absent and len(summary["conditions"]) > 1:
        lines.append(
            f"Not compared over all conditions, as {show.score} is undefined in some episode: "
            f"{', '.join(absent)}."
        )
    return lines


def to_markdown(summary: Mapping[str, Any], plan: Mapping[str, Any]) -> str:
    """Return the summary as a Markdown page."""
    lines = [
        f"# Comparison: {plan['run']['environment']}",
        "",
        f"`{plan['command']}`",
        "",
        ", ".join(f"{name} {version}" for name, version in plan["versions"].items())
        + f", Python {plan['python']}; {plan['machine']}.",
        "",
    ]
    for sheet in sheets(summary):
        lines += [f"## {sheet.title}", "", *markdown_table(sheet), ""]
    for remark in remarks(summary):
        lines += [remark, ""]
    return "\n".join(lines)


def markdown_table(sheet: Sheet) -> list[str]:
    """Return a sheet as the lines of a Markdown table; yardsticks are in italics."""

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    lines = [line(sheet.headers), "|" + "---|" * len(sheet.headers)]
    for cells, yardstick in zip(sheet.rows, sheet.yardsticks, strict=True):
        lines.append(line([f"*{cells[0]}*" if yardstick else cells[0], *cells[1:]]))
    return lines
