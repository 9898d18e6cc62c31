"""`routing-gym report-learned`: what the trained routers are worth, and the page that says so."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from routing_agents.study_report import findings, report
from routing_agents.study_scores import Results, results_of
from routing_gym.cli.options import make_console, tell
from routing_gym.evaluation.results import ResultsError
from routing_gym.reporting.markdown import place
from routing_gym.reporting.page import read_study

NAME, SUMMARY = "learned", "summary.md"

# As a command, not a group: options may stand behind DIR.
app = typer.Typer(subcommand_metavar="", context_settings={"allow_interspersed_args": True})


@app.callback(invoke_without_command=True)
def report_learned(
    folder: Annotated[
        Path, typer.Argument(metavar="[DIR]", help="Folder that `routing-gym study learned` played into.")
    ] = Path("results/learned"),
    docs: Annotated[
        Path | None,
        typer.Option(help="Page to write the report into, between its markers; plots go beside it."),
    ] = None,
) -> None:
    """Write what trained routers are worth against the others: summary.md, plots, and a page of docs."""
    console = make_console()
    page = docs.read_text(encoding="utf-8") if docs else ""
    if docs:
        _placed(page, "", docs)  # before anything is written, whether it can be done
    _, about, parts = read_study(folder)
    results: dict[str, Results] = {}
    for part in parts:
        if part.complete():
            results[part.name] = results_of(part)
        else:
            tell("note:", f"part {part.name} is left out: it is not played to its end", style="bold")
    try:
        from routing_agents.study_plots import draw

        plots = draw(folder, results)
    except ImportError:
        console.print(Text('No plots: matplotlib is missing; pip install "routing-gym[plots]"'))
        plots = []
    text = report(results, plots, about)
    (folder / SUMMARY).write_text(f"# Learned routers\n\n{text}", encoding="utf-8")
    if docs:
        for plot in plots:
            shutil.copyfile(plot, docs.parent / plot.name)
        docs.write_text(_placed(page, text, docs), encoding="utf-8")
    for name, found in results.items():
        for finding in findings(found):
            console.print(Text(f"{name}: {finding}"))
    names = [SUMMARY, *(plot.name for plot in plots)]
    console.print(Text(f"Results in {folder}: {', '.join(names)}"))


def _placed(page: str, text: str, docs: Path) -> str:
    try:
        return place(page, NAME, text)
    except ResultsError as error:
        raise ResultsError(f"{docs}: {error}") from None
