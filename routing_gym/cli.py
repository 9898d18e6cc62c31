"""The command `routing-gym`; other packages mount sub-commands by entry point."""

from __future__ import annotations

import itertools
import os
import sys
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml
from rich.console import Console
from rich.text import Text

import routing_gym
from routing_gym.cluster.config import ClusterConfig
from routing_gym.cluster.workload import make_workload
from routing_gym.common.config import ConfigError, load_yaml
from routing_gym.evaluation.results import file_hash, read_plan
from routing_gym.evaluation.runner import TEST_SEEDS_FROM, Condition, Router

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="LLM request routing as Gymnasium environments.",
)
compare_app = typer.Typer(no_args_is_help=True, help="Compare routers on identical seeded episodes.")
app.add_typer(compare_app, name="compare")

SCENARIOS = ("steady", "burst", "straggler", "failure")
CLUSTER_ROUTERS = "round_robin,least_queue,latency_aware,adaptive,least_work,deadline_aware,clairvoyant,bound"


@compare_app.command("cluster")
def compare_cluster(
    context: typer.Context,
    scenario: Annotated[
        str | None, typer.Option(help="Scenarios, by comma. Default: all four; of a trace all but burst.")
    ] = None,
    rate: Annotated[str | None, typer.Option(help="Arrival rates per second, by comma.")] = None,
    heterogeneity: Annotated[str | None, typer.Option(help="Heterogeneities, by comma.")] = None,
    routers: Annotated[
        str, typer.Option(help="Routers, by comma; NAME:PARAM=VALUE:… sets parameters.")
    ] = CLUSTER_ROUTERS,
    seeds: Annotated[
        str, typer.Option(help="How many episodes (from the test seeds), FIRST-LAST, or seeds by comma.")
    ] = "10",
    config: Annotated[str, typer.Option(help="Name or YAML path of a cluster config.")] = "default",
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="FIELD=VALUE of the config, in YAML; may be repeated.")
    ] = None,
    trace: Annotated[Path | None, typer.Option(help="CSV of real arrivals, instead of Poisson.")] = None,
    trace_full: Annotated[bool, typer.Option("--trace-full", help="Replay the whole trace.")] = False,
    load: Annotated[
        str | None, typer.Option(help="Offered loads, by comma: set the rate, or scale the trace's time.")
    ] = None,
    admission: Annotated[bool, typer.Option("--admission", help="Allow routers to reject requests.")] = False,
    reference: Annotated[str | None, typer.Option(help="Router that differences are taken to.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for the results.")] = Path("results/cluster"),
    workers: Annotated[int, typer.Option(min=0, help="Processes; 0 takes one per CPU, up to 4.")] = 0,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with an interrupted run.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the results in --out.")] = False,
    again: Annotated[
        Path | None, typer.Option(help="Run what a results folder's config.yaml describes, and nothing else.")
    ] = None,
) -> None:
    """Compare routers of the inference cluster; the defaults are the source's protocol."""
    from routing_gym.evaluation.compare import compare

    if again:
        for name in sorted(context.params.keys() - {"again", "out", "workers", "resume", "overwrite"}):
            source = context.get_parameter_source(name)
            if source is not None and source.name != "DEFAULT":
                raise ConfigError(f"--{name.strip('_').replace('_', '-')}: --again takes it from {again}")
        run = read_plan(again)["run"]
        try:
            listed = [Router(**router) for router in run["routers"]]
            conditions = [
                Condition(c["name"], ClusterConfig.create(c["config"]), c["labels"])
                for c in run["conditions"]
            ]
            for condition in run["conditions"]:
                trace_path = condition["config"].get("trace")
                if trace_path and file_hash(trace_path) != condition.get("trace_sha256"):
                    raise ConfigError(f"trace = {trace_path}: is not the file that {again} was made with")
        except (KeyError, TypeError) as error:
            raise ConfigError(f"{again} does not describe a whole run: {error!r}") from error
        chosen, reference = run["seeds"], run["reference"]
    else:
        overrides = _assignments("--set ", set_ or [])
        if admission:
            overrides["admission"] = True
        if trace:
            overrides |= {"trace": str(trace), "trace_full": trace_full}
        elif trace_full:
            raise ConfigError("--trace-full: needs --trace")
        conditions = cluster_conditions(config, overrides, scenario, rate, heterogeneity, load)
        listed = [_router(text) for text in _split(routers)]
        chosen = _seeds(seeds)
    try:
        compare(
            "cluster",
            listed,
            conditions,
            chosen,
            out,
            reference=reference or ("adaptive" if any(r.label == "adaptive" for r in listed) else None),
            workers=workers or min(os.cpu_count() or 1, 4),
            resume=resume,
            overwrite=overwrite,
            console=_console(),
        )
    except KeyboardInterrupt:
        _complain("interrupted;", f"finished episodes are in {out}, --resume goes on")
        raise typer.Exit(130) from None


