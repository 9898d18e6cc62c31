"""Figures that "CEMA-Router" reports, and ours beside them (DESIGN 6)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from routing_gym.cloud_edge.evaluator import Floats, normalise
from routing_gym.cloud_edge.metrics import WINDOW_TERMS
from routing_gym.common.config import packaged
from routing_gym.evaluation.presentations import DASH, Column
from routing_gym.evaluation.report import Sheet
from routing_gym.evaluation.results import read_episodes, read_plan
from routing_gym.evaluation.statistics import bootstrap_mean

PUBLISHED = packaged("published", "cema-router")
COMPARED: tuple[str, ...] = tuple(PUBLISHED["compared"])
PAIR = ("cema", "uniroute")

# Of each batch: raw terms, J in fixed bounds as paid, and as seen by routers with its proven lower bound.
METRICS = (*WINDOW_TERMS, "objective", "gap", "bound", "decision_ms_median")
NORMALISED = tuple(f"normalised_{term}" for term in WINDOW_TERMS)

J = Column("source's J", "source_objective", decimals=3)
PAIR_J = Column("J of the two", "pair_objective", decimals=3)
TERMS = (
    Column("Q", "quality_loss", decimals=3),
    Column("C m$", "cost_usd", scale=1000.0, decimals=2),
    Column("E J", "energy_j"),
    Column("T s", "completion_s", decimals=3),
)
WITHIN = tuple(Column(name, metric, decimals=3) for name, metric in zip("QCET", NORMALISED, strict=True))
OURS = (
    Column("J, fixed bounds", "objective", decimals=4),
    Column("gap %", "gap_share", scale=100.0, decimals=2),
)
DECISION = Column("decision ms", "decision_ms_median", decimals=2)


@dataclass(frozen=True)
class Played:
    """What routers made of the same batches, each an episode of one window.

    Attributes:
        name: of the condition.
        labels: of the condition, such as `requests`, `destinations`, `prediction`.
        weights: ω, (4,).
        routers: labels.
        yardsticks: those of them that are no routers.
        values: (routers, batches) of each of `METRICS`.
    """

    name: str
    labels: Mapping[str, Any]
    weights: Sequence[float]
    routers: tuple[str, ...]
    yardsticks: frozenset[str]
    values: Mapping[str, Floats]

    @property
    def batches(self) -> int:
        """How many there are."""
        return self.values["objective"].shape[1]

    def of(self, router: str, metric: str) -> Floats:
        """Return a metric of a router, (batches,)."""
        return self.values[metric][self.routers.index(router)]

    def first(self, batches: int) -> Played:
        """Return the first few batches."""
        values = {metric: kept[:, :batches] for metric, kept in self.values.items()}
        return Played(self.name, self.labels, self.weights, self.routers, self.yardsticks, values)

    def normalised(self, compared: Sequence[str] = COMPARED) -> Floats:
        """Return each term between the least and the largest of some routers (source, eq. 6).

        Routers that are not among these change nothing, and may lie outside.

        Returns:
            (routers, batches, 4); 0 where all of `compared` agree.
        """
        terms = np.stack([self.values[term] for term in WINDOW_TERMS], axis=-1)
        among = terms[[self.routers.index(router) for router in compared]]
        return normalise(terms, np.stack((among.min(axis=0), among.max(axis=0)), axis=-1))

    def source_objective(self, compared: Sequence[str] = COMPARED) -> Floats:
        """Return the source's J, (routers, batches): the weighted sum of `normalised`."""
        return self.normalised(compared) @ np.asarray(self.weights, np.float64)

    def ratio(self, router: str) -> Floats:
        """Return J over the proven optimum's, on what routers were shown, (batches,); 1 where both are 0."""
        bound = self.of(router, "bound")
        reached = np.maximum(bound + self.of(router, "gap"), bound)
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(reached > 0.0, reached / bound, 1.0)

    def gap_share(self, router: str) -> float | None:
        """Return how far J lies above the proven optimum's over all batches, as a share of it; None of 0."""
        bound, gap = self.of(router, "bound").sum(), self.of(router, "gap").sum()
        return float(gap / bound) if bound > 0.0 else None


def read_played(folder: str | Path) -> list[Played]:
    """Read the conditions of a finished run of one-window episodes."""
    run = read_plan(folder)["run"]
    rows = {(row["condition"], row["router"], row["seed"]): row for row in read_episodes(folder)}
    routers = tuple(router["label"] for router in run["routers"])
    roles = zip(routers, run["roles"], strict=True)
    yardsticks = frozenset(label for label, role in roles if role == "yardstick")
    found = []
    for condition in run["conditions"]:
        name = condition["name"]
        values = {
            metric: np.array(
                [[rows[name, router, seed][metric] for seed in run["seeds"]] for router in routers],
                np.float64,
            )
            for metric in METRICS
        }
        weights = condition["config"]["weights"]
        found.append(Played(name, condition["labels"], weights, routers, yardsticks, values))
    return found


