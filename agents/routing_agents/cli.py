"""`routing-gym train`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from routing_agents.train_config import TrainConfig, missing_extra
from routing_gym.cli.options import make_console, tell
from routing_gym.evaluation.arguments import assignments

# As a command, not a group: options may stand behind CONFIG.
app = typer.Typer(subcommand_metavar="", context_settings={"allow_interspersed_args": True})


@app.callback(invoke_without_command=True)
def train(
    config: Annotated[
        str, typer.Argument(metavar="CONFIG", help="Name of a config in configs/agents, or a YAML path.")
    ],
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set", help="FIELD=VALUE of the config, in YAML, as hyperparameters.gamma=.99; may be repeated."
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the run. Default: runs/CONFIG.")] = None,
    seed: Annotated[int | None, typer.Option(help="The run's seed.")] = None,
    steps: Annotated[int | None, typer.Option(help="Decisions to train for.")] = None,
    rows: Annotated[int | None, typer.Option(help="Episodes side by side.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with an interrupted run.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the run in --out.")] = False,
    export: Annotated[
        Path | None, typer.Option(help="Write the best router to this folder, for `learned:path=FOLDER`.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print nothing but errors.")] = False,
) -> None:
    """Train a router, keep the best by its score on development seeds, and write how it went."""
    try:
        from routing_agents.training import train as run
    except ImportError as error:
        raise missing_extra(error) from error

    fields: dict[str, Any] = assignments("--set ", set_ or [])
    given = {"seed": seed, "steps": steps, "rows": rows}
    fields |= {name: value for name, value in given.items() if value is not None}
    chosen = TrainConfig.create(config, fields)
    folder = out or Path("runs") / Path(config).stem
    console = Console(quiet=True) if quiet else make_console()
    try:
        outcome = run(chosen, folder, resume=resume, overwrite=overwrite, export=export, console=console)
    except KeyboardInterrupt:
        tell("interrupted;", f"--resume goes on from the last checkpoint in {folder}")
        raise typer.Exit(130) from None
    rows_of = {f"learned, step {outcome.best['steps']:,}": outcome.best, **outcome.references}
    table = Table(title=f"Development seeds, {len(chosen.conditions())} conditions", title_justify="left")
    columns = [name for name in outcome.best if name != "steps"]
    table.add_column("router")
    for name in columns:
        table.add_column(name, justify="right")
    for router, row in rows_of.items():
        table.add_row(router, *("—" if row[name] is None else f"{row[name]:.4g}" for name in columns))
    console.print(table)
    console.print(Text(f"Run in {outcome.folder}" + (f", router in {export}" if export else "")))
