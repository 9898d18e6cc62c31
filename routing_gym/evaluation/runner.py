"""Runs routers on an explicit list of (condition, seed), the same list for every router (DESIGN 6).

Each episode is reset from its own seed, so its row of results does not depend on how episodes are grouped
into shards, nor on how many processes play them.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing import get_context, parent_process
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode

from routing_gym.policy import Policy, Yardstick, make_policy, policy_class

ENVIRONMENTS = {"cluster": "routing_gym/InferenceCluster-v0"}

# DESIGN 6: seeds for choosing, for reporting on what was chosen, and for tests.
DEVELOPMENT_SEEDS = range(10_000, 10_008)
VALIDATION_SEEDS = range(20_000, 20_024)
TEST_SEEDS_FROM = 30_000
# A router's own randomness has nothing to do with the episode's.
ROUTER_SEED_OFFSET = 500_000_000


@dataclass(frozen=True)
class Condition:
    """A config under the name that results carry, with the columns that tell conditions apart."""

    name: str
    config: Any
    labels: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Router:
    """A router to run: the label that results carry, its registered name, and its parameters."""

    label: str
    name: str
    params: Mapping[str, Any] = field(default_factory=dict)

    @property
    def role(self) -> str:
        """`router`, or `yardstick`."""
        return policy_class(self.name).role


class Job(NamedTuple):
    """One episode to play."""

    router: Router
    condition: Condition
    seed: int

    @property
    def key(self) -> tuple[str, str, int]:
        """What identifies its results."""
        return self.router.label, self.condition.name, self.seed


class Result(NamedTuple):
    """One episode played: its metrics (None where undefined), and its curves where these were asked for."""

    job: Job
    metrics: dict[str, Any]
    curves: dict[str, list[float]]


# Told how far the jobs are: (how much more is done, in episodes).
Progress = Callable[[float], None]


def make_jobs(routers: Sequence[Router], conditions: Sequence[Condition], seeds: Sequence[int]) -> list[Job]:
    """List every episode of a run, router by router."""
    return [Job(r, c, s) for r in routers for c in conditions for s in seeds]


def run_jobs(
    jobs: Sequence[Job], *, workers: int = 1, curves: bool = False, progress: Progress | None = None
) -> Iterator[Result]:
    """Play episodes and yield each one's result when it is finished.

    Args:
        jobs: what to play.
        workers: processes; 1 plays in this one.
        curves: whether to keep each episode's curves, for plots.
        progress: called now and then with the number of episodes (or parts of them) just done.

    Raises:
        ValueError: fewer than one worker.
    """
    if workers < 1:
        raise ValueError(f"workers = {workers}: must be at least 1")
    shards = make_shards(jobs, workers)
    if workers == 1 or len(shards) == 1:
        for shard in shards:
            yield from play(shard, curves=curves, progress=progress)
        return
    context = get_context("spawn")
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_prepare_worker)
    try:
        with _interrupts_ignored():  # by workers that this starts, too, from their first instant
            pending: set[Future[list[Result]]] = {pool.submit(_play_all, shard, curves) for shard in shards}
        while pending:
            finished, pending = wait(pending, return_when=FIRST_COMPLETED)
            for future in finished:
                results = future.result()
                if progress:
                    progress(len(results))
                yield from results
    finally:
        # On an interrupt nobody waits for shards that are half played.
        processes = list((pool._processes or {}).values())
        pool.shutdown(wait=False, cancel_futures=True)
        for process in processes:
            process.terminate()


@contextmanager
def _interrupts_ignored() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():  # only that one may set handlers
        yield
        return
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler or signal.SIG_DFL)


def _prepare_worker() -> None:
    """Leave interrupts to the parent, and end with it, even if it is killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def watch() -> None:
        parent = parent_process()
        assert parent is not None
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _play_all(shard: Sequence[Job], curves: bool) -> list[Result]:
    return list(play(shard, curves=curves))


def make_shards(jobs: Sequence[Job], workers: int = 1) -> list[list[Job]]:
    """Group jobs into those that one vector environment can play, at most as many as the router likes."""
    groups: dict[Any, list[Job]] = {}
    for job in jobs:
        groups.setdefault((job.router.label, job.condition.config.space_key), []).append(job)
    shards = []
    for group in groups.values():
        rows = min(policy_class(group[0].router.name).max_rows, -(-len(group) // workers))
        shards += [group[first : first + rows] for first in range(0, len(group), rows)]
    return shards


def play(shard: Sequence[Job], *, curves: bool = False, progress: Progress | None = None) -> Iterator[Result]:
    """Play the episodes of one shard side by side, and yield each result as its episode ends.

    Args:
        shard: jobs of one router, whose conditions share observation and action space.
        curves: whether to keep each episode's curves.
        progress: as for `run_jobs`.
    """
    router = shard[0].router
    policy = make_policy(router.name, **router.params)
    rows = len(shard)
    envs = gym.make_vec(
        ENVIRONMENTS[policy.family],
        num_envs=rows,
        configs=[job.condition.config for job in shard],
        autoreset_mode=AutoresetMode.DISABLED,
        hold_finished=True,
    )
    inner: Any = envs.unwrapped
    seeds = [job.seed for job in shard]
    observation, info = envs.reset(seed=seeds)  # type: ignore[arg-type]
    if isinstance(policy, Yardstick):
        for row, job in enumerate(shard):
            yield Result(job, {**inner.undefined_metrics, **policy.measure(inner.episodes[row])}, {})
            if progress:
                progress(1)
        return
    yield from _play(policy, shard, envs, observation, info, curves, progress)


def _play(
    policy: Policy,
    shard: Sequence[Job],
    envs: Any,
    observation: Any,
    info: Any,
    curves: bool,
    progress: Progress | None,
) -> Iterator[Result]:
    rows, inner = len(shard), envs.unwrapped
    policy.configure(inner.configs)
    if policy.role == "yardstick":
        policy.attach(envs)
    state = policy.initial_state([job.seed + ROUTER_SEED_OFFSET for job in shard])
    finished, start, told, step = np.zeros(rows, bool), np.ones(rows, bool), 0.0, 0
    while not finished.all():
        actions, state = policy.predict(observation, state, start, action_masks=info["action_mask"])
        start = np.zeros(rows, bool)
        observation, _, _, truncated, info = envs.step(actions)
        for row in np.flatnonzero(truncated & ~finished).tolist():
            finished[row] = True
            kept = inner.episode_curves(row) if curves else {}
            yield Result(shard[row], inner.episode_metrics(row), kept)
        step += 1
        if progress and step % 64 == 0:
            done = float(inner.progress().sum())
            progress(done - told)
            told = done
    if progress:
        progress(rows - told)
