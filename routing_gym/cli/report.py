"""`routing-gym report`."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from routing_gym.cli.options import make_console
from routing_gym.evaluation.arguments import split


def write_report(
    folder: Annotated[
        Path,
        typer.Argument(metavar="DIR", help="Folder of a study, of one of its parts, or of a comparison."),
    ],
    out: Annotated[Path | None, typer.Option(help="Folder for the report. Default: DIR.")] = None,
    parts: Annotated[str | None, typer.Option(help="Parts of the study, by comma. Default: all.")] = None,
) -> None:
    """Write a report of results: report.html, report.md, and each figure as PNG and CSV."""
    print_report(make_console(), folder, out, split(parts) if parts else None)


def print_report(
    console: Console, folder: Path, out: Path | None = None, parts: Sequence[str] | None = None
) -> None:
    """Write a report of results, and print where it is."""
    from routing_gym.reporting.page import report
    from routing_gym.reporting.sections import NO_FIGURES

    with console.status("writing the report"):
        page, text, *figures = report(folder, out, parts)
    if importlib.util.find_spec("matplotlib") is None:
        console.print(Text(NO_FIGURES))
    console.print(Text(f"{page}, {text}, {len(figures) // 2} figures"))
