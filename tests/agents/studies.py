"""Studies of seconds, shared by the tests of the study."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from routing_agents.study import Part, Study, run_study
from routing_agents.study_scores import Results, read_results
from routing_gym.cloud_edge.config import CloudEdgeConfig
from routing_gym.cluster.config import ClusterConfig
from routing_gym.cluster.metrics import METRICS
from routing_gym.common.config import merge
from routing_gym.evaluation.results import ResultFolder, make_plan
from routing_gym.evaluation.runner import Result, make_jobs
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
        "train": "routing-gym train cluster-ppo",
    }
    return {**merge(usual, fields), **{k: v for k, v in fields.items() if k in ("conditions", "candidates")}}


def cloud_edge_part(folder: Path, **fields: Any) -> dict[str, Any]:
    """Return a part of one condition, batches of four."""
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
        "also": ["least_backlog"],
        "decision_batch": 4,
        "train": "routing-gym train cloud-edge-ppo",
        **fields,
    }


def study(**parts: Mapping[str, Any]) -> Study:
    return Study.model_validate({"parts": parts})


def played(whole: Study, out: Path, seeds: str = "3", **how: Any) -> Study:
    """Play a study into a folder."""
    run_study(whole.parts, out, seeds=seeds, console=QUIET, **how)
    return whole


def made_up(
    folder: Path, part: Part, metrics: Mapping[str, Mapping[str, Any]], seeds: Sequence[int] = (1, 2)
) -> Results:
    """Keep results that were never played: per router and metric an array (conditions, seeds)."""
    conditions = part.conditions_played()
    routers = part.routers_played(part.reference, conditions)
    assert [router.label for router in routers] == list(metrics)
    plan = make_plan(
        "cluster", routers, conditions, seeds, roles=[r.role for r in routers], reference=part.reference
    )
    kept = ResultFolder(folder, plan)
    for job in make_jobs(routers, conditions, seeds):
        place = conditions.index(job.condition), list(seeds).index(job.seed)
        values = {name: array[place[0]][place[1]] for name, array in metrics[job.router.label].items()}
        kept.add(Result(job, {**dict.fromkeys(METRICS), **values}, {}))
    kept.finish()
    selection: dict[str, Any] = {"seeds": [], "scores": {}}
    record = {"part": part.model_dump(mode="json"), "reference": part.reference, "selection": selection}
    (folder / "part.json").write_text(json.dumps({**record, "weights": {}}))
    found = read_results(folder)
    assert found is not None
    return found
