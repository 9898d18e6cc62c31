"""`routing-gym compare cluster`."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Annotated, Any

import typer

from routing_gym.cli.options import Run, run_again, run_comparison
from routing_gym.cluster.config import ClusterConfig
from routing_gym.cluster.workload import make_workload
from routing_gym.common.config import ConfigError, load_yaml
from routing_gym.evaluation.arguments import assignments, numbers, routers_of, seeds_of, split
from routing_gym.evaluation.runner import Condition

SCENARIOS = ("steady", "burst", "straggler", "failure")
ROUTERS = "round_robin,least_queue,latency_aware,adaptive,least_work,deadline_aware,learned,clairvoyant,bound"


def compare_cluster(
    context: typer.Context,
    scenario: Annotated[
        str | None, typer.Option(help="Scenarios, by comma. Default: all four; of a trace all but burst.")
    ] = None,
    rate: Annotated[str | None, typer.Option(help="Arrival rates per second, by comma.")] = None,
    heterogeneity: Annotated[str | None, typer.Option(help="Heterogeneities, by comma.")] = None,
    routers: Annotated[
        str, typer.Option(help="Routers, by comma; NAME:PARAM=VALUE:… sets parameters.")
    ] = ROUTERS,
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
    if again:
        run = run_again(context, again, "cluster", ClusterConfig.create)
    else:
        overrides = assignments("--set ", set_ or [])
        if admission:
            overrides["admission"] = True
        if trace:
            overrides |= {"trace": str(trace), "trace_full": trace_full}
        elif trace_full:
            raise ConfigError("--trace-full: needs --trace")
        conditions = cluster_conditions(config, overrides, scenario, rate, heterogeneity, load)
        run = Run(routers_of(routers, "cluster"), conditions, seeds_of(seeds), reference)
    run_comparison("cluster", run, out, "adaptive", workers, resume=resume, overwrite=overwrite)


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
        scenarios = split(scenario)
    elif "scenario" in overrides or (config != "default" and "scenario" in load_yaml("cluster", config)):
        scenarios = [base.scenario]
    else:
        # A burst is a change of the Poisson rate, which a trace does not have.
        scenarios = [s for s in SCENARIOS if base.trace is None or s != "burst"]
    axes: dict[str, list[Any]] = {
        "scenario": scenarios,
        "rate_per_s": numbers("--rate", rate),
        "heterogeneity": numbers("--heterogeneity", heterogeneity),
        "load": numbers("--load", load),
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
