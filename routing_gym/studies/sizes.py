"""How much a study is, before it is played: episodes, time and disk, from a sample of each router."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from routing_gym.evaluation.runner import Job, make_shards, play
from routing_gym.studies.engines import Engine
from routing_gym.studies.shards import Group
from routing_gym.studies.storage import encode, seconds_of, shard_path, size_of

if TYPE_CHECKING:
    from routing_gym.studies.run import Stage

COUNTED = ("routers", "conditions", "seeds")
# How long each router's sample is played for at most, beyond its first episode.
SAMPLE_S = 0.5
AT_SCALE = (1e6, 1e9)


class Cost(NamedTuple):
    """What an episode of each router of a group costs: seconds of a core, and bytes on disk, uncompressed."""

    seconds: float
    size: float


class _Enough(Exception):
    """A sample has been played for long enough."""


def size_up(stages: Sequence[Stage], engine: Engine, console: Console) -> None:
    """Print how many episodes there are to play, how long they take about, and how much disk at most.

    A sample of each router is played for that, unless there is nothing left to play.
    """
    table = _table("Sizes", "part", "routers", "conditions", "seeds", "episodes", "left", "core time", "disk")
    known: dict[Any, Cost] = {}
    totals = np.zeros(4)
    with console.status("playing samples"):
        for stage in stages:
            cost, left = np.zeros(2), stage.left()
            for number in left:
                places = stage.shards.episodes(number) / len(stage.shards.group(number).routers)
                cost += places * np.array(_cost(stage, stage.shards.group(number), known))
            numbers = np.array([stage.episodes(), sum(map(stage.shards.episodes, left)), *cost])
            totals += numbers
            run = stage.plan["run"]
            table.add_row(stage.name, *(f"{len(run[of]):,}" for of in COUNTED), *_cells(numbers))
    if len(stages) > 1:
        table.add_section()
        table.add_row("all", *[""] * len(COUNTED), *_cells(totals))
    console.print(table)
    _, to_play, seconds, _ = totals.tolist()
    if to_play:
        alone = engine.workers == 1 or engine.address
        share = "" if alone else f", {duration(seconds / engine.workers)} with {engine.workers} workers"
        console.print(f"{to_play:,.0f} episodes take about {duration(seconds)} of one core here{share}.")


def speeds(stages: Sequence[Stage], console: Console) -> None:
    """Print how fast what is on disk was played, and what many more such episodes would take."""
    table = _table(
        "Speed", "part", "router", "episodes", "episodes/s per core", *(f"{n:g}" for n in AT_SCALE)
    )
    for stage in stages:
        found: dict[str, list[float]] = {}
        for number in range(len(stage.shards)):
            group = stage.shards.group(number)
            name = group.routers[0].label if len(group.routers) == 1 else f"{len(group.routers)} in turn"
            sums = found.setdefault(name, [0.0, 0.0])
            sums[0] += stage.shards.episodes(number)
            sums[1] += seconds_of(shard_path(stage.folder, number))
        for name, (episodes, seconds) in found.items():
            rate = episodes / seconds
            costs = (f"{duration(count / rate)}" for count in AT_SCALE)
            table.add_row(stage.name, name, f"{episodes:,.0f}", f"{rate:,.3g}", *costs)
    console.print(table)
    console.print("1e+06, 1e+09: time of one core for so many episodes.")


def _table(title: str, *columns: str) -> Table:
    table = Table(*columns, title=title)
    for column in table.columns[1:]:
        column.justify = "right"
    return table


def _cells(numbers: NDArray[np.float64]) -> list[str]:
    episodes, left, seconds, size = numbers
    return [f"{episodes:,.0f}", f"{left:,.0f}", duration(seconds), volume(size)]


def _cost(stage: Stage, group: Group, known: dict[Any, Cost]) -> Cost:
    """Return what a group's episodes cost, from a sample; routers of a name cost the same."""
    where = tuple(condition.name for condition in group.conditions)
    key = tuple(router.name for router in group.routers), where, stage.player
    if key not in known:
        seed = stage.shards.seeds[0]
        how: Any = {"curves": stage.player.curves, "gap": stage.player.gap}
        first = [Job(router, group.conditions[0], seed) for router in group.routers]
        size = size_of(encode(list(play(first, **how))))  # whatever compiles does so now
        jobs = [Job(router, condition, seed) for condition in group.conditions for router in group.routers]
        rows = min(group.rows, len(group.conditions) * len(stage.shards.seeds))
        shard = make_shards((jobs * rows)[:rows] if len(group.routers) == 1 else jobs)[0]
        places = len(shard) / len(group.routers)
        known[key] = Cost(_seconds(shard, how, cut=len(group.routers) == 1) / places, size)
    return known[key]


def _seconds(shard: Sequence[Job], how: Any, cut: bool) -> float:
    """Return how long a shard takes; where it may be cut short, from its beginning."""
    begin = time.perf_counter()
    ticks: list[tuple[float, float]] = []

    def progress(more: float) -> None:
        ticks.append((time.perf_counter(), (ticks[-1][1] if ticks else 0.0) + more))
        if cut and len(ticks) > 1 and ticks[-1][0] - ticks[0][0] > SAMPLE_S:
            raise _Enough

    try:
        for _ in play(shard, progress=progress, **how):
            pass
    except _Enough:
        (start, before), (end, after) = ticks[0], ticks[-1]
        # Before the first tick episodes are drawn, which is not part of stepping.
        return start - begin + (len(shard) - before) * (end - start) / (after - before)
    return time.perf_counter() - begin


def duration(seconds: float) -> str:
    """Return a time as people say it."""
    if seconds < 90.0:
        return f"{math.ceil(seconds)} s"
    for unit, length, limit in (("min", 60.0, 90.0), ("h", 3600.0, 48.0)):
        if seconds / length < limit:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds / 86400.0:.0f} days"


def volume(size: float) -> str:
    """Return an amount of data as people say it."""
    for unit in ("kB", "MB", "GB"):
        size /= 1000.0
        if size < 1000.0:
            return f"{size:.3g} {unit}"
    return f"{size / 1000.0:,.3g} TB"
