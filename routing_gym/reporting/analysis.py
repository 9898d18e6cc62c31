"""What a part's episodes say, in numbers: the headline over all conditions, and how sure it is (DESIGN 6)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import numpy as np
from numpy.typing import NDArray

from routing_gym.evaluation.presentations import Column
from routing_gym.evaluation.report import PRESENTATIONS
from routing_gym.evaluation.results import EPISODES, PLAN, ResultsError
from routing_gym.evaluation.scales import Normalised, normalise, normalised_iqm
from routing_gym.evaluation.statistics import (
    CONFIDENCE,
    Estimate,
    SeedsNeeded,
    holm,
    improvement,
    paired_difference,
    paired_p_value,
    seeds_needed,
    stratified_iqm,
)
from routing_gym.studies.results import PartResults
from routing_gym.studies.storage import SHARDS

Floats = NDArray[np.float64]

# The oldest version whose folders hold all that a report needs.
NEEDED = "0.1.0"
ONE_POINT = 0.01
FLOOR = "random"
# What knows every request, so that hardly more can be had where it is no better than documented routers.
OMNISCIENT = "cluster/clairvoyant"

# What stands beside the score, so that it never stands alone.
BESIDE = {
    "cluster": (
        Column("p99 all, ms", "p99_all_ms", decimals=0),
        Column("largest 5 %", "attainment_largest_5pct", scale=100.0, statistic="mean"),
    ),
    "cloud_edge": (
        Column("Q", "quality_loss", decimals=3, statistic="mean"),
        Column("C m$", "cost_usd", scale=1000.0, decimals=2, statistic="mean"),
        Column("E J", "energy_j", statistic="mean"),
        Column("T s", "completion_s", decimals=3, statistic="mean"),
        Column("decision ms", "decision_ms_median", decimals=2),
    ),
}


@dataclass(frozen=True)
class Line:
    """A router over all conditions.

    Attributes:
        label: of the router.
        yardstick: whether it is one.
        invalid: actions over all episodes that named what could not be had.
        mean: of the score over conditions and seeds.
        iqm: the interquartile mean of it.
        difference: mean over seeds of the paired differences to the reference, of means over conditions.
        p_value: of that difference, Holm-corrected among all routers that are held against the reference.
        better: probability that a run of the router beats one of the reference.
        normalised: interquartile mean where random is 0 and the best documented router 1.
        published: what a source reports as the mean.
        beside: other metrics, in the order of `BESIDE`; None where undefined.
        one_point: seeds that a difference of one point to the reference needs.
        observed: seeds that the difference as observed needs.
    """

    label: str
    yardstick: bool
    invalid: int
    mean: float
    iqm: Estimate
    difference: Estimate | None
    p_value: float | None
    better: Estimate | None
    normalised: Estimate | None
    published: float | None
    beside: tuple[float | None, ...]
    one_point: SeedsNeeded
    observed: SeedsNeeded


@dataclass(frozen=True)
class Analysis:
    """A part over all conditions.

    Attributes:
        played: episodes on disk.
        planned: episodes of the whole run.
        conditions: names of those that the lines are over.
        lines: a router each, in the order of the plan.
        best: the router whose difference to every other one is significant after Holm's correction.
        tied: those from which the highest mean is not told apart, itself first; empty where one is best.
        undefined: routers with episodes and without a line, as the score is undefined in some episode.
        waiting: routers without a line, as episodes are missing.
        normalised: where the part has documented routers and a random one; None while one of them, or the
            clairvoyant that the part has, is not in the lines.
    """

    played: int
    planned: int
    conditions: list[str]
    lines: list[Line]
    best: str | None
    tied: list[str]
    undefined: list[str]
    waiting: list[str]
    normalised: Normalised | None


def analyse(results: PartResults) -> Analysis:
    """Work out a part's headline from its episodes.

    Of incomplete results, it is over the conditions that every router which has begun has finished; where
    there is none, over all conditions of the routers that have finished.

    Raises:
        ResultsError: the results lack what a report needs; says what, and which version writes it.
    """
    check(results)
    show, labels = results.show, results.routers
    played = results.played()
    scores = results.scores(show.score)
    begun = np.asarray(played.any(axis=(1, 2)))
    places = np.flatnonzero(played[begun].all(axis=(0, 2)))
    if len(places):
        finished = begun
    else:
        finished, places = np.asarray(played.all(axis=(1, 2))), np.arange(len(results.conditions))
    defined = finished & np.asarray(np.isfinite(scores[:, places]).all(axis=(1, 2)))
    table = {label: scores[k][places] for k, label in enumerate(labels) if defined[k]}
    routers = [label for label in table if results.roles[label] == "router"]
    scaled = _normalised(results, table)
    best, tied = _best({label: show.sign * table[label].mean(axis=0) for label in routers})
    return Analysis(
        int(played.sum()),
        played.size,
        [results.conditions[k]["name"] for k in places],
        _lines(results, table, places, scaled),
        best,
        tied,
        [label for k, label in enumerate(labels) if finished[k] and not defined[k]],
        [label for k, label in enumerate(labels) if not finished[k]],
        scaled,
    )


def check(results: PartResults) -> None:
    """Check that a folder has what a report needs.

    Raises:
        ResultsError: names the file, what is missing, and the version that it was made with and must be.
    """
    plan, run = results.plan, results.run
    file = results.folder / PLAN
    missing = [key for key in ("command", "versions", "python", "machine") if key not in plan]
    missing += [f"run.{key}" for key in ("environment", "roles") if key not in run]
    for what, keys in (("routers", ("label", "name")), ("conditions", ("name", "labels", "config"))):
        missing += [f"run.{what}.{key}" for key in keys if any(key not in one for one in run[what])]
    if missing:
        raise ResultsError(f"{file} lacks {', '.join(missing)}: {_made(plan)}")
    if run["family"] not in PRESENTATIONS:
        raise ResultsError(
            f"{file}: family = {run['family']}: must be of {', '.join(PRESENTATIONS)}; {_made(plan)}"
        )
    for what in ("roles", "seeds"):
        if not run[what] or (what == "roles" and len(run[what]) != len(run["routers"])):
            raise ResultsError(f"{file}: run.{what} = {run[what]}: must be one per router or seed")
    episodes = results.folder / (SHARDS if (results.folder / SHARDS).is_dir() else EPISODES)
    try:
        scores = results.scores(results.show.score)
    except KeyError as error:
        raise ResultsError(f"{episodes}: has an episode of {error}, which {file} does not list") from error
    if not np.isfinite(scores).any() and results.played().any():
        raise ResultsError(f"{episodes}: no episode has {results.show.score}; {_made(plan)}")


def newer(results: PartResults) -> str | None:
    """Return the version that a plan was made with, where it is newer than the one installed here."""
    made = str(results.plan["versions"].get("routing-gym", ""))
    return made if _numbers(made) > _numbers(version("routing-gym")) else None


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", text)[:3])


def _made(plan: Mapping[str, Any]) -> str:
    made = (plan.get("versions") or {}).get("routing-gym", "of an unknown version")
    return (
        f"it was made with routing-gym {made}, and a report needs what "
        f"{NEEDED} and later write; play it again, or use the version that made it"
    )


def has_scale(results: PartResults) -> bool:
    """Return whether scores can be normalised once all episodes are there."""
    return FLOOR in results.routers and any(label != FLOOR for label in results.group("documented"))


def _normalised(results: PartResults, table: Mapping[str, Floats]) -> Normalised | None:
    documented = [label for label in results.group("documented") if label != FLOOR]
    routers = results.run["routers"]
    omniscient = next((router["label"] for router in routers if router["name"] == OMNISCIENT), None)
    needed = [FLOOR, *documented, *([] if omniscient is None else [omniscient])]
    # With some of them missing the scale would be another one, and change when they come.
    if not has_scale(results) or any(label not in table for label in needed):
        return None
    return normalise(table, FLOOR, documented, omniscient, results.show.sign)


def _best(scores: Mapping[str, Floats]) -> tuple[str | None, list[str]]:
    """Return the router whose difference to every other is significant, or those that tie with the first."""
    if len(scores) < 2:
        return None, []
    top = max(scores, key=lambda label: float(scores[label].mean()))
    others = [label for label in scores if label != top]
    adjusted = _holm([paired_p_value(scores[top], scores[label]) for label in others])
    tied = [
        label
        for label, p_value in zip(others, adjusted, strict=True)
        if p_value is None or p_value > 1.0 - CONFIDENCE
    ]
    return (None, [top, *tied]) if tied else (top, [])


def _holm(p_values: list[float | None]) -> list[float | None]:
    adjusted = holm([np.nan if value is None else value for value in p_values])
    return [None if np.isnan(value) else float(value) for value in adjusted]


def _lines(
    results: PartResults, table: Mapping[str, Floats], places: NDArray[np.intp], scaled: Normalised | None
) -> list[Line]:
    show, roles = results.show, results.roles
    reference = table.get(results.reference)
    means = {label: scores.mean(axis=0) for label, scores in table.items()}
    compared = [
        label
        for label in table
        if reference is not None and label != results.reference and roles[label] == "router"
    ]
    tests = [paired_p_value(means[label], means[results.reference]) for label in compared]
    p_values = dict(zip(compared, _holm(tests), strict=True))
    kept = scaled if scaled is not None and scaled.kept else None
    lines = []
    for label, scores in table.items():
        difference, better, needed = None, None, [SeedsNeeded(None, None)] * 2
        if reference is not None and label != results.reference:
            pair = means[label], means[results.reference]
            difference = paired_difference(*pair)
            better = improvement(show.sign * scores, show.sign * reference)
            effects = (ONE_POINT, 0.0 if difference is None else difference.value)
            needed = [seeds_needed(*pair, effect) for effect in effects]
        invalid = results.of(label, "invalid_actions")[places]
        lines.append(
            Line(
                label,
                roles[label] == "yardstick",
                int(np.nansum(invalid)),
                float(scores.mean()),
                stratified_iqm(scores),
                difference,
                p_values.get(label),
                better,
                None if kept is None else normalised_iqm(kept, label),
                results.part.get("published", {}).get(label),
                tuple(
                    over_conditions(results.of(label, column.metric)[places], column.statistic == "median")
                    for column in BESIDE[show.family]
                ),
                *needed,
            )
        )
    return lines


def over_conditions(values: Floats, median: bool) -> float | None:
    """Return a metric (conditions, seeds) as one number, of its defined values; None without one.

    Args:
        values: NaN where undefined; infinite ones count.
        median: the median over conditions of medians over seeds; otherwise the mean of means.
    """
    per_condition = [row[~np.isnan(row)] for row in values]
    middle = np.median if median else np.mean
    found = [float(middle(row)) for row in per_condition if len(row)]
    return float(middle(found)) if found else None
