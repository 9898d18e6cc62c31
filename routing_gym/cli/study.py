"""`routing-gym study`."""

from __future__ import annotations

import os
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from routing_gym.cli.options import make_console, tell
from routing_gym.cli.report import print_report
from routing_gym.common.config import ConfigError
from routing_gym.evaluation.arguments import split


class EngineKind(str, Enum):
    """Engines by name."""

    joblib = "joblib"
    ray = "ray"


def study(
    config: Annotated[
        str, typer.Argument(metavar="STUDY", help="Name of a study in configs/studies, or a YAML path.")
    ],
    parts: Annotated[str | None, typer.Option(help="Parts to play, by comma. Default: all.")] = None,
    seeds: Annotated[
        str | None,
        typer.Option(help="How many of each part's seeds; or others, as FIRST-LAST or by comma."),
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="Folder of the traces; parts that need some are left out without it.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the results. Default: results/STUDY.")] = None,
    workers: Annotated[
        int, typer.Option(min=0, help="Processes, of joblib or of a Ray started here; 0 takes one per CPU.")
    ] = 0,
    engine: Annotated[EngineKind, typer.Option(help="What plays the episodes.")] = EngineKind.joblib,
    address: Annotated[
        str | None, typer.Option(help="Address of a Ray cluster, or `auto`; without it one is started here.")
    ] = None,
    sizes: Annotated[
        bool, typer.Option("--sizes", help="Say how much there is to play, and play nothing.")
    ] = False,
    docs: Annotated[
        Path | None,
        typer.Option(help="Page to write the results into, between its markers, and its pictures."),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Throw away what --out holds of these parts.")
    ] = False,
) -> None:
    """Play a declared study and write its report; the same command goes on with one that was interrupted."""
    from routing_gym.reporting.markdown import place
    from routing_gym.reporting.page import write_docs
    from routing_gym.studies.config import Study, choose_parts
    from routing_gym.studies.engines import Engine
    from routing_gym.studies.run import run_study

    console = make_console()
    declared = Study.create(config)
    if address is not None and engine is not EngineKind.ray:
        raise ConfigError(f"--address {address}: is of --engine ray")
    chosen = choose_parts(declared.parts, None if parts is None else split(parts))
    for name, part in list(chosen.items()):
        missing = [file for file in part.traces if data is None or not (data / file).is_file()]
        if missing and (parts is not None or len(chosen) == 1):
            given = "--data is missing" if data is None else f"--data {data}"
            raise ConfigError(f"{given}: part {name} needs {', '.join(missing)} there")
        if missing:
            tell("note:", f"part {name} is left out; it needs --data with {', '.join(missing)}", style="bold")
            del chosen[name]
    name = Path(config).stem
    folder = out or Path("results") / name
    if docs:
        place(docs.read_text(encoding="utf-8"), name, "")  # whether it can be done, before hours of work
    plays = Engine(engine.value, workers or os.cpu_count() or 1, address)
    try:
        run_study(
            declared,
            list(chosen),
            folder,
            plays,
            seeds=seeds,
            data=data,
            overwrite=overwrite,
            sizes_only=sizes,
            console=console,
        )
    except KeyboardInterrupt:
        tell("interrupted;", f"finished shards are in {folder}, the same command goes on")
        raise typer.Exit(130) from None
    if not sizes:
        print_report(console, folder)
        if docs:
            write_docs(docs, name, folder)
