"""How cloud–edge results are shown, and the figures that belong to a condition as a whole (DESIGN 4, 6)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from routing_gym.cloud_edge.evaluator import Floats, cross_router_objective
from routing_gym.cloud_edge.metrics import WINDOW_TERMS
from routing_gym.evaluation.decisions import decision_percentiles
from routing_gym.evaluation.presentations import Column, Presentation, Rows


def dispatched(curve: Mapping[str, Any], *names: str) -> Floats:
    """Return some of an episode's curves (batches, names), over the windows that dispatched something."""
    return np.array([curve[name] for name in names], np.float64).T[np.array(curve["requests"]) > 0]


def pool(
    condition: Mapping[str, Any], labels: Sequence[str], rows: Rows, curves: Rows
) -> dict[str, dict[str, Any]]:
    """Work out what is no statistic over seeds.

    Args:
        condition: of the run's plan.
        labels: the routers.
        rows: the condition's episodes.
        curves: their curves.

    Returns:
        Per router: `source_objective`, the source's J; `gap_share`, how far J lies above the proven bounds,
        as a share of these; `unproven_windows`, how many bounds were not reached by any assignment found in
        time; `decision_ms_median` and `decision_ms_p99`, over all decisions.
    """
    kept: dict[str, dict[int, Mapping[str, Any]]] = {label: {} for label in labels}
    for curve in curves:
        kept[curve["router"]][curve["seed"]] = curve
    source = _source_objective(kept, condition["config"]["weights"])
    pooled = {}
    for label in labels:
        mine = [row for row in rows if row["router"] == label and row.get("gap") is not None]
        above = sum(row["gap"] * row["nonempty_windows"] for row in mine)
        bound = sum(row["bound"] * row["nonempty_windows"] for row in mine)
        times = [dispatched(curve, "decision_ms")[:, 0] for curve in kept[label].values()]
        pooled[label] = {
            "source_objective": source.get(label),
            "gap_share": above / bound if bound > 0.0 else None,
            "unproven_windows": sum(row["unproven_windows"] for row in mine),
            **decision_percentiles(np.concatenate([np.zeros(0), *times])),
        }
    return pooled


def _source_objective(
    kept: Mapping[str, Mapping[int, Mapping[str, Any]]], weights: Sequence[float]
) -> dict[str, float]:
    """Return the source's J per router, over the batches that all of them dispatched.

    Which requests make up a batch does not depend on the router, so windows are paired.
    """
    played = {label: episodes for label, episodes in kept.items() if episodes}
    seeds = sorted(set.intersection(*map(set, played.values()))) if len(played) > 1 else []
    if not seeds:
        return {}
    terms = np.array(
        [
            np.concatenate([dispatched(episodes[seed], *WINDOW_TERMS) for seed in seeds])
            for episodes in played.values()
        ]
    )
    values = cross_router_objective(terms, weights).tolist()
    return {label: value for label, value in zip(played, values, strict=True) if value == value}


def remarks(summary: Mapping[str, Any]) -> list[str]:
    """Say whose outcomes these are, where latencies leave requests out, and which gaps are not exact."""
    lines = []
    waiting, unproven = [], []
    for place in summary["conditions"]:
        # Which requests are dispatched does not depend on the router.
        left = [router["metrics"].get("undispatched") for router in place["routers"].values()]
        mean = max((found["mean"] for found in left if found), default=0.0)
        if mean > 0.0:
            waiting.append(f"{place['name']}: {mean:.4g}")
        counts = {label: router["pooled"]["unproven_windows"] for label, router in place["routers"].items()}
        if any(counts.values()):
            shown = ", ".join(f"{label} {count}" for label, count in counts.items() if count)
            unproven.append(f"{place['name']}: {shown}")
    if waiting:
        lines.append(
            "Requests that still wait at an episode's end are in none of these figures. Mean number, "
            f"{'; '.join(waiting)}."
        )
    lines += dict.fromkeys(line for place in summary["conditions"] for line in _outcomes(place["labels"]))
    pooled = [router["pooled"] for place in summary["conditions"] for router in place["routers"].values()]
    if all(figures["gap_share"] is None for figures in pooled):
        lines.append("Gaps to the optimum were not worked out.")
    if unproven:
        lines.append(
            "The optimum of some batches was not proven in time, and their gaps are to the bound that was: "
            f"they are at most so large. Batches concerned, {'; '.join(unproven)}."
        )
    return lines


def _outcomes(labels: Mapping[str, Any]) -> list[str]:
    """Say whose outcomes a condition's are, and who is not there."""
    lines = []
    if labels.get("workload"):
        known = {"store": "are retrieved from other prompts", "mean": "are each model's mean"}
        quality, lengths = (known.get(labels[name], "are known") for name in ("prediction", "lengths"))
        lines.append(
            f"Requests of {labels['catalogue']} are {labels['prompts']} {labels['rows']} prompts of "
            f"{labels['table']}, with the outcomes recorded there. To routers, qualities {quality} and "
            f"lengths {lengths}. Episodes share prompts, so that intervals are of these, not of others."
        )
        if labels["notes"]:
            lines.append(f"{labels['table']}: {labels['notes']}")
        at_once = (labels.get("requests") or 0) * labels["windows"]
        if at_once > labels["prompts"]:
            lines.append(
                f"An episode of {labels['catalogue']} has {at_once} requests and there are "
                f"{labels['prompts']} prompts: some come more than once."
            )
    if labels.get("stand_ins"):
        lines.append(f"Models that the table lacks take another's outcomes: {labels['stand_ins']}.")
    if labels.get("dropped"):
        lines.append(f"Left out of {labels['catalogue']}: {labels['dropped']}.")
    return lines


CLOUD_EDGE = Presentation(
    family="cloud_edge",
    score="objective",
    unit="J",
    mean="mean J",
    scale=1.0,
    decimals=(4, 4),
    lower_is_better=True,
    columns=(
        Column("J", "objective", decimals=4, statistic="mean"),
        Column("source's J", "source_objective", decimals=3, statistic="pooled", optional=2),
        Column("Q", "quality_loss", decimals=3, statistic="mean"),
        Column("C m$", "cost_usd", scale=1000.0, decimals=2, statistic="mean", optional=3),
        Column("E J", "energy_j", statistic="mean", optional=3),
        Column("T s", "completion_s", decimals=3, statistic="mean"),
        Column("gap %", "gap_share", scale=100.0, decimals=2, statistic="pooled"),
        Column("latency s", "mean_latency_s", decimals=2, statistic="mean", optional=2),
        Column("p99 s", "p99_latency_s", decimals=2, statistic="mean", optional=1),
        Column("decision ms", "decision_ms_median", decimals=2, statistic="pooled", optional=3),
        Column("p99 ms", "decision_ms_p99", decimals=2, statistic="pooled", optional=1),
    ),
    note=(
        "Means over seeds, as in the source's tables. J: weighted objective per batch within fixed bounds, "
        "of what happened unless reward_on is predicted; the lowest is best, so that a Δ below 0 is in the "
        "router's favour. source's J: within the least and largest of the routers in this table, so that it "
        "changes with them. Q: quality loss per request; C: cost, thousandths of a dollar; E: energy, "
        "joules; T: completion time; all per batch. gap: J above the proven optimum as a share of it, on "
        "the predictions that routers decide on, so that luck may put a router's J below optimal's. "
        "latency: from arrival to completion, the wait for the window's end included. decision: median and "
        "p99 of the time to assign a batch, which depends on the machine and on what else runs there."
    ),
    yardsticks="prove how good an assignment of each batch can be, however long that takes",
    pool=pool,
    remarks=remarks,
)
