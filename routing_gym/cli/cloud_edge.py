"""`routing-gym compare cloud-edge`."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from routing_gym.cli.options import Run, run_again, run_comparison, tell
from routing_gym.cloud_edge.config import MAX_REQUESTS, CloudEdgeConfig
from routing_gym.cloud_edge.outcomes import OutcomeContents
from routing_gym.cloud_edge.workload import Workload
from routing_gym.common.config import ConfigError, load_yaml, merge, packaged
from routing_gym.evaluation.arguments import assignments, numbers, routers_of, seeds_of, split, whole_numbers
from routing_gym.evaluation.decisions import SOLVER, missing_solver
from routing_gym.evaluation.runner import Condition

ROUTERS = (
    "round_robin,least_loaded,cloud_only,edge_only,uniroute,greedy,local_search,priced_search,cema,"
    "cema:normalisation=fixed,optimal"
)
# The source's controlled study, its Table V: batches of this size, each an episode of one window.
REQUESTS = 30


def compare_cloud_edge(
    context: typer.Context,
    catalogue: Annotated[
        str, typer.Option(help="Names or YAML paths of cloud-edge configs, by comma.")
    ] = "routerbench-5node",
    requests: Annotated[
        str | None,
        typer.Option(
            help="Requests in each window, by comma. Default: 30, unless arrivals are set otherwise."
        ),
    ] = None,
    rate: Annotated[
        str | None, typer.Option(help="Instead: Poisson arrival rates per second, by comma.")
    ] = None,
    windows: Annotated[
        int | None,
        typer.Option(help="Windows in an episode. Default: 1 with --requests, otherwise the config's, 60."),
    ] = None,
    replicate: Annotated[str | None, typer.Option(help="Copies of the catalogue, by comma.")] = None,
    max_requests: Annotated[
        int | None, typer.Option(help="Most requests dispatched at once. Default: 32, or --requests if more.")
    ] = None,
    workload: Annotated[
        str | None,
        typer.Option(
            help="Recorded outcomes as requests: routerbench, gsm8k, outcomes, or a YAML file of a workload."
        ),
    ] = None,
    table: Annotated[str | None, typer.Option(help="Their table: a CSV or Parquet file.")] = None,
    columns: Annotated[
        str | None, typer.Option(help="A YAML file that says what its columns hold, or a known table's name.")
    ] = None,
    prompts: Annotated[str | None, typer.Option(help="A second file with the prompts' texts.")] = None,
    embeddings: Annotated[str | None, typer.Option(help="An .npz of the prompts' embeddings.")] = None,
    store: Annotated[
        str | None, typer.Option(help="Folder of `quality build`. Default: fitted to the table.")
    ] = None,
    prediction: Annotated[
        str | None,
        typer.Option(help="What routers know of qualities and lengths, by comma: store, mean, perfect."),
    ] = None,
    drop: Annotated[
        str | None, typer.Option(help="Models whose destinations are left out, by comma.")
    ] = None,
    weights: Annotated[
        str | None,
        typer.Option(help="Weights of quality, cost, energy and time: Q,C,E,T; scaled to sum to 1."),
    ] = None,
    reward_on: Annotated[
        str | None, typer.Option(help="What J is of: actual, what happened, or predicted.")
    ] = None,
    routers: Annotated[
        str, typer.Option(help="Routers, by comma; NAME:PARAM=VALUE:… sets parameters.")
    ] = ROUTERS,
    seeds: Annotated[
        str | None,
        typer.Option(
            help="How many episodes (from the test seeds), FIRST-LAST, or seeds by comma. Default: 50 of one "
            "window, 10 of several."
        ),
    ] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="FIELD=VALUE of the config, in YAML; may be repeated.")
    ] = None,
    gap: Annotated[
        bool, typer.Option("--gap/--no-gap", help="Hold every decision against the proven optimum.")
    ] = True,
    reference: Annotated[str | None, typer.Option(help="Router that differences are taken to.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for the results.")] = Path("results/cloud-edge"),
    workers: Annotated[
        int, typer.Option(min=0, help="Processes; 0 takes one per CPU, up to 4. 1 times decisions best.")
    ] = 0,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with an interrupted run.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the results in --out.")] = False,
    again: Annotated[
        Path | None, typer.Option(help="Run what a results folder's config.yaml describes, and nothing else.")
    ] = None,
) -> None:
    """Compare batch routers of the cloud and the edge; the defaults are the source's controlled study."""
    if again:
        run = run_again(context, again, "cloud_edge", CloudEdgeConfig.create)
        gap = run.settings.get("gap", gap)
    else:
        fields = assignments("--set ", set_ or [])
        given: dict[str, Any] = {
            "windows": windows,
            "max_requests": max_requests,
            "weights": numbers("--weights", weights) or None,
            "reward_on": reward_on,
            "drop": None if drop is None else split(drop),
        }
        fields |= {name: value for name, value in given.items() if value is not None}
        files = {
            "table": table,
            "columns": columns,
            "prompts": prompts,
            "embeddings": embeddings,
            "store": store,
        }
        named = {name: path for name, path in files.items() if path is not None}
        if table is not None and workload is None and columns is None and "workload" not in fields:
            raise ConfigError(f"--table {table}: --columns FILE.yaml must say what its columns hold")
        outcomes = _workload(workload, named)
        if outcomes:
            fields["workload"] = merge(outcomes, fields.get("workload", {}))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            conditions = cloud_edge_conditions(catalogue, fields, requests, rate, replicate, prediction)
        for message in dict.fromkeys(str(warning.message) for warning in caught):
            tell("note:", message, style="bold")
        listed = routers_of(routers, "cloud_edge")
        source = context.get_parameter_source("routers")
        if source is not None and source.name == "DEFAULT" and (missing := missing_solver()):
            tell("note:", f"left out {SOLVER}: {missing}", style="bold")
            listed = [router for router in listed if router.name != SOLVER]
        one_window = all(condition.config.windows == 1 for condition in conditions)
        run = Run(listed, conditions, seeds_of(seeds or ("50" if one_window else "10")), reference)
    run_comparison("cloud_edge", run, out, "cema", workers, resume=resume, overwrite=overwrite, gap=gap)


