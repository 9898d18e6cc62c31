"""`routing-gym study-learned`: what the trained routers are worth, and the page that says so."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from routing_agents.study import Part, Study, run_study
from routing_agents.study_report import findings, place, report
from routing_agents.study_scores import Results, read_results
from routing_gym.cli.options import make_console, split, tell
from routing_gym.common.config import ConfigError

SUMMARY = "summary.md"

# As a command, not a group: options may stand behind CONFIG.
app = typer.Typer(subcommand_metavar="", context_settings={"allow_interspersed_args": True})


@app.callback(invoke_without_command=True)
def study_learned(
    config: Annotated[
        str, typer.Argument(metavar="[CONFIG]", help="Name of a config in configs/studies, or a YAML path.")
    ] = "learned",
    parts: Annotated[str | None, typer.Option(help="Parts to play, by comma. Default: all.")] = None,
    seeds: Annotated[
        str | None,
        typer.Option(help="How many of each part's seeds; or others, as FIRST-LAST or by comma."),
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="Folder of the traces; without it they are left out.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for the results.")] = Path("results/learned"),
    docs: Annotated[
        Path | None,
        typer.Option(help="Page to write the report into, between its markers; plots go beside it."),
    ] = None,
    workers: Annotated[int, typer.Option(min=0, help="Processes; 0 takes one per CPU, up to 4.")] = 0,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with an interrupted run.")] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the results of these parts.")
    ] = False,
) -> None:
    """Hold trained routers against the others, part by part, and write a report of all parts played."""
    console = make_console()
    study = Study.create(config)
    chosen = study.chosen(split(parts) if parts else None)
    page = docs.read_text(encoding="utf-8") if docs else ""
    if docs:
        place(page, "", str(docs))  # before hours of work, whether it can be done
    for name, part in list(chosen.items()):
        missing = [file for file in part.traces if data is None or not (data / file).is_file()]
        if missing and parts:
            raise ConfigError(f"--data {data}: part {name} needs {', '.join(missing)} there")
        if missing:
            tell("note:", f"part {name} is left out; it needs --data with {', '.join(missing)}", style="bold")
            del chosen[name]
    try:
        run_study(
            chosen,
            out,
            seeds=seeds,
            data=data,
            workers=workers or min(os.cpu_count() or 1, 4),
            resume=resume,
            overwrite=overwrite,
            console=console,
        )
    except KeyboardInterrupt:
        tell("interrupted;", f"finished episodes are in {out}, --resume goes on")
        raise typer.Exit(130) from None
    _write(study.parts, out, docs, page, console)


def _write(parts: Mapping[str, Part], out: Path, docs: Path | None, page: str, console: Console) -> None:
    """Write the report of all parts that are on disk."""
    results: dict[str, Results] = {}
    for name in parts:
        found = read_results(out / name)
        if found is not None:
            results[name] = found
    try:
        from routing_agents.study_plots import draw

        plots = draw(out, results)
    except ImportError:
        console.print(Text('No plots: matplotlib is missing; pip install "routing-gym[plots]"'))
        plots = []
    text = report(parts, results, plots)
    (out / SUMMARY).write_text(f"# Learned routers\n\n{text}", encoding="utf-8")
    if docs:
        for plot in plots:
            shutil.copyfile(plot, docs.parent / plot.name)
        docs.write_text(place(page, text, str(docs)), encoding="utf-8")
    for name, found in results.items():
        for finding in findings(found):
            console.print(Text(f"{name}: {finding}"))
    names = [SUMMARY, *(plot.name for plot in plots)]
    console.print(Text(f"Results in {out}: {', '.join(names)}"))
