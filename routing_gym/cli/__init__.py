"""The command `routing-gym`; other packages mount sub-commands by entry point."""

from __future__ import annotations

import os
import sys
from importlib.metadata import entry_points
from typing import Annotated

import typer
from rich.text import Text

import routing_gym
from routing_gym.cli.cloud_edge import compare_cloud_edge
from routing_gym.cli.cluster import compare_cluster
from routing_gym.cli.options import make_console, tell
from routing_gym.cli.report import write_report
from routing_gym.cli.study import study

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="LLM request routing as Gymnasium environments.",
)
compare_app = typer.Typer(no_args_is_help=True, help="Compare routers on identical seeded episodes.")
compare_app.command("cluster")(compare_cluster)
compare_app.command("cloud-edge")(compare_cloud_edge)
app.add_typer(compare_app, name="compare")
app.command("report")(write_report)
app.command("study")(study)


@app.command("routers")
def list_routers() -> None:
    """List every router that is installed."""
    console = make_console()
    for name in routing_gym.list_policies():
        cls = routing_gym.policy.policy_class(name)
        first, *_ = (cls.__doc__ or "").strip().splitlines() or ["(no description)"]
        console.print(Text.assemble((name, "bold"), f" ({cls.role}): {first}"), soft_wrap=True)


@app.command("bench")
def bench(
    seconds: Annotated[float, typer.Option(min=0.01, help="Time for each measurement.")] = 1.0,
    repeats: Annotated[int, typer.Option(min=1, help="Measurements per row; the median is shown.")] = 5,
) -> None:
    """Measure the speed of everything installed, against CartPole in the same run."""
    from routing_gym.bench import run_benchmarks

    run_benchmarks(make_console(), seconds, repeats)


def main() -> None:
    """Run the command line; what a user got wrong is one line, not a traceback."""
    for entry in entry_points(group="routing_gym.commands"):
        app.add_typer(entry.load(), name=entry.name)
    try:
        app()
    except (ValueError, TypeError, OSError, MemoryError, ArithmeticError, ImportError) as error:
        if os.environ.get("ROUTING_GYM_TRACEBACK"):
            raise
        tell("error:", str(error))
        sys.exit(2)
