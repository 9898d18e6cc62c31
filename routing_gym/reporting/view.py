"""What figures show of a part: which conditions and routers, their names, and means with intervals."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from routing_gym.evaluation.drawing import styles_of
from routing_gym.evaluation.statistics import Estimate, bootstrap_mean
from routing_gym.reporting.analysis import Analysis
from routing_gym.reporting.figure import Panel
from routing_gym.reporting.tables import counted
from routing_gym.studies.results import PartResults

Floats = NDArray[np.float64]
Condition = Mapping[str, Any]

# More lines than this in one panel cannot be told apart.
MOST_LINES = 12
# Of the largest to the least value from which an axis is logarithmic.
WIDE = 5.0
# What follows from other fields, and tells conditions apart only where nothing else does.
DERIVED = ("load", "cutoff_s", "trace_s")
WORDS = {
    "rate_per_s": "{}/s",
    "heterogeneity": "h {}",
    "scenario": "{}",
    "config": "{}",
    "catalogue": "{}",
    "requests": "R {}",
    "destinations": "M {}",
    "replicas": "N {}",
    "replicate": "×{}",
    "weights": "ω {}",
}


@dataclass(frozen=True)
class View:
    """A part as its figures see it.

    Attributes:
        results: its episodes.
        analysis: what they say over all conditions.
    """

    results: PartResults
    analysis: Analysis

    @cached_property
    def styles(self) -> dict[str, dict[str, Any]]:
        """Of each router's line."""
        return styles_of(self.results.run)

    @cached_property
    def places(self) -> list[int]:
        """Indices of the conditions that the analysis is over."""
        names = [condition["name"] for condition in self.results.conditions]
        return [names.index(name) for name in self.analysis.conditions]

    @cached_property
    def means(self) -> Floats:
        """Mean score over the seeds that are there (routers, conditions); NaN where there is none."""
        return mean_of_defined(self.results.scores(self.results.show.score))

    @cached_property
    def drawn(self) -> list[str]:
        """The routers that are drawn as lines: all, or of many the best and the yardsticks."""
        labels, roles = self.results.routers, self.results.roles
        if len(labels) <= MOST_LINES:
            return labels
        overall = self.results.show.sign * mean_of_defined(self.means)
        routers = [k for k, label in enumerate(labels) if roles[label] == "router"]
        room = max(MOST_LINES - (len(labels) - len(routers)), 1)
        best = sorted(routers, key=lambda k: -np.nan_to_num(overall[k], nan=-np.inf))[:room]
        return [label for k, label in enumerate(labels) if k in best or roles[label] == "yardstick"]

    @property
    def left_out(self) -> str:
        """Say which routers `drawn` leaves out; empty if none."""
        count = len(self.results.routers) - len(self.drawn)
        if count == 1:
            return " The router with the worst mean is left out."
        return f" The {count} routers with the worst means are left out." if count else ""

    @property
    def seeds(self) -> str:
        """Say how many seeds there are."""
        return counted(len(self.results.seeds), "seed")

    @property
    def unfinished(self) -> str:
        """Say that some means are over fewer seeds; empty where all episodes are there."""
        if self.analysis.played == self.analysis.planned:
            return ""
        return " Means of unfinished routers and conditions are over fewer seeds."

    def with_interval(self, shape: str) -> str:
        """Say what is drawn around means: an interval or a band; of one seed there is none."""
        if len(self.results.seeds) == 1:
            return f"of 1 seed, and so without {'an' if shape == 'interval' else 'a'} {shape}"
        return f"with its 95 % bootstrap {shape} over {self.seeds}"

    def legend(self, labels: Sequence[str]) -> dict[str, dict[str, Any]]:
        """Return the styles of these routers."""
        return {label: self.styles[label] for label in labels}

    def over(self, label: str, metric: str, scale: float = 1.0) -> Estimate | None:
        """Estimate a metric's mean over conditions, of seeds that define it under all; None if none does."""
        return interval(scale * self.results.of(label, metric)[self.places].mean(axis=0))

    def best_documented(self) -> Floats:
        """Return per condition the best mean of a documented router; of the reference where none is."""
        labels = self.results.group("documented") or [self.results.reference]
        rows = [k for k, label in enumerate(self.results.routers) if label in labels]
        signed = self.results.show.sign * self.means[rows]
        best = np.where(np.isnan(signed), -np.inf, signed).max(axis=0)
        return np.where(np.isinf(best), np.nan, self.results.show.sign * best)


