"""A comparison from start to finish: play, keep, summarise, plot, print."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.text import Text

from routing_gym.evaluation import report
from routing_gym.evaluation.decisions import missing_solver
from routing_gym.evaluation.results import ResultFolder, make_plan, read_curves, strict_json
from routing_gym.evaluation.runner import Condition, Router, make_jobs, run_jobs
from routing_gym.evaluation.terminal import print_tables
from routing_gym.policy import make_policy


def compare(
    family: str,
    routers: Sequence[Router],
    conditions: Sequence[Condition],
    seeds: Sequence[int],
    out: str | Path,
    *,
    reference: str | None = None,
    workers: int = 1,
    resume: bool = False,
    overwrite: bool = False,
    curves: bool = True,
    gap: bool = True,
    console: Console | None = None,
) -> dict[str, Any]:
    """Compare routers on the same seeded episodes.

    Writes `episodes.csv` and `curves.jsonl` while it goes on, then `summary.json`, `summary.md` and plots;
    `config.yaml` says how to run it again. An interrupt leaves the finished episodes, and `resume` goes on.

    Args:
        family: `cluster` or `cloud_edge`.
        routers: what to compare; labels must differ.
        conditions: under which conditions; names must differ.
        seeds: the episodes of each condition.
        out: the results folder.
        reference: label of the router that differences are taken to; by default the first.
        workers: processes.
        resume: go on with the results that `out` holds of this run.
        overwrite: throw away the results that `out` holds.
        curves: keep latency and queue curves, and draw them; of `cloud_edge` they always are kept.
        gap: hold every decision against the proven optimum of its batch; only of `cloud_edge`, and only
            where its solver is installed.
        console: where to print; by default nothing is printed.

    Returns:
        The summary; see `report.summarise`.

    Raises:
        ResultsError: `out` cannot be used as asked.
        ValueError: nothing to compare, labels, names or seeds that are not unique, an unknown reference, or
            a router that cannot be made or is of another family.
        ImportError: a router needs what is not installed.
    """
    console = console or Console(quiet=True)
    labels = [router.label for router in routers]
    names_of: dict[str, list[Any]] = {
        "router": labels,
        "condition": [condition.name for condition in conditions],
        "seed": list(seeds),
    }
    for what, names in names_of.items():
        if not names:
            raise ValueError(f"no {what} is listed; give one or more")
        double = sorted({name for name in names if names.count(name) > 1})
        if double:
            raise ValueError(f"{what} {double[0]!r} is listed twice; each needs a name of its own")
    reference = reference or labels[0]
    if reference not in labels:
        raise ValueError(f"reference = {reference!r}: must be one of the routers, {', '.join(labels)}")
    if workers < 1:
        raise ValueError(f"workers = {workers}: must be at least 1")
    for router in routers:  # before anything is written, rather than when its turn comes
        of = make_policy(router.name, **router.params).family
        if of != family:
            raise ValueError(f"router {router.label!r} is one of {of}, not of {family}")
    settings: dict[str, Any] = {"reference": reference, "curves": curves}
    if family == "cloud_edge":
        missing = missing_solver() if gap else None
        if missing:
            console.print(Text(f"No gaps: {missing}"))
        settings |= {"curves": True, "gap": gap and not missing}
    plan = make_plan(
        family, routers, conditions, seeds, roles=[router.role for router in routers], **settings
    )
    folder = ResultFolder(out, plan, resume=resume, overwrite=overwrite)
    jobs = make_jobs(routers, conditions, seeds)
    left = [job for job in jobs if job.key not in folder.done]
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[finished]} of {task.total:.0f} episodes"),
        TimeRemainingColumn(),
        console=console,
    )
    with bar:
        task = bar.add_task(
            "compare", total=len(jobs), completed=len(jobs) - len(left), finished=len(folder.done)
        )
        for result in run_jobs(
            left,
            workers=workers,
            curves=settings["curves"],
            gap=settings.get("gap", False),
            progress=lambda more: bar.advance(task, more),
        ):
            folder.add(result)
            bar.update(task, description=result.job.router.label, finished=len(folder.done))
    rows, kept = folder.finish(), read_curves(folder.path)
    summary = report.summarise(plan, rows, kept)
    _write(folder.path / "summary.json", json.dumps(strict_json(summary), indent=1, allow_nan=False))
    _write(folder.path / "summary.md", report.to_markdown(summary, plan))
    print_tables(console, summary)
    try:
        from routing_gym.evaluation.plots import MOST_PANELS, write_plots

        plots = write_plots(folder.path, plan, rows, kept)
        if len(conditions) > MOST_PANELS:
            console.print(f"Plots show the first {MOST_PANELS} of the {len(conditions)} conditions")
    except ImportError:
        console.print(Text('No plots: matplotlib is missing; pip install "routing-gym[plots]"'))
        plots = []
    names = ["episodes.csv", "summary.md", "config.yaml", *(plot.name for plot in plots)]
    console.print(Text(f"Results in {folder.path}: {', '.join(names)}"))
    return summary


def _write(path: Path, text: str) -> None:
    path.write_text(text + "\n", encoding="utf-8")
