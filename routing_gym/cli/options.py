"""What the commands share: running a plan again, and what is printed."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import typer
from rich.console import Console
from rich.text import Text

from routing_gym.common.config import ConfigError
from routing_gym.evaluation.results import file_hash, read_episodes, read_plan
from routing_gym.evaluation.runner import Condition, Router


class Run(NamedTuple):
    """What to compare."""

    routers: list[Router]
    conditions: list[Condition]
    seeds: list[int]
    reference: str | None
    settings: Mapping[str, Any] = {}


def run_again(
    context: typer.Context, plan: Path, family: str, make_config: Callable[[Mapping[str, Any]], Any]
) -> Run:
    """Read the run that a results folder's plan describes.

    Args:
        context: of the command, which may bring nothing else that describes a run.
        plan: the folder, or its config.yaml.
        family: that the command compares.
        make_config: builds a condition's config.

    Raises:
        ConfigError: an option beside it, another family's run, or one that cannot be run as it was.
    """
    for name in sorted(context.params.keys() - {"again", "out", "workers", "resume", "overwrite"}):
        source = context.get_parameter_source(name)
        if source is not None and source.name != "DEFAULT":
            raise ConfigError(f"--{name.strip('_').replace('_', '-')}: --again takes it from {plan}")
    run = read_plan(plan)["run"]
    if run["family"] != family:
        command = str(run["family"]).replace("_", "-")
        raise ConfigError(f"{plan} describes a run of another command: compare {command}")
    try:
        routers = [Router(**router) for router in run["routers"]]
        conditions = [Condition(c["name"], make_config(c["config"]), c["labels"]) for c in run["conditions"]]
        for condition, made in zip(conditions, run["conditions"], strict=True):
            for name, path in condition.config.files().items():
                if file_hash(path) != made.get(f"{name}_sha256"):
                    raise ConfigError(f"{name} = {path}: is not the file that {plan} was made with")
    except (KeyError, TypeError) as error:
        raise ConfigError(f"{plan} does not describe a whole run: {error!r}") from error
    return Run(routers, conditions, run["seeds"], run["reference"], run)


def run_comparison(
    family: str,
    run: Run,
    out: Path,
    default_reference: str,
    workers: int,
    **how: Any,
) -> None:
    """Compare, with as many processes as asked for; an interrupt is answered by how to go on."""
    from routing_gym.evaluation.compare import compare

    labels = [router.label for router in run.routers]
    try:
        compare(
            family,
            run.routers,
            run.conditions,
            run.seeds,
            out,
            reference=run.reference or (default_reference if default_reference in labels else None),
            workers=workers or min(os.cpu_count() or 1, 4),
            console=make_console(),
            **how,
        )
    except KeyboardInterrupt:
        finished = len(read_episodes(out))
        tell("interrupted;", f"{finished} finished episodes are in {out}, --resume goes on")
        raise typer.Exit(130) from None


def make_console() -> Console:
    """Return a console; tables need room, and a pipe or a log has as much as it wants."""
    console = Console()
    return console if console.is_terminal else Console(width=140)


def tell(what: str, message: str, style: str = "bold red") -> None:
    """Print a single line to stderr, however long it is."""
    text = Text.assemble((what, style), f" {' '.join(message.split())}")
    Console(stderr=True).print(text, soft_wrap=True)
