"""Studies of episodes that last half a second, and engines and players that tell tales."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from rich.console import Console

from routing_gym.common.config import validate
from routing_gym.evaluation.runner import Job
from routing_gym.studies.config import Part, Study
from routing_gym.studies.engines import Engine
from routing_gym.studies.results import PartResults
from routing_gym.studies.run import run_study
from routing_gym.studies.shards import Player, Shards
from routing_gym.studies.storage import read_table, shard_files
from tests.evaluation.runs import SHORT, condition, router

IN_PROCESS = Engine()
# What the time of decisions is, differs from one time to another.
TIMES = ("decision_ms_median", "decision_ms_p99", "curve.decision_ms", "curve.convergence")


def cluster_part(**fields: Any) -> dict[str, Any]:
    """Return a part of eight conditions, of which two can be played side by side."""
    return {
        "title": "Cluster",
        "family": "cluster",
        "config": "default",
        "fields": SHORT,
        "conditions": {"replicas": [2, 3], "rate_per_s": [150, 250]},
        "routers": {"documented": ["round_robin", "adaptive"], "fixed": ["random"], "yardsticks": ["bound"]},
        "reference": "adaptive",
        **fields,
    }


def cloud_edge_part(**fields: Any) -> dict[str, Any]:
    """Return a part of small batches."""
    return {
        "title": "Batches",
        "family": "cloud_edge",
        "config": "testbed-6node",
        "fields": {"windows": 2},
        "conditions": {"requests": [2, 5]},
        "routers": {"documented": ["round_robin", "uniroute"], "fixed": ["greedy"]},
        "reference": "uniroute",
        **fields,
    }


def study_of(**parts: Any) -> Study:
    """Return a study of these parts."""
    return Study(title="Short", parts={name: validate(Part, fields) for name, fields in parts.items()})


def played(study: Study, out: Path, engine: Engine = IN_PROCESS, **how: Any) -> list[PartResults]:
    """Play a study, three seeds unless said otherwise, and print nothing."""
    return run_study(
        study, list(study.parts), out, engine, **{"seeds": "3", "console": Console(quiet=True), **how}
    )


def table_of(folder: Path, *, timed: bool = False) -> pa.Table:
    """Return a part's episodes in the order of shards, without what depends on the machine."""
    table = read_table(shard_files(folder)).replace_schema_metadata(None)
    return table if timed else table.drop_columns([name for name in TIMES if name in table.column_names])


def some_shards(seeds: int = 5) -> Shards:
    """Return shards of two routers under two conditions."""
    return Shards(
        [router("round_robin"), router("adaptive")],
        [condition("two", replicas=2), condition("three")],
        range(30_000, 30_000 + seeds),
    )


PLAYER = Player(curves=False, gap=False, versions=(), files=())


@dataclass(frozen=True)
class Dying:
    """A player whose process dies the first times that it plays a shard that begins with a router and a seed.

    Attributes:
        folder: where it keeps count.
        router: the label.
        times: how often.
        seed: of the first episode, under the first condition; None is any.
    """

    folder: Path
    router: str
    times: int
    seed: int | None = None

    def __call__(self, jobs: Sequence[Job]) -> bytes:
        """Die, or play."""
        deaths = len(list(self.folder.iterdir()))
        first = jobs[0]
        meant = self.seed is None or (first.seed, first.condition.name) == (self.seed, "two")
        if first.router.label == self.router and meant and deaths < self.times:
            (self.folder / f"{deaths}").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return PLAYER(jobs)
