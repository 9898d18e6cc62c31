"""How a family's results are shown: the score that decides, and the columns beside it (DESIGN 6)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

DASH, INFINITE = "—", "∞"

Rows = Sequence[Mapping[str, Any]]
# Per router, figures of a condition as a whole: (the plan's condition, labels, its rows, its curves).
Pool = Callable[[Mapping[str, Any], Sequence[str], Rows, Rows], dict[str, dict[str, Any]]]


@dataclass(frozen=True)
class Column:
    """A column of the tables.

    Attributes:
        title: its header.
        metric: what it shows.
        scale: what numbers are multiplied by.
        decimals: how many are shown.
        statistic: of the metric over seeds; `pooled` is no such thing, but of the condition as a whole.
        span: show min to max over seeds beside it.
        optional: left out where a terminal is too narrow, the lowest numbers first; 0 stays.
    """

    title: str
    metric: str
    scale: float = 1.0
    decimals: int = 1
    statistic: Literal["median", "mean", "pooled"] = "median"
    span: bool = False
    optional: int = 0

    def show(self, router: Mapping[str, Any]) -> str:
        """Format the column's cell of a summary's router."""
        if self.statistic == "pooled":
            return self.number(router["pooled"].get(self.metric))
        cell = router["metrics"].get(self.metric)
        if not cell:
            return DASH
        text = self.number(cell[self.statistic])
        if self.span:
            text += f" ({self.number(cell['min'])}–{self.number(cell['max'])})"
        return text

    def number(self, value: float | None) -> str:
        """Format one number."""
        if value is None:
            return DASH
        if math.isinf(value):
            return INFINITE
        return f"{self.scale * value:.{self.decimals}f}"


@dataclass(frozen=True)
class Presentation:
    """How a family's results are shown.

    Attributes:
        family: its name.
        score: the metric that decides.
        unit: of the score's differences, after scaling.
        mean: header of the score's mean over all conditions.
        scale: what the score is multiplied by.
        decimals: of the score's mean over all conditions, and of its differences.
        lower_is_better: whether the least score is the best.
        columns: of each condition's table.
        note: how to read them.
        yardsticks: what sets yardsticks apart from routers.
        pool: works out the pooled columns; it needs the curves of every episode.
        remarks: what more there is to say of a summary.
    """

    family: str
    score: str
    unit: str
    mean: str
    scale: float
    decimals: tuple[int, int]
    lower_is_better: bool
    columns: tuple[Column, ...]
    note: str
    yardsticks: str
    pool: Pool | None = None
    remarks: Callable[[Mapping[str, Any]], list[str]] = lambda summary: []

    @property
    def sign(self) -> float:
        """What a score is multiplied by so that more is better."""
        return -1.0 if self.lower_is_better else 1.0


CLUSTER = Presentation(
    family="cluster",
    score="attainment",
    unit="points",
    mean="mean %",
    scale=100.0,
    decimals=(2, 1),
    lower_is_better=False,
    columns=(
        Column("attain %", "attainment", scale=100.0),
        Column("p50 ms", "p50_ms", optional=1),
        Column("p99 ms (min–max)", "p99_ms", decimals=0, span=True),
        Column("p99 all", "p99_all_ms", decimals=0),
        Column("largest 5 %", "attainment_largest_5pct", scale=100.0),
        Column("miss %", "slo_miss_rate", scale=100.0, optional=1),
        Column("shed %", "shed_rate", scale=100.0, optional=1),
    ),
    note=(
        "Medians over seeds. Attainment: on time / all arrivals. p50, p99: completed requests; p99 all: all "
        f"arrivals, {INFINITE} where it falls on one not completed. largest 5 %: attainment of the largest "
        "requests. The range of p99 is no confidence interval."
    ),
    yardsticks="know more than a router can, or are bounds",
)
