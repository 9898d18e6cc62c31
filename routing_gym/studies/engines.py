"""What shards are played by: this process, joblib's processes, or a Ray cluster.

An engine plays shards in any order and yields each one's number and data. What a lost worker had in hand is
played again. Which engine plays a shard makes no difference to its episodes.
"""

from __future__ import annotations

import itertools
import os
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from routing_gym.evaluation.results import ResultsError
from routing_gym.evaluation.runner import Job, interrupts_ignored
from routing_gym.studies.shards import Shards

# How often in a row workers may be lost before it is taken for the shard's fault.
LOSSES = 3
# Shards that are sent to a cluster ahead of those being played, per core.
AHEAD = 2

Played = Iterator[tuple[int, bytes]]
# Plays the episodes of a shard; `shards.Player` is the one that studies have.
Play = Callable[[Sequence[Job]], bytes]


@dataclass(frozen=True)
class Engine:
    """How to play shards.

    Attributes:
        kind: `joblib` for processes of this machine, or `ray`.
        workers: how many; 1 of `joblib` plays in this process. A cluster that is there already has its own.
        address: of a Ray cluster; None starts one on this machine.
    """

    kind: Literal["joblib", "ray"] = "joblib"
    workers: int = 1
    address: str | None = None

    def play(self, player: Play, shards: Shards, numbers: Iterable[int]) -> Played:
        """Play shards.

        Args:
            player: plays one.
            shards: of the run.
            numbers: of those to play.

        Yields:
            Number and data of each, as they are finished.

        Raises:
            ResultsError: workers are lost again and again.
            ImportError: the engine is not installed.
        """
        if self.kind == "ray":
            return _ray(player, shards, iter(numbers), self.workers, self.address)
        if self.workers == 1:
            return ((number, player(shards.jobs(number))) for number in numbers)
        return _joblib(player, shards, dict.fromkeys(numbers), self.workers)

    def check(self) -> None:
        """Raise ImportError if the engine is not installed."""
        if self.kind == "ray":
            _import_ray()
        elif self.workers > 1:
            _import_joblib()


def _import_joblib() -> Any:
    try:
        import joblib
    except ImportError as error:
        raise ImportError(
            'more than one worker needs joblib: pip install "routing-gym[studies]", or --workers 1'
        ) from error
    return joblib


def _import_ray() -> Any:
    try:
        import ray
    except ImportError as error:
        raise ImportError('--engine ray needs Ray: pip install "routing-gym[scale]"') from error
    return ray


def _joblib(player: Play, shards: Shards, left: dict[int, None], workers: int) -> Played:
    joblib = _import_joblib()
    from joblib.externals.loky.process_executor import TerminatedWorkerError

    losses = 0
    while left:
        tasks = (joblib.delayed(_play_shard)(player, number, shards.jobs(number)) for number in list(left))
        try:
            # Workers leave interrupts to the parent from their first instant.
            with interrupts_ignored(), joblib.parallel_config(backend="loky", initializer=_prepare_worker):
                finished = joblib.Parallel(workers, return_as="generator_unordered", batch_size=1)(tasks)
            try:
                for number, data in finished:
                    losses = 0
                    del left[number]
                    yield number, data
            finally:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # that shards are left is told, and why
                    finished.close()
        except TerminatedWorkerError as error:
            # What was being played goes last: if it is to blame, the others need not wait for it.
            for number in list(left)[:workers]:
                left[number] = left.pop(number)
            losses += 1
            if losses == LOSSES:
                raise ResultsError(_lost(f" with {len(left)} shards left")) from error


def _play_shard(player: Play, number: int, jobs: Sequence[Job]) -> tuple[int, bytes]:
    return number, player(jobs)


def _prepare_worker() -> None:
    """Leave interrupts to the parent, and end with it, even if it is killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _lost(more: str) -> str:
    return (
        f"workers were lost {LOSSES} times in a row{more}; is memory enough? Try fewer --workers. "
        "What is finished is kept, and the same command goes on"
    )


def _ray(player: Play, shards: Shards, numbers: Iterator[int], workers: int, address: str | None) -> Played:
    ray = _import_ray()
    # A process that asks for no accelerator keeps what it would see of them.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    own = {} if address else {"num_cpus": workers, "include_dashboard": False}
    ray.init(address=address or "local", log_to_driver=False, logging_level="warning", **own)
    try:
        play = ray.remote(num_cpus=1, max_retries=LOSSES - 1)(_play_shard)
        common = ray.put(player)
        ahead = AHEAD * max(1, int(ray.cluster_resources().get("CPU", 1)))
        pending: list[Any] = []
        while True:
            pending += [
                play.remote(common, number, shards.jobs(number))
                for number in itertools.islice(numbers, ahead - len(pending))
            ]
            if not pending:
                return
            finished, pending = ray.wait(pending, num_returns=1)
            yield ray.get(finished[0])
    except ray.exceptions.RayTaskError as error:
        raise error.cause from None
    except ray.exceptions.RayError as error:
        raise ResultsError(_lost(f" ({type(error).__name__})")) from error
    finally:
        ray.shutdown()
