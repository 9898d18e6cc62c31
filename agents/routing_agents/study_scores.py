"""What a part of the study came out with: its episodes as arrays, and estimates of them (DESIGN 6).

Conditions share their seeds, so a seed's mean over conditions is what varies by chance: every bootstrap
resamples seeds, each with all of its conditions, and differences are paired by condition and seed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from routing_agents.manifest import LearnedError
from routing_agents.study import Report
from routing_gym.cloud_edge.config import CloudEdgeConfig
from routing_gym.cluster.config import ClusterConfig
from routing_gym.common.config import ConfigError, validate
from routing_gym.evaluation.results import ResultsError
from routing_gym.evaluation.statistics import CONFIDENCE, RESAMPLES, SEED, Estimate
from routing_gym.policy import make_policy
from routing_gym.studies.results import PartResults

Floats = NDArray[np.float64]

REWARD = ":reward="
# Labels of conditions that no field was crossed for.
DERIVED = ("load", "cutoff_s", "trace_s", "destinations")


class Results(NamedTuple):
    """A part's results, as its page shows them.

    Attributes:
        played: what was played.
        report: what else the page needs to know.
        conditions: of the plan, those that are looked at.
        routers: whose results each router's are and its label there, by its name on the page, in the order of
            tables.
        reference: the router that differences are taken to.
        decisions: requests and decision time (ms) of every batch, (batches, 2), by router; empty where no
            batch counts.
        outdated: whether a trained router of the part has other weights by now, or is gone.
    """

    played: PartResults
    report: Report
    conditions: list[Mapping[str, Any]]
    routers: Mapping[str, tuple[PartResults, str]]
    reference: str
    decisions: Mapping[str, Floats]
    outdated: bool

    @property
    def family(self) -> str:
        """Of environments."""
        return str(self.played.run["family"])

    @property
    def title(self) -> str:
        """Of the part."""
        return str(self.played.part["title"])

    @property
    def load_of_replicas(self) -> int | None:
        """Loads are what the rates give with so many replicas; None where they are what they are."""
        few: int | None = self.played.part.get("load_of_replicas")
        return few

    @property
    def seeds(self) -> list[int]:
        """Seeds of each condition's episodes."""
        return self.played.seeds

    @property
    def roles(self) -> dict[str, str]:
        """`router` or `yardstick`, by name on the page."""
        return {name: results.roles[label] for name, (results, label) in self.routers.items()}

    @property
    def documented(self) -> tuple[str, ...]:
        """The sources' own routers."""
        return tuple(self.played.group("documented"))

    @property
    def trained(self) -> tuple[str, ...]:
        """The training seeds of one method; none where one router is steered."""
        return () if self.report.steered else tuple(self.played.group("trained"))

    @property
    def steered(self) -> dict[str, float]:
        """Share of the second reward, by what the page calls the router at it."""
        return {_told(label, share): share for label, share in _shares(self.played, self.report).items()}

    @property
    def crossed(self) -> list[str]:
        """The fields that tell conditions apart."""
        return [name for name in self.conditions[0]["labels"] if name not in DERIVED]

    def where(self, field: str, value: Any) -> Results:
        """Return the results under the conditions of which a label has a value."""
        return self._replace(conditions=[c for c in self.conditions if c["labels"].get(field) == value])

    def values(self, field: str) -> list[Any]:
        """Return the values that a label takes, in order."""
        return list(dict.fromkeys(condition["labels"].get(field) for condition in self.conditions))

    def scores(self, router: str, metric: str) -> Floats:
        """Return a metric of a router's episodes (conditions, seeds), NaN where undefined."""
        results, label = self.routers[router]
        names = [condition["name"] for condition in results.conditions]
        rows = [names.index(condition["name"]) for condition in self.conditions]
        columns = [results.seeds.index(seed) for seed in self.seeds]
        scores: Floats = results.of(label, metric)[np.ix_(rows, columns)]
        return scores

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
        return self._replace(routers={**other.routers, **self.routers}, reference=other.reference)


def results_of(played: PartResults) -> Results:
    """Return a part's results as its page shows them.

    Raises:
        ResultsError: what stands under the part's `report` is not what the page needs, or does not fit it.
    """
    try:
        report = validate(Report, played.part.get("report", {}))
    except ConfigError as error:
        raise ResultsError(
            f"{played.folder} is not a part of the study of learned routers: report: {error}"
        ) from None
    shares = _shares(played, report)
    routers = {
        _told(label, shares[label]) if label in shares else label: (played, label) for label in played.routers
    }
    found = Results(played, report, played.conditions, routers, played.reference, {}, _outdated(played.run))
    _check(found)
    return found if report.decision_batch is None else found._replace(decisions=_decisions(played))


def _shares(played: PartResults, report: Report) -> dict[str, float]:
    return dict(zip(played.group("trained"), report.steered, strict=False))


def _told(label: str, share: float) -> str:
    """Return what the page calls a router that is told a reward."""
    return f"{label.partition(REWARD)[0]}, w = {share:g}"


def _check(results: Results) -> None:
    report, played = results.report, results.played
    where = f"{played.folder}: report"
    for router in report.also:
        if router not in results.routers:
            raise ResultsError(f"{where}.also: {router!r} must be one of {', '.join(results.routers)}")
    if report.split is not None and report.split not in results.crossed:
        raise ResultsError(f"{where}.split = {report.split!r}: must be one of {', '.join(results.crossed)}")
    if results.family == "cloud_edge" and report.decision_batch is None:
        raise ResultsError(f"{where}.decision_batch is missing: must be a number of requests")
    trained = len(played.group("trained"))
    if report.steered and len(report.steered) != trained:
        raise ResultsError(f"{where}.steered: must be {trained} shares, one of each trained router")


def _decisions(played: PartResults) -> dict[str, Floats]:
    decisions: dict[str, list[Any]] = {label: [] for label in played.routers}
    for condition in played.conditions:
        for curve in played.curves(condition["name"]):
            decisions[curve["router"]] += zip(curve["requests"], curve["decision_ms"], strict=True)
    return {label: np.array(found, np.float64).reshape(-1, 2) for label, found in decisions.items()}


def _outdated(run: Mapping[str, Any]) -> bool:
    """Return whether a router of a run has other weights by now than those it was played with."""
    kind = ClusterConfig if run["family"] == "cluster" else CloudEdgeConfig
    configs = [validate(kind, condition["config"]) for condition in run["conditions"]]
    routers = [router for router in run["routers"] if router["label"] in run["fingerprints"]]
    try:
        return any(
            fingerprint not in run["fingerprints"][router["label"]]
            for router in routers
            for fingerprint in _fingerprints(router, configs)
        )
    except LearnedError:
        return True  # it is gone, or no longer fits


def _fingerprints(router: Mapping[str, Any], configs: Sequence[Any]) -> Iterator[dict[str, str]]:
    policy = make_policy(router["name"], **router["params"])
    for config in configs:
        policy.configure([config])
        yield dict(policy.fingerprint())


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
