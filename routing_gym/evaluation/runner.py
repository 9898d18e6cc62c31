"""Runs routers on an explicit list of (condition, seed), the same list for every router (DESIGN 6).

Each episode is reset from its own seed, so its row of results does not depend on how episodes are grouped
into shards, nor on how many processes play them; what decisions took is the one thing that does.
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

from routing_gym.evaluation.decisions import DECISION_METRICS, Bounds, DecisionLog, Rehearsal
from routing_gym.evaluation.sequential import Sequential
from routing_gym.policy import Policy, Yardstick, make_policy, policy_class

ENVIRONMENTS = {
    "cluster": "routing_gym/InferenceCluster-v0",
    "cloud_edge": "routing_gym/CloudEdgeBatch-v0",
}
# Where the time of a decision is measured, so that episodes are played one by one.
TIMED_FAMILIES = frozenset({"cloud_edge"})

# DESIGN 6: seeds for choosing, for reporting on what was chosen, for tests, and for training.
DEVELOPMENT_SEEDS = range(10_000, 10_008)
VALIDATION_SEEDS = range(20_000, 20_024)
TEST_SEEDS_FROM = 30_000
TRAINING_SEEDS_FROM = 1_000_000
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

    @property
    def plays(self) -> bool:
        """Whether it plays episodes; a `Yardstick` only measures them."""
        return issubclass(policy_class(self.name), Policy)


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
    jobs: Sequence[Job],
    *,
    workers: int = 1,
    curves: bool = False,
    gap: bool = False,
    progress: Progress | None = None,
) -> Iterator[Result]:
    """Play episodes and yield each one's result when it is finished.

    Args:
        jobs: what to play.
        workers: processes; 1 plays in this one.
        curves: whether to keep each episode's curves, for plots.
        gap: whether to hold each cloud–edge decision against the proven optimum of its batch.
        progress: called now and then with the number of episodes (or parts of them) just done.

    Raises:
        ValueError: fewer than one worker.
    """
    if workers < 1:
        raise ValueError(f"workers = {workers}: must be at least 1")
    shards = make_shards(jobs, workers)
    if workers == 1 or len(shards) == 1:
        for shard in shards:
            yield from play(shard, curves=curves, gap=gap, progress=progress)
        return
    context = get_context("spawn")
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_prepare_worker)
    try:
        with interrupts_ignored():  # by workers that this starts, too, from their first instant
            pending: set[Future[list[Result]]] = {
                pool.submit(_play_all, shard, curves, gap) for shard in shards
            }
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
def interrupts_ignored() -> Iterator[None]:
    """Ignore interrupts for a while; processes that are started meanwhile go on doing so."""
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


def _play_all(shard: Sequence[Job], curves: bool, gap: bool) -> list[Result]:
    return list(play(shard, curves=curves, gap=gap))


def make_shards(jobs: Sequence[Job], workers: int = 1) -> list[list[Job]]:
    """Group jobs into those that are played together.

    As a rule that is one router's, as many as it likes and one vector environment can play. Where decisions
    are timed it is one episode by all routers in turn: yardsticks first, as others use the bounds they prove.
    """
    classes = {name: policy_class(name) for name in {job.router.name for job in jobs}}
    groups: dict[Any, list[Job]] = {}
    for job in jobs:
        cls, config = classes[job.router.name], job.condition.config
        timed = cls.family in TIMED_FAMILIES
        variant = cls.variant(config) if issubclass(cls, Policy) else None
        one_router = (job.router.label, config.space_key, variant)
        groups.setdefault((job.condition.name, job.seed) if timed else one_router, []).append(job)
    shards = []
    for group in groups.values():
        first_class = classes[group[0].router.name]
        if first_class.family in TIMED_FAMILIES:
            shards.append(sorted(group, key=lambda job: classes[job.router.name].role == "router"))
            continue
        rows = min(first_class.max_rows, -(-len(group) // workers))
        shards += [group[first : first + rows] for first in range(0, len(group), rows)]
    return shards


def play(
    shard: Sequence[Job], *, curves: bool = False, gap: bool = False, progress: Progress | None = None
) -> Iterator[Result]:
    """Play the episodes of one shard, and yield each result as its episode ends.

    Args:
        shard: jobs that `make_shards` has put together.
        curves: whether to keep each episode's curves.
        gap: as for `run_jobs`.
        progress: as for `run_jobs`.
    """
    router = shard[0].router
    if policy_class(router.name).family in TIMED_FAMILIES:
        yield from _play_in_turn(shard, curves, Bounds() if gap else None, progress)
        return
    policy = make_policy(router.name, **router.params)
    envs = _make_envs(policy.family, shard)
    begin = envs.reset(seed=[job.seed for job in shard])
    if isinstance(policy, Yardstick):
        yield from _measure(policy, shard, envs, {}, progress)
    else:
        yield from _play(policy, shard, envs, begin, curves, progress)


def _make_envs(family: str, jobs: Sequence[Job]) -> Any:
    return gym.make_vec(
        ENVIRONMENTS[family],
        num_envs=len(jobs),
        configs=[job.condition.config for job in jobs],
        autoreset_mode=AutoresetMode.DISABLED,
        hold_finished=True,
    )


def _play_in_turn(
    shard: Sequence[Job], curves: bool, bounds: Bounds | None, progress: Progress | None
) -> Iterator[Result]:
    """Play one episode with each router of a shard, and time its decisions."""
    envs: Any = None
    for job in shard:
        policy = _batch_policy(job.router)
        envs = envs or _make_envs(policy.family, [job])
        begin = envs.reset(seed=[job.seed])
        if isinstance(policy, Yardstick):
            yield from _measure(policy, [job], envs, dict.fromkeys(DECISION_METRICS), progress)
            continue
        log = DecisionLog(policy, bounds, _rehearsal(job, envs))
        yield from _play(policy, [job], envs, begin, curves, progress, log)


def _batch_policy(router: Router) -> Policy | Yardstick:
    policy = make_policy(router.name, **router.params)
    return Sequential(policy) if isinstance(policy, Policy) and policy.acts_on == "request" else policy


# Routers that have decided in this process: a first decision may compile.
_warm: set[str] = set()


def _rehearsal(job: Job, envs: Any) -> Rehearsal | None:
    """Return what lets a copy of a router decide once, which is then thrown away; None if one has before."""
    key = f"{job.router.name} {job.router.params}"
    if key in _warm:
        return None

    def rehearse(observation: Any, action_masks: Any) -> None:
        policy: Any = _batch_policy(job.router)
        state = _get_ready(policy, [job], envs)
        policy.predict(observation, state, np.ones(1, bool), action_masks=action_masks)
        _warm.add(key)

    return rehearse


def _measure(
    yardstick: Yardstick,
    shard: Sequence[Job],
    envs: Any,
    undefined: Mapping[str, Any],
    progress: Progress | None,
) -> Iterator[Result]:
    inner = envs.unwrapped
    for row, job in enumerate(shard):
        metrics = {**inner.undefined_metrics, **undefined, **yardstick.measure(inner.episodes[row])}
        yield Result(job, metrics, {})
        if progress:
            progress(1)


def _get_ready(policy: Policy, shard: Sequence[Job], envs: Any) -> Any:
    """Tell a policy what it may know, and return its initial state."""
    policy.configure(envs.unwrapped.configs)
    if policy.role == "yardstick":
        policy.attach(envs)
    return policy.initial_state([job.seed + ROUTER_SEED_OFFSET for job in shard])


def _play(
    policy: Policy,
    shard: Sequence[Job],
    envs: Any,
    begin: tuple[Any, Any],
    curves: bool,
    progress: Progress | None,
    log: DecisionLog | None = None,
) -> Iterator[Result]:
    rows, inner = len(shard), envs.unwrapped
    observation, info = begin
    state = _get_ready(policy, shard, envs)
    predict = log.predict if log else policy.predict
    finished, start, told, step = np.zeros(rows, bool), np.ones(rows, bool), 0.0, 0
    while not finished.all():
        actions, state = predict(observation, state, start, action_masks=info["action_mask"])
        start = np.zeros(rows, bool)
        observation, _, _, truncated, info = envs.step(actions)
        for row in np.flatnonzero(truncated & ~finished).tolist():
            finished[row] = True
            metrics = inner.episode_metrics(row)
            kept = inner.episode_curves(row) if curves else {}
            if log:
                metrics |= log.metrics()
                kept |= log.curves() if curves else {}
            yield Result(shard[row], metrics, kept)
        step += 1
        if progress and step % 64 == 0:
            done = float(inner.progress().sum())
            progress(done - told)
            told = done
    if progress:
        progress(rows - told)
