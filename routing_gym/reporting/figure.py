"""A figure of a report: panels that draw themselves, a legend, a caption, and the data behind it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Panel:
    """One pair of axes.

    Attributes:
        draw: draws on matplotlib axes.
        title: above them.
        width: inches.
        height: inches.
    """

    draw: Callable[[Any], None]
    title: str = ""
    width: float = 4.6
    height: float = 3.1


@dataclass(frozen=True)
class Figure:
    """What a report shows in one place.

    Attributes:
        name: of its files; unique within a part.
        title: its heading.
        caption: how to read it, and what it does not show.
        panels: in reading order.
        columns: of its data.
        rows: its data, a tuple per line of the CSV beside it; None is an empty cell.
        legend: by label, the style of its line (`color`, `dashes`, `lw`) or `marker`.
    """

    name: str
    title: str
    caption: str
    panels: Sequence[Panel]
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    legend: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
