"""How a run's episodes are cut into shards: by the run alone, whoever plays them."""

from __future__ import annotations

import platform
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

from routing_gym.evaluation.results import ResultsError, check_here
from routing_gym.evaluation.runner import TIMED_FAMILIES, Condition, Job, Router, run_jobs
from routing_gym.policy import Policy, make_policy, policy_class
from routing_gym.studies.storage import encode

# Episodes of one router: rows enough to make a vector environment's overhead small, played in a second or so.
ROWS = 192
# Where decisions are timed: episodes that each of the routers plays in turn.
TIMED_ROWS = 8


class Group(NamedTuple):
    """Routers and conditions whose episodes may be played together, and how many to a shard."""

    routers: tuple[Router, ...]
    conditions: tuple[Condition, ...]
    rows: int


class Shards:
    """The shards of a run, made when they are asked for.

    Attributes:
        groups: of episodes, in the order of shards.
        seeds: of every condition.
    """

    def __init__(
        self, routers: Sequence[Router], conditions: Sequence[Condition], seeds: Sequence[int]
    ) -> None:
        self.seeds = seeds
        self.groups = _groups(routers, conditions)
        self._counts = [-(-len(group.conditions) * len(seeds) // group.rows) for group in self.groups]

    def __len__(self) -> int:
        return sum(self._counts)

    def _place(self, number: int) -> tuple[Group, range]:
        for group, count in zip(self.groups, self._counts, strict=True):
            if number < count:
                end = min((number + 1) * group.rows, len(group.conditions) * len(self.seeds))
                return group, range(number * group.rows, end)
            number -= count
        raise IndexError(f"there are {len(self)} shards")

    def group(self, number: int) -> Group:
        """Return the group that a shard is of."""
        return self._place(number)[0]

    def episodes(self, number: int) -> int:
        """Return how many episodes a shard has."""
        group, places = self._place(number)
        return len(group.routers) * len(places)

    def jobs(self, number: int) -> list[Job]:
        """Return the episodes of a shard, by condition and seed."""
        group, places = self._place(number)
        return [
            Job(router, group.conditions[place // len(self.seeds)], self.seeds[place % len(self.seeds)])
            for place in places
            for router in group.routers
        ]


def _groups(routers: Sequence[Router], conditions: Sequence[Condition]) -> list[Group]:
    classes = [policy_class(router.name) for router in routers]
    if classes[0].family in TIMED_FAMILIES:
        return [Group(tuple(routers), (condition,), TIMED_ROWS) for condition in conditions]
    groups = []
    for router, cls in zip(routers, classes, strict=True):
        together: dict[Any, list[Condition]] = {}
        for condition in conditions:
            variant = cls.variant(condition.config) if issubclass(cls, Policy) else None
            together.setdefault((condition.config.space_key, variant), []).append(condition)
        groups += [Group((router,), tuple(found), min(cls.max_rows, ROWS)) for found in together.values()]
    return groups


@cache
def _check(versions: tuple[tuple[str, str], ...], files: tuple[tuple[str, str], ...]) -> None:
    """Check once in each process."""
    check_here(dict(versions), dict(files))


def fingerprint_of(router: Router, configs: Sequence[Any]) -> dict[str, str]:
    """Return what identifies the files that a router plays conditions with; empty where it has none.

    Raises:
        ValueError: it cannot be made, or cannot play them.
    """
    policy = make_policy(router.name, **router.params)
    if not isinstance(policy, Policy):
        return {}
    policy.configure(configs)
    return dict(policy.fingerprint())


@dataclass(frozen=True)
class Player:
    """Plays a shard, wherever it is sent.

    Attributes:
        curves: whether to keep each episode's curves.
        gap: whether to hold each cloud–edge decision against the proven optimum of its batch.
        versions: of packages that results may depend on, (name, version) each.
        files: that conditions read, (path, SHA-256) each.
        fingerprints: of the routers' own files, see `Policy.fingerprint`, as pairs.
    """

    curves: bool
    gap: bool
    versions: tuple[tuple[str, str], ...]
    files: tuple[tuple[str, str], ...]
    fingerprints: tuple[tuple[str, str], ...] = ()

    def __call__(self, jobs: Sequence[Job]) -> bytes:
        """Return the episodes of a shard as a Parquet file, in the order of the jobs.

        Raises:
            ResultsError: a version or a file here is another than where the study was begun.
        """
        _check(self.versions, self.files)
        for router in {job.router.label: job.router for job in jobs}.values() if self.fingerprints else ():
            configs = [job.condition.config for job in jobs if job.router == router]
            if not fingerprint_of(router, configs).items() <= set(self.fingerprints):
                raise ResultsError(
                    f"{platform.node()}: the files of {router.label} are others than where this was begun"
                )
        place = {job.key: k for k, job in enumerate(jobs)}
        begin = time.perf_counter()
        results = list(run_jobs(jobs, curves=self.curves, gap=self.gap))
        seconds = time.perf_counter() - begin
        return encode(sorted(results, key=lambda result: place[result.job.key]), seconds)