def interval(values: Floats) -> Estimate | None:
    """Estimate a mean (n,) with its interval, of the finite values; of one there is no interval."""
    finite = values[np.isfinite(values)]
    if len(finite) < 2:
        return Estimate(float(finite[0]), math.nan, math.nan) if len(finite) else None
    return bootstrap_mean(finite)


def mean_of_defined(values: Floats) -> Floats:
    """Return means over the last axis of what is not NaN; NaN where nothing is."""
    defined = ~np.isnan(values)
    count = defined.sum(axis=-1)
    total = np.where(defined, values, 0.0).sum(axis=-1)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def panel(draw: Callable[..., None], *args: Any, **shape: Any) -> Panel:
    """Return a panel.

    Args:
        draw: draws on axes, which are its first argument.
        args: the others.
        shape: title, width and height.
    """
    return Panel(lambda axes: draw(axes, *args), **shape)


def cells(*values: Any) -> tuple[Any, ...]:
    """Return values as a line of data: an estimate as three numbers, what is undefined as None."""
    line: list[Any] = []
    for value in values:
        parts = value if isinstance(value, Estimate) else (value,)
        for part in parts:
            number = isinstance(part, (float, np.floating))
            line.append((None if math.isnan(part) else float(part)) if number else part)
    return tuple(line)


def identifying(conditions: Sequence[Condition], first: Sequence[str] = ()) -> list[str]:
    """Return the labels which tell conditions apart beyond `first`, as few as it takes in their order."""
    listed = dict.fromkeys(name for condition in conditions for name in condition["labels"])
    ordered = sorted((name for name in listed if name not in first), key=DERIVED.__contains__)
    chosen: list[str] = []
    for name in ordered:
        if len(_keys(conditions, [*first, *chosen, name])) > len(_keys(conditions, [*first, *chosen])):
            chosen.append(name)
    return chosen


def key_of(condition: Condition, names: Sequence[str]) -> tuple[str, ...]:
    """Return a condition's values of labels, as text."""
    return tuple(_text(condition["labels"].get(name)) for name in names)


def short_names(conditions: Sequence[Condition]) -> list[str]:
    """Return what figures call each condition: only what varies, or its name where that is too little."""
    names = identifying(conditions)
    if len(_keys(conditions, names)) < len(conditions):
        return [condition["name"] for condition in conditions]
    return [called(condition, names) or condition["name"] for condition in conditions]


def called(condition: Condition, names: Sequence[str]) -> str:
    """Return a condition's labels in a few words."""
    values = zip(names, key_of(condition, names), strict=True)
    return ", ".join(WORDS.get(name, f"{name} {{}}").format(value) for name, value in values)


def spread(count: int, most: int) -> list[int]:
    """Return indices of at most so many of `count` things, evenly spread, the first and last among them."""
    return sorted({round(place) for place in np.linspace(0, count - 1, min(count, most)).tolist()})


def wide(values: Sequence[float]) -> bool:
    """Return whether values (n,) span so much that an axis of them is logarithmic."""
    return min(values) > 0.0 and max(values) >= WIDE * min(values)


def _keys(conditions: Sequence[Condition], names: Sequence[str]) -> set[tuple[str, ...]]:
    return {key_of(condition, names) for condition in conditions}


def _text(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "none"}[value]
    if isinstance(value, (int, float)):
        return f"{value:g}"
    if isinstance(value, (list, tuple)):
        return "/".join(_text(item) for item in value)
    return str(value)
