"""Studies of seconds, shared by the tests of the study."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from routing_agents.study_scores import Results, results_of
from routing_gym.cloud_edge.config import CloudEdgeConfig
from routing_gym.cluster.config import ClusterConfig
from routing_gym.cluster.metrics import METRICS
from routing_gym.common.config import merge, validate
from routing_gym.evaluation.arguments import routers_of
from routing_gym.evaluation.results import ResultFolder, make_plan
from routing_gym.evaluation.runner import Result, make_jobs
from routing_gym.studies.config import Part, Study
from routing_gym.studies.results import read_part
from routing_gym.studies.run import describe
from tests.agents.trained import save_random

SHORT = {"warmup_s": 0.125, "measured_s": 0.375}
CANDIDATES = ["deadline_aware:margin=0.3", "deadline_aware", "deadline_aware:margin=1.5"]
QUIET = Console(quiet=True)


def cluster_part(folder: Path, **fields: Any) -> dict[str, Any]:
    """Return a part of two conditions, with two routers of random weights."""
    config = ClusterConfig.create(observation="router")
    trained = []
    for seed in range(2):
        path = folder / f"cluster-{seed}"
        if not path.exists():
            save_random(path, config, seed)
        trained.append(f"learned:path={path}")
    usual = {
        "title": "A small cluster",
        "family": "cluster",
        "config": "default",
        "fields": SHORT,
        "conditions": {"rate_per_s": [180, 400], "scenario": ["steady"]},
        "routers": {
            "documented": ["round_robin", "least_queue"],
            "fixed": ["deadline_aware"],
            "trained": trained,
            "yardsticks": ["clairvoyant", "bound"],
        },
        "candidates": CANDIDATES,
        "report": {"train": "routing-gym train cluster-ppo"},
    }
    return {**merge(usual, fields), **{k: v for k, v in fields.items() if k in ("conditions", "candidates")}}


def cloud_edge_part(folder: Path) -> dict[str, Any]:
    """Return a part of two conditions, one of them of batches of four."""
    path = folder / "cloud-edge"
    if not path.exists():
        save_random(path, CloudEdgeConfig.create("testbed-6node"))
    return {
        "title": "A small testbed",
        "family": "cloud_edge",
        "config": "testbed-6node",
        "fields": {"windows": 5, "max_requests": 8},
        "conditions": {"requests": [4, 6]},
        "routers": {
            "fixed": ["greedy", "local_search", "least_backlog"],
            "trained": [f"learned:path={path}"],
        },
        "reference": "local_search",
        "report": {
            "also": ["least_backlog"],
            "decision_batch": 4,
            "train": "routing-gym train cloud-edge-ppo",
        },
    }


def study(**parts: Mapping[str, Any]) -> Study:
    return validate(Study, {"title": "Small", "parts": parts})


def played(whole: Study, out: Path, seeds: str = "3", **how: Any) -> None:
    """Play a study into a folder. Needs pyarrow."""
    from routing_gym.studies.engines import Engine
    from routing_gym.studies.run import run_study

    run_study(whole, list(whole.parts), out, Engine(), seeds=seeds, console=QUIET, **how)


def read(folder: Path) -> Results:
    return results_of(read_part(folder))


def made_up(
    folder: Path,
    fields: Mapping[str, Any],
    metrics: Mapping[str, Mapping[str, Any]],
    seeds: Sequence[int] = (1, 2),
) -> Results:
    """Keep results that were never played: per router and metric an array (conditions, seeds)."""
    part = validate(Part, fields)
    conditions = part.conditions_played()
    groups = part.groups(*routers_of(str(part.reference), part.family))
    routers = [router for listed in groups.values() for router in listed]
    assert [router.label for router in routers] == list(metrics)
    plan = make_plan(
        part.family,
        routers,
        conditions,
        seeds,
        roles=[router.role for router in routers],
        reference=part.reference,
        fingerprints={},
    )
    plan["part"] = describe(part, groups)
    kept = ResultFolder(folder, plan)
    for job in make_jobs(routers, conditions, seeds):
        place = conditions.index(job.condition), list(seeds).index(job.seed)
        values = {name: array[place[0]][place[1]] for name, array in metrics[job.router.label].items()}
        kept.add(Result(job, {**dict.fromkeys(METRICS), **values}, {}))
    kept.finish()
    return read(folder)