def _workload(given: str | None, files: Mapping[str, str]) -> dict[str, Any]:
    """Return the fields of a workload: of its kind or YAML file, and the files that it reads."""
    if given is None:
        return {"kind": "outcomes", **files} if files else {}
    if not Path(given).suffix:
        return {"kind": given, **files}
    read = load_yaml("workloads", given)
    return merge({"kind": "outcomes", **read.get("workload", read)}, files)


def _kind(name: str, fields: Mapping[str, Any]) -> str:
    """Return the kind of the workload of a config with some fields laid over it."""
    workload = merge(load_yaml("cloud_edge", name), fields).get("workload") or {}
    return workload.get("kind", "synthetic")


def cloud_edge_conditions(
    catalogue: str,
    fields: Mapping[str, Any],
    requests: str | None = None,
    rate: str | None = None,
    replicate: str | None = None,
    prediction: str | None = None,
) -> list[Condition]:
    """Cross configs, arrivals, copies and predictions: lists by comma, None for the config's own."""
    if requests and rate:
        raise ConfigError(
            f"--rate {rate}: arrivals are Poisson, or --requests fixes them; give one of the two"
        )
    conditions = []
    for name in split(catalogue):
        set_here = load_yaml("cloud_edge", name).keys() | fields.keys()
        arrivals: list[dict[str, Any]] = [
            {"requests": count} for count in whole_numbers("--requests", requests)
        ]
        arrivals += [{"rate_per_s": value, "requests": None} for value in numbers("--rate", rate)]
        if not arrivals:
            own = set_here & {"requests", "rate_per_s", "trace"}
            arrivals = [{}] if own else [{"requests": REQUESTS}]
        copies = [{"replicate": count} for count in whole_numbers("--replicate", replicate)] or [{}]
        known = [{"workload": {"prediction": one}} for one in split(prediction)] if prediction else [{}]
        if prediction and _kind(name, fields) == "synthetic":
            raise ConfigError(f"--prediction {prediction}: is of recorded outcomes; --table names them")
        for arriving, copied, knowing in itertools.product(arrivals, copies, known):
            chosen = merge({**fields, **arriving, **copied}, knowing)
            count = arriving.get("requests")
            if count is not None:
                if "windows" not in set_here:
                    chosen["windows"] = 1
                if "max_requests" not in set_here:
                    default = packaged("cloud_edge", "default")["max_requests"]
                    chosen["max_requests"] = min(max(count, default), MAX_REQUESTS)
            conditions.append(_condition(Path(name).stem, CloudEdgeConfig.create(name, **chosen)))
    return conditions


def _condition(catalogue: str, config: CloudEdgeConfig) -> Condition:
    """Name a condition."""
    workload = Workload(config)
    labels: dict[str, Any] = {
        "catalogue": catalogue,
        "replicate": config.replicate,
        "destinations": config.destination_count,
        "requests": config.requests,
        "rate_per_s": round(workload.rate_per_s, 3),
        "windows": config.windows,
        "cutoff_s": workload.horizon_s,
    }
    if workload.length_ms is not None:
        labels["trace_s"] = round(workload.length_ms / 1000.0, 3)
    if config.drop:
        labels["dropped"] = ", ".join(config.drop)
    if isinstance(workload.contents, OutcomeContents):
        outcomes = workload.contents.config
        standing_in = [
            f"{model} answers as {outcomes.stand_ins[model]}"
            for model in config.served.hosted
            if model in outcomes.stand_ins
        ]
        labels |= {
            "workload": outcomes.kind,
            "table": Path(outcomes.table).name,
            "prompts": len(workload.contents.ids),
            "rows": outcomes.rows,
            "prediction": outcomes.prediction,
            "lengths": outcomes.lengths or outcomes.prediction,
            "stand_ins": ", ".join(standing_in),
            "notes": " ".join(workload.contents.notes),
        }
    parts = [catalogue if config.replicate == 1 else f"{catalogue} × {config.replicate}"]
    parts.append(
        f"{labels['rate_per_s']:.6g}/s" if config.requests is None else f"{config.requests} requests"
    )
    if config.windows > 1:
        parts.append(f"{config.windows} windows")
    if "workload" in labels:
        parts.append(f"{labels['workload']} rows{' with stand-ins' if labels['stand_ins'] else ''}")
        known = labels["prediction"]
        parts.append(f"prediction {known}")
        if labels["lengths"] != known:
            parts.append(f"lengths {labels['lengths']}")
    return Condition(", ".join(parts), config, labels)