class Figure(NamedTuple):
    """A figure as published and as it is here, with a 95 % interval if it is a mean; None: there is none."""

    published: float | None
    ours: float | None = None
    low: float | None = None
    high: float | None = None


Figures = dict[str, Figure]


def figures(played: Played, router: str, published: Mapping[str, float] | None = None) -> Figures:
    """Return a router's figures over the batches by metric, beside what is published of it.

    Beside means of `METRICS` these are J by eq. 6, `source_objective` among `COMPARED` and, of the two,
    `pair_objective` among `PAIR`; the normalised terms; and `gap_share`. Decision times are medians;
    published ones are stated in seconds.
    """
    known = published or {}
    place = played.routers.index(router)
    means = {
        "source_objective": played.source_objective()[place],
        **({"pair_objective": played.source_objective(PAIR)[place]} if router in PAIR else {}),
        **{metric: played.of(router, metric) for metric in (*WINDOW_TERMS, "objective")},
        **dict(zip(NORMALISED, played.normalised()[place].T, strict=True)),
    }
    stated = {**known, "source_objective": known.get("objective"), "objective": None}
    found = {metric: Figure(stated.get(metric), *bootstrap_mean(values)) for metric, values in means.items()}
    found["gap_share"] = Figure(None, played.gap_share(router))
    median = float(np.median(played.of(router, DECISION.metric)))
    found[DECISION.metric] = Figure(_milliseconds(known), median)
    return found


def published_only(published: Mapping[str, float]) -> Figures:
    """Return the figures of a row that has no counterpart here."""
    stated = {"source_objective": published["objective"], DECISION.metric: _milliseconds(published)}
    return {metric: Figure(value) for metric, value in {**published, "objective": None, **stated}.items()}


def _milliseconds(published: Mapping[str, float]) -> float | None:
    seconds = published.get("decision_s")
    return None if seconds is None else 1000.0 * seconds


@dataclass(frozen=True)
class Beside:
    """A table of ours beside what is published.

    Attributes:
        title: what of.
        keys: headers of what tells its rows apart; the last is the router.
        rows: the rows' figures, by key.
        columns: those that are shown.
        yardsticks: labels that are no routers.
        intervals: show intervals too.
    """

    title: str
    keys: tuple[str, ...]
    rows: Mapping[tuple[str, ...], Figures]
    columns: Sequence[Column]
    yardsticks: frozenset[str] = frozenset()
    intervals: bool = True

    def sheets(self) -> list[Sheet]:
        """Lay it out: a column stands twice where something of it is published; then the intervals."""
        stated = {
            column.metric
            for column in self.columns
            if any(self._figure(row, column).published is not None for row in self.rows.values())
        }
        headers, cells = list(self.keys), [list(key) for key in self.rows]
        for column in self.columns:
            found = [self._figure(row, column) for row in self.rows.values()]
            if column.metric in stated:
                headers.append(f"{column.title} paper")
                for line, figure in zip(cells, found, strict=True):
                    line.append(column.number(figure.published))
            headers.append(f"{column.title} ours" if column.metric in stated else column.title)
            for line, figure in zip(cells, found, strict=True):
                line.append(column.number(figure.ours))
        yardsticks = [key[-1] in self.yardsticks for key in self.rows]
        sheets = [Sheet(self.title, tuple(headers), cells, yardsticks)]
        if self.intervals:
            sheets.append(self._interval_sheet())
        return sheets

    def data(self) -> dict[str, Any]:
        """Return it for JSON."""
        rows = [
            {
                **dict(zip(self.keys, key, strict=True)),
                "figures": {metric: figure._asdict() for metric, figure in row.items()},
            }
            for key, row in self.rows.items()
        ]
        return {"title": self.title, "rows": rows}

    def _interval_sheet(self) -> Sheet:
        rows = {
            key: row for key, row in self.rows.items() if any(one.low is not None for one in row.values())
        }
        columns = [
            column
            for column in self.columns
            if any(self._figure(row, column).low is not None for row in rows.values())
        ]
        cells = [
            [*key, *(self._interval(self._figure(row, column), column) for column in columns)]
            for key, row in rows.items()
        ]
        headers = (*self.keys, *(column.title for column in columns))
        yardsticks = [key[-1] in self.yardsticks for key in rows]
        return Sheet(f"{self.title}: 95 % intervals of ours", headers, cells, yardsticks)

    @staticmethod
    def _figure(row: Figures, column: Column) -> Figure:
        return row.get(column.metric, Figure(None))

    @staticmethod
    def _interval(figure: Figure, column: Column) -> str:
        if figure.low is None:
            return DASH
        return f"[{column.number(figure.low)}, {column.number(figure.high)}]"