def cluster_conditions(
    config: str,
    overrides: dict[str, Any],
    scenario: str | None = None,
    rate: str | None = None,
    heterogeneity: str | None = None,
    load: str | None = None,
) -> list[Condition]:
    """Cross scenarios, rates, heterogeneities and loads (each a list by comma, None for the config's own)."""
    if "base" in load_yaml("cluster", config):
        raise ConfigError(
            f"--config {config}: is a distribution of conditions; a comparison takes one condition"
        )
    base = ClusterConfig.create(config, **overrides)
    if rate and (load or base.load is not None or base.trace is not None):
        raise ConfigError(f"--rate {rate}: the rate follows from the {'trace' if base.trace else 'load'}")
    if scenario:
        scenarios = _split(scenario)
    elif "scenario" in overrides or (config != "default" and "scenario" in load_yaml("cluster", config)):
        scenarios = [base.scenario]
    else:
        # A burst is a change of the Poisson rate, which a trace does not have.
        scenarios = [s for s in SCENARIOS if base.trace is None or s != "burst"]
    axes: dict[str, list[Any]] = {
        "scenario": scenarios,
        "rate_per_s": _numbers("--rate", rate),
        "heterogeneity": _numbers("--heterogeneity", heterogeneity),
        "load": _numbers("--load", load),
    }
    used = {name: values for name, values in axes.items() if values}
    conditions = []
    for combination in itertools.product(*used.values()):
        fields = dict(zip(used, combination, strict=True))
        one = base.replace(**fields)
        workload = make_workload(one)
        late = [event for event in one.timeline if event.time_ms > workload.cutoff_ms]
        if scenario and late and len(late) == len(one.timeline):
            raise ConfigError(
                f"scenario = {one.scenario!r}: its first event is at {late[0].time_s:g} s, after the "
                f"episode's end at {workload.cutoff_ms / 1000.0:g} s; it would be steady under another name"
            )
        labels: dict[str, Any] = {
            "scenario": one.scenario,
            "rate_per_s": round(1000.0 * workload.rate_per_ms, 3),
            "heterogeneity": one.heterogeneity,
            "load": round(workload.offered_load, 4),
            "cutoff_s": workload.cutoff_ms / 1000.0,
        }
        if workload.length_ms is not None:
            labels["trace_s"] = round(workload.length_ms / 1000.0, 3)
        name = f"{one.scenario}, {labels['rate_per_s']:.6g}/s, load {labels['load']:.2f}"
        if len(used.get("heterogeneity", [])) > 1:
            name += f", heterogeneity {one.heterogeneity:g}"
        conditions.append(Condition(name, one, labels))
    return conditions


@app.command("routers")
def list_routers() -> None:
    """List every router that is installed."""
    console = _console()
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

    run_benchmarks(_console(), seconds, repeats)


def _console() -> Console:
    # Tables need room; a pipe or a log has as much as it wants.
    console = Console()
    return console if console.is_terminal else Console(width=140)


def _split(text: str) -> list[str]:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts:
        raise ConfigError(f"{text!r} lists nothing; give one or more values, separated by commas")
    return parts


def _numbers(option: str, text: str | None) -> list[float]:
    if text is None:
        return []
    try:
        return [float(part) for part in _split(text)]
    except ValueError:
        raise ConfigError(f"{option} {text}: must be numbers, separated by commas") from None


def _assignments(option: str, pairs: list[str]) -> dict[str, Any]:
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


def _router(text: str) -> Router:
    name, *parts = text.split(":")
    full = routing_gym.policy.full_name(name)
    bare = full.partition("/")[2]
    params = _assignments(f"--routers {name}:", parts)
    return Router(":".join([bare, *parts]), full, params)


def _seeds(text: str) -> list[int]:
    try:
        if "-" in text:
            first, last = (int(part) for part in text.split("-"))
            seeds = list(range(first, last + 1))
        elif "," in text:
            seeds = [int(part) for part in _split(text)]
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


def main() -> None:
    """Run the command line; what a user got wrong is one line, not a traceback."""
    for entry in entry_points(group="routing_gym.commands"):
        app.add_typer(entry.load(), name=entry.name)
    try:
        app()
    except (ValueError, TypeError, OSError, MemoryError, ArithmeticError) as error:
        if os.environ.get("ROUTING_GYM_TRACEBACK"):
            raise
        _complain("error:", str(error))
        sys.exit(2)


def _complain(what: str, message: str) -> None:
    """Print a single line to stderr, however long it is."""
    text = Text.assemble((what, "bold red"), f" {' '.join(message.split())}")
    Console(stderr=True).print(text, soft_wrap=True)


if __name__ == "__main__":
    main()
