"""A summary's tables in a terminal, however narrow it is."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import Any

from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from routing_gym.evaluation.report import Sheet, remarks, sheets


def print_tables(console: Console, summary: Mapping[str, Any], most: int = 8) -> None:
    """Print a summary's tables; of more than `most` conditions only the one over all."""
    tables = sheets(summary)
    if len(summary["conditions"]) > most:
        console.print(f"{len(summary['conditions'])} conditions: each one's table is in summary.md")
        tables = tables[len(summary["conditions"]) :]
    left_out: dict[str, None] = {}
    for sheet in tables:
        shown = frozenset(range(len(sheet.headers)))
        table = _terminal_table(sheet, shown, box.HEAVY_HEAD)
        for level in sorted(set(sheet.optional.values())) or [0]:
            if Measurement.get(console, console.options.update(width=10_000), table).maximum <= console.width:
                break
            # Neither frames nor columns that can be spared, so that no number is cut.
            shown -= {k for k, spared in sheet.optional.items() if spared == level}
            table = _terminal_table(sheet, shown, None)
        left_out |= {sheet.headers[k]: None for k in sorted(sheet.optional.keys() - shown)}
        console.print(table)
    notes = remarks(summary)
    if left_out:
        notes.insert(1, f"This terminal is too narrow for {', '.join(left_out)}: these are in summary.md.")
    for note in notes:
        console.print(Text(note, style="dim"))


def _terminal_table(sheet: Sheet, shown: frozenset[int], frame: box.Box | None) -> Table:
    """Return some columns of a sheet as a rich table; without a frame, as narrow as can be."""
    table = Table(
        title=Text(sheet.title, style="bold"),
        title_justify="left",
        header_style="bold",
        box=frame,
        pad_edge=frame is not None,
        collapse_padding=frame is None,
    )
    for k in sorted(shown):
        header, cells = sheet.headers[k], [row[k] for row in sheet.rows]
        if frame is None:
            header = textwrap.fill(header, max(len(word) for word in (*header.split(), *cells)))
        table.add_column(
            Text(header), justify="right" if k else "left", no_wrap=frame is not None, overflow="fold"
        )
    for cells, yardstick in zip(sheet.rows, sheet.yardsticks, strict=True):
        style = "italic dim" if yardstick else "bold" if "★" in cells[0] else ""
        table.add_row(*(Text(cells[k]) for k in sorted(shown)), style=style)
    return table
