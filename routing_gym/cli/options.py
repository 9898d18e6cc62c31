"""What the comparisons of all families share: reading options, running a plan again, and what is printed."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import typer
import yaml
from rich.console import Console
from rich.text import Text

import routing_gym
from routing_gym.common.config import ConfigError
from routing_gym.evaluation.results import file_hash, read_episodes, read_plan
from routing_gym.evaluation.runner import TEST_SEEDS_FROM, Condition, Router


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


def split(text: str) -> list[str]:
    """Split a list by comma."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts:
        raise ConfigError(f"{text!r} lists nothing; give one or more values, separated by commas")
    return parts


def numbers(option: str, text: str | None) -> list[float]:
    """Read numbers by comma; none of None."""
    if text is None:
        return []
    try:
        return [float(part) for part in split(text)]
    except ValueError:
        raise ConfigError(f"{option} {text}: must be numbers, separated by commas") from None


def whole_numbers(option: str, text: str | None) -> list[int]:
    """Read whole numbers by comma; none of None."""
    if text is None:
        return []
    try:
        return [int(part) for part in split(text)]
    except ValueError:
        raise ConfigError(f"{option} {text}: must be whole numbers, separated by commas") from None


def assignments(option: str, pairs: Sequence[str]) -> dict[str, Any]:
    """Read NAME=VALUE pairs, values in YAML."""
    fields = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name.strip():
            raise ConfigError(f"{option}{pair}: must be NAME=VALUE")
        try:
            fields[name.strip()] = yaml.safe_load(value)
        except yaml.YAMLError:
            raise ConfigError(f"{option}{pair}: {value!r} is not valid YAML") from None
    return fields


def routers_of(text: str, family: str) -> list[Router]:
    """Read routers by comma, as NAME:PARAM=VALUE:…; a bare name is looked for in the family first."""
    return [_router(part, family) for part in split(text)]


def _router(text: str, family: str) -> Router:
    name, *parts = text.split(":")
    full = routing_gym.policy.full_name(name, family)
    bare = full.partition("/")[2]
    params = assignments(f"--routers {name}:", parts)
    return Router(":".join([bare, *parts]), full, params)


def seeds_of(text: str) -> list[int]:
    """Read how many seeds, a range or a list."""
    try:
        if "-" in text:
            first, last = (int(part) for part in text.split("-"))
            seeds = list(range(first, last + 1))
        elif "," in text:
            seeds = [int(part) for part in split(text)]
        else:
            seeds = list(range(TEST_SEEDS_FROM, TEST_SEEDS_FROM + int(text)))
    except ValueError:
        seeds = []
    if not seeds or len(set(seeds)) < len(seeds) or min(seeds) < 0:
        raise ConfigError(
            f"--seeds {text}: must be a number of episodes, a range such as 30000-30009, or distinct "
            "seeds by comma"
        )
    return seeds
