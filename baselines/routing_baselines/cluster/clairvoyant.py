"""A yardstick that sees the future: what could be had by a router that knew every request in advance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from routing_baselines.cluster.work import DeadlineAware
from routing_gym.cluster.config import ClusterConfig
from routing_gym.cluster.engine import decide, run
from routing_gym.cluster.state import NONE, REQUEST, is_eligible
from routing_gym.common.jit import njit
from routing_gym.policy import Policy


class Clairvoyant(Policy):
    """Tries each action in the true model and keeps the best: a rollout router (Bertsekas, 2020).

    For every decision it copies the cluster, takes the action, rolls on with `deadline_aware` over the next
    `horizon` arrivals until these are served, and counts the requests on time. What it does can be done, so
    its attainment can be had; it is no upper bound. Of actions with equal counts it takes the one with
    the lowest total latency.

    Attributes:
        horizon: arrivals to look ahead.
        margin: of the `deadline_aware` that it rolls on with.
    """

    family: ClassVar[str] = "cluster"
    role: ClassVar[Literal["router", "yardstick"]] = "yardstick"

    def __init__(self, horizon: int = 300, margin: float = 0.9) -> None:
        """Set how far to look ahead.

        Raises:
            ValueError: a negative horizon.
        """
        if horizon < 0:
            raise ValueError(f"horizon = {horizon}: must not be negative")
        self.horizon = horizon
        self._base = DeadlineAware(margin)
        self._envs: Any = None

    def configure(self, configs: Sequence[ClusterConfig]) -> None:
        """Take over demand coefficients and admission."""
        self._base.configure(configs)
        columns = [np.broadcast_to(np.ravel(c), len(configs)) for c in self._base.demand]
        self._demand = np.stack(columns, axis=-1).astype(np.float64)

    def attach(self, envs: Any) -> None:
        """Look into the vector environment that it acts in."""
        self._envs = envs.unwrapped
        self._scratch = np.zeros(0, REQUEST)

    def predict(
        self,
        observation: Mapping[str, NDArray[Any]],
        state: Any = None,
        episode_start: Any = None,
        deterministic: bool = True,
        action_masks: NDArray[Any] | None = None,
    ) -> tuple[NDArray[np.int64], Any]:
        """Choose by looking into the attached environment, not at the observation.

        Raises:
            RuntimeError: no environment was attached.
        """
        if self._envs is None:
            raise RuntimeError("clairvoyant looks into the environment: configure and attach it first")
        cluster = self._envs.state
        if len(self._scratch) < cluster.requests.shape[1]:
            self._scratch = np.zeros(cluster.requests.shape[1], REQUEST)
        actions = np.zeros(len(cluster.rows), np.int64)
        _look_ahead(
            (cluster.rows, cluster.replicas, cluster.requests, cluster.events, self._scratch),
            self._demand,
            self._base.margin,
            self.horizon,
            actions,
        )
        return actions, state


@njit
def deadline_aware(row: Any, replicas: Any, requests: Any, demand: Any, margin: float) -> int:
    """Return what the `deadline_aware` router answers; demand is (a, b, c)."""
    request = requests[row.current]
    age = np.float32(row.tick * row.step_ms - request.arrival)
    least, most, best, worst = np.inf, -np.inf, NONE, NONE
    in_time = False
    for i in range(len(replicas)):
        replica = replicas[i]
        if not is_eligible(row, replica):
            continue
        outstanding = replica.waiting + (replica.in_flight != NONE)
        work = demand[0] * (outstanding + 1.0)
        work = work + demand[1] * (np.float32(replica.prompt_tokens) + np.float64(request.prompt))
        work = work + demand[2] * (np.float32(replica.predicted_tokens) + np.float64(request.predicted))
        # Observations are float32.
        work = work * np.float64(np.float32(replica.speed_ewma))
        in_time |= np.float64(age) + work <= margin * row.deadline_ms
        if work < least:
            least, best = work, i
        if work > most:
            most, worst = work, i
    if in_time:
        return best
    return len(replicas) if row.admission else worst


@njit
def _oldest_open(row: Any, replicas: Any, requests: Any) -> int:
    """Return the first request that a continuation may still touch."""
    oldest = row.current
    for i in range(len(replicas)):
        for start in (replicas[i].in_flight, replicas[i].head):
            r = start
            while r != NONE:
                oldest = min(oldest, r)
                r = requests[r].next if start == replicas[i].head else NONE
    r = row.reroute_head
    while r != NONE:
        oldest = min(oldest, r)
        r = requests[r].next
    return oldest


@njit
def _look_ahead(cluster: Any, demand: Any, margin: float, horizon: int, actions: Any) -> None:
    """Write each row's best action."""
    rows, replicas, requests, events, scratch = cluster
    count = replicas.shape[1]
    for e in range(len(rows)):
        row = rows[e]
        if row.current == NONE:
            continue
        first = _oldest_open(row, replicas[e], requests[e])
        last = min(row.request_count, row.next_request + horizon)
        choice = deadline_aware(row, replicas[e], requests[e], demand[e], margin)
        most = -np.inf
        for step in range(count + row.admission):
            # The base choice goes first, so that it wins ties.
            action = choice if step == 0 else (step - 1 if step <= choice else step)
            if action < count and not is_eligible(row, replicas[e, action]):
                continue
            row_copy = rows[e : e + 1].copy()
            replicas_copy = replicas[e].copy()
            for r in range(first, last):
                scratch[r] = requests[e, r]
            trial = row_copy[0]
            trial.request_count = last
            decide(trial, replicas_copy, scratch, action)
            run(trial, replicas_copy, scratch, events[e])
            while trial.done == 0:
                decide(
                    trial,
                    replicas_copy,
                    scratch,
                    deadline_aware(trial, replicas_copy, scratch, demand[e], margin),
                )
                run(trial, replicas_copy, scratch, events[e])
            # Counts differ by whole numbers; total latency only decides between equal ones.
            value = trial.on_time - min(trial.latency_sum * 1e-9, 0.5)
            if value > most:
                most = value
                actions[e] = action
