"""What the tests of reports share: results that were never played, with scores that are known."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import ArrayLike

from routing_gym.evaluation.results import PLAN, ResultFolder
from routing_gym.evaluation.runner import Job, Result, Router, make_jobs
from routing_gym.reporting.figure import Figure, Panel
from routing_gym.studies.results import PartResults, read_part
from routing_gym.studies.storage import encode, shard_path, write_shard
from tests.evaluation.runs import condition, made_up, plan_of, router

FIRST_SEED = 20_000


def results_of(
    folder: Path,
    scores: Mapping[str, ArrayLike],
    reference: str = "",
    part: Mapping[str, Any] | None = None,
    shards: bool = False,
    without: frozenset[tuple[str, int, int]] = frozenset(),
    first: int = FIRST_SEED,
    **metrics: Mapping[str, ArrayLike],
) -> PartResults:
    """Write results of the cluster with these scores, and read them.

    Args:
        folder: where to.
        scores: attainment (conditions, seeds) by router.
        reference: label; by default the first.
        part: description of the part.
        shards: write Parquet, three episodes to a file, instead of CSV.
        without: (router, condition, seed) by index, of episodes that are not there.
        first: of the seeds.
        metrics: other metrics (conditions, seeds) by router.
    """
    tables = {label: np.atleast_2d(np.asarray(table, np.float64)) for label, table in scores.items()}
    count, seeds = next(iter(tables.values())).shape
    places = [condition(f"place {k}", rate_per_s=float(k + 1)) for k in range(count)]
    chosen = [first + k for k in range(seeds)]
    plan = plan_of([routed(label) for label in scores], places, chosen, reference, curves=False)
    if part is not None:
        plan["part"] = dict(part)
    names = [place.name for place in places]

    def index(job: Job) -> tuple[int, int]:
        return names.index(job.condition.name), chosen.index(job.seed)

    def played(job: Job) -> Result:
        label = job.router.label
        values: dict[str, Any] = {
            name: float(np.atleast_2d(np.asarray(table[label]))[index(job)])
            for name, table in metrics.items()
        }
        values["attainment"] = float(tables[label][index(job)])
        values = {name: None if np.isnan(value) else value for name, value in values.items()}
        return made_up(job, curves=False, invalid_actions=0, **values)

    jobs = make_jobs([routed(label) for label in scores], places, chosen)
    results = [played(job) for job in jobs if (job.router.label, *index(job)) not in without]
    if shards:
        folder.mkdir(parents=True)
        (folder / PLAN).write_text(yaml.safe_dump(plan, sort_keys=False), encoding="utf-8")
        for k in range(0, len(results), 3):
            write_shard(shard_path(folder, k // 3), encode(results[k : k + 3]))
    else:
        kept = ResultFolder(folder, plan)
        for result in results:
            kept.add(result)
        kept.finish()
    return read_part(folder)


def routed(label: str) -> Router:
    """Return a router by its label: what is before a colon is its name."""
    return router(label.partition(":")[0], label)


def change_plan(results: PartResults, change: Any) -> PartResults:
    """Return results whose plan on disk was changed in place by a function."""
    plan = yaml.safe_load((results.folder / PLAN).read_text(encoding="utf-8"))
    change(plan)
    (results.folder / PLAN).write_text(yaml.safe_dump(plan, sort_keys=False), encoding="utf-8")
    return read_part(results.folder)


def luck(*shape: int, seed: int = 0) -> np.ndarray:
    """Return scores between 0.3 and 0.7."""
    drawn: np.ndarray = 0.3 + 0.4 * np.random.default_rng(seed).random(shape)
    return drawn


def a_figure(results: object = None, analysis: object = None) -> list[Figure]:
    """Return a figure with all that there can be in one, in place of those of the results."""

    def draw(axes: Any) -> None:
        axes.plot([0, 1, 2], [2, 0, 1], color="#0072B2", dashes=(5, 2))
        axes.plot([1], [1], "D", color="#222222")
        axes.annotate("a < b & c", (1, 1), fontsize=9)
        axes.set_xlabel("load")

    legend = {"adaptive": {"color": "#0072B2", "dashes": (5, 2), "lw": 1.6}, "bound": {"marker": "D"}}
    rows = [("adaptive", 0, 2.5), ('a, "b"', 1, None), ("bound", 2, float("inf"))]
    panels = [Panel(draw, "steady"), Panel(draw, "burst & <more>", width=7.0)]
    return [Figure("shape", "A shape", "How to read `it`.", panels, ("router", "x", "y"), rows, legend)]
