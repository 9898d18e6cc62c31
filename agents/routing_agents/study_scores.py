"""What a part of the study came out with: its episodes as arrays, and estimates of them (DESIGN 6).

Conditions share their seeds, so a seed's mean over conditions is what varies by chance: every bootstrap
resamples seeds, each with all of its conditions, and differences are paired by condition and seed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from routing_agents.manifest import LearnedError
from routing_agents.study import RECORD, Part, weights_hash
from routing_gym.cloud_edge.config import CloudEdgeConfig
from routing_gym.cluster.config import ClusterConfig
from routing_gym.common.config import validate
from routing_gym.evaluation.results import PLAN, ResultsError, read_curves, read_episodes, read_plan
from routing_gym.evaluation.runner import Router
from routing_gym.evaluation.statistics import CONFIDENCE, RESAMPLES, SEED, Estimate

Floats = NDArray[np.float64]
Key = tuple[str, str, int]


class Results(NamedTuple):
    """A part's results.

    Attributes:
        part: what was played.
        record: what else is known of it: `selection`, `reference`, `weights`; see `study.run_study`.
        plan: of its results folder.
        conditions: of the plan, those that are looked at.
        roles: of each router, `router` or `yardstick`, in the order of tables.
        rows: episodes, by router, condition and seed.
        decisions: requests and decision time (ms) of every batch, (batches, 2), by router.
        outdated: whether a trained router of the part has other weights by now, or is gone.
    """

    part: Part
    record: Mapping[str, Any]
    plan: Mapping[str, Any]
    conditions: list[Mapping[str, Any]]
    roles: Mapping[str, str]
    rows: Mapping[Key, Mapping[str, Any]]
    decisions: Mapping[str, Floats]
    outdated: bool

    @property
    def seeds(self) -> list[int]:
        """Seeds of each condition's episodes."""
        seeds: list[int] = self.plan["run"]["seeds"]
        return seeds

    def where(self, field: str, value: Any) -> Results:
        """Return the results under the conditions of which a label has a value."""
        found = [condition for condition in self.conditions if condition["labels"].get(field) == value]
        return self._replace(conditions=found)

    def values(self, field: str) -> list[Any]:
        """Return the values that a label takes, in order."""
        return list(dict.fromkeys(condition["labels"].get(field) for condition in self.conditions))

    def scores(self, router: str, metric: str) -> Floats:
        """Return a metric of a router's episodes (conditions, seeds), NaN where undefined."""
        table = [
            [self.rows[router, condition["name"], seed].get(metric) for seed in self.seeds]
            for condition in self.conditions
        ]
        return np.array(table, np.float64)  # None becomes NaN

    def mean_scores(self, routers: tuple[str, ...], metric: str) -> Floats:
        """Return the mean over several routers, episode by episode (conditions, seeds)."""
        return np.mean([self.scores(router, metric) for router in routers], axis=0)

    def beside(self, other: Results) -> Results:
        """Return the results with routers of another part that played the same episodes."""
        mine = {condition["name"]: condition["config_hash"] for condition in self.conditions}
        same = all(
            any(c["name"] == name and c["config_hash"] == known for c in other.conditions)
            for name, known in mine.items()
        )
        if not same or not set(self.seeds) <= set(other.seeds):
            return self
        return self._replace(
            roles={**other.roles, **self.roles},
            rows={**other.rows, **self.rows},
            record={**self.record, "reference": other.record["reference"]},
        )


def read_results(folder: Path) -> Results | None:
    """Read a part's folder; None where it is not there, or not all of it is played.

    Raises:
        ResultsError: it is damaged.
    """
    if not (folder / PLAN).exists() or not (folder / RECORD).exists():
        return None
    plan = read_plan(folder)
    run = plan["run"]
    rows = {(row["router"], row["condition"], row["seed"]): row for row in read_episodes(folder)}
    if len(rows) < len(run["routers"]) * len(run["conditions"]) * len(run["seeds"]):
        return None
    try:
        record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
        part = validate(Part, record["part"])
        outdated = _outdated(run, record["weights"])
    except (ValueError, KeyError, TypeError) as error:
        raise ResultsError(f"{folder / RECORD} does not describe a part of a study: {error}") from error
    labels = [router["label"] for router in run["routers"]]
    decisions: dict[str, list[Any]] = {label: [] for label in labels}
    for curve in read_curves(folder):
        decisions[curve["router"]] += zip(curve["requests"], curve["decision_ms"], strict=True)
    return Results(
        part,
        record,
        plan,
        run["conditions"],
        dict(zip(labels, run["roles"], strict=True)),
        rows,
        {label: np.array(found, np.float64).reshape(-1, 2) for label, found in decisions.items()},
        outdated,
    )


def _outdated(run: Mapping[str, Any], weights: Mapping[str, str]) -> bool:
    """Return whether a router of a run has other weights by now than those given, by label."""
    kind = ClusterConfig if run["family"] == "cluster" else CloudEdgeConfig
    configs = [validate(kind, condition["config"]) for condition in run["conditions"]]
    routers = [Router(**router) for router in run["routers"] if router["label"] in weights]
    try:
        return any(weights_hash(router, configs) != weights[router.label] for router in routers)
    except LearnedError:
        return True  # it is gone, or no longer fits


def share_of_way(scores: Floats, reference: Floats, goal: Floats) -> Estimate | None:
    """Estimate how much of the way from a reference to a goal a router goes.

    Args:
        scores: (seeds,) of the router, means over conditions.
        reference: (seeds,) where the way begins.
        goal: (seeds,) where it ends.

    Returns:
        Mean gain over mean way, with a bootstrap over seeds; None where in some resample the goal does not
        lie above the reference.
    """
    gain, way = scores - reference, goal - reference
    rng = np.random.default_rng(SEED)
    picks = rng.integers(len(way), size=(RESAMPLES, len(way)))
    ways = way[picks].mean(axis=1)
    if not way.mean() > 0.0 or not (ways > 0.0).all():
        return None
    tail = 100.0 * (1.0 - CONFIDENCE) / 2.0
    low, high = np.percentile(gain[picks].mean(axis=1) / ways, [tail, 100.0 - tail])
    return Estimate(float(gain.mean() / way.mean()), float(low), float(high))


def median_over_conditions(scores: Floats) -> tuple[float | None, int]:
    """Return the median over conditions of medians over seeds, and under how many these are infinite.

    Args:
        scores: (conditions, seeds); infinity is a value, NaN is none.
    """
    defined = [row[~np.isnan(row)] for row in scores]
    medians = np.array([_middle(row) for row in defined if len(row)])
    if not len(medians):
        return None, 0
    return _middle(medians), int(np.isinf(medians).sum())


def _middle(values: Floats) -> float:
    """Return the median, which is infinite where either of two middle values is."""
    ordered = np.sort(values)
    low, high = ordered[(len(ordered) - 1) // 2], ordered[len(ordered) // 2]
    return float(low if low == high else (low + high) / 2.0)


def defined_mean(scores: Floats) -> float | None:
    """Return the mean of what is defined; None of nothing."""
    found = scores[~np.isnan(scores)]
    return float(found.mean()) if len(found) else None
