"""Random episodes of the cluster, played by the engine and by the reference, and their comparison."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
from hypothesis import strategies as st

from routing_gym.cluster.config import ClusterConfig
from routing_gym.cluster.engine import OWN_FIELDS, REPLICA_FIELDS, advance
from routing_gym.cluster.spaces import ObservationLayout
from routing_gym.cluster.state import REQUEST_LOG, START, STEP, ClusterState
from routing_gym.cluster.workload import Arrivals
from tests.cluster.reference import Event, ReferenceCluster, Request, Settings


@dataclass(frozen=True)
class Case:
    """A condition, its requests, and the choices of a router, which are repeated as needed."""

    config: ClusterConfig
    cutoff_ms: float
    arrivals: Arrivals
    choices: tuple[int, ...] = (0,)

    def choice(self, k: int) -> int:
        """Return the action of decision k, eligible or not."""
        return self.choices[k % len(self.choices)] % (self.config.replicas + self.config.admission)


class Acceptance(NamedTuple):
    """A request entering a replica's queue, at a boundary."""

    time: float
    request: int
    replica: int


class Played(NamedTuple):
    """What the engine made of a case."""

    observations: list[dict[str, np.ndarray]]  # one per decision, and the closing one
    masks: list[list[int]]
    terms: list[np.ndarray]
    rewards: list[float]
    acceptances: list[Acceptance]
    state: ClusterState

    @property
    def log(self) -> np.ndarray:
        """The request log at the end."""
        return self.state.request_log(0)


def play(case: Case) -> Played:
    """Let the engine play a case, as the environment does."""
    config = case.config
    state = ClusterState(1, config.replicas)
    state.load(0, config, SimpleNamespace(cutoff_ms=case.cutoff_ms), case.arrivals)
    layout = ObservationLayout(1, config.replicas, config.observation == "full")
    played = Played([], [], [], [], [], state)
    row = state.rows[0]

    def run(command: int) -> None:
        row["command"] = command
        buffer = np.full(layout.size, np.nan, np.float32)
        advance(state.rows, state.replicas, state.requests, state.events, buffer)
        played.observations.append(layout.single(buffer))
        played.masks.append(state.replicas["offered"][0].tolist() + [1] * config.admission)

    run(START)
    while not row["done"] or not played.terms:
        asked, request, time = not row["done"], int(row["current"]), float(row["tick"] * row["step_ms"])
        row["action"] = case.choice(len(played.terms))
        run(STEP)
        played.terms.append(row["terms"].copy())
        played.rewards.append(float(row["reward"]))
        if asked and not state.requests["rejected"][0, request]:
            # The request's replica may have changed since, were it re-routed within the same step.
            played.acceptances.append(Acceptance(time, request, -1))
    return played


def play_reference(case: Case) -> ReferenceCluster:
    """Let the reference play a case."""
    config = case.config
    pattern, reference = config.service_ms, config.reference_ms
    cluster = ReferenceCluster(
        Settings(
            means=[
                reference + config.heterogeneity * (pattern[i % len(pattern)] - reference)
                for i in range(config.replicas)
            ],
            capacity=config.queue_capacity,
            cutoff=case.cutoff_ms,
            q=config.time_step_ms,
            deadline=config.deadline_ms,
            alpha=config.ewma_alpha,
            ceiling=config.service_ceiling_ms,
            reference=reference,
            signal_interval=config.signal_interval_ms,
            admission=config.admission,
        ),
        [
            Event(event.time_s * 1000.0, event.kind, event.replica, event.factor or 1.0)
            for event in (*config.scenarios[config.scenario], *config.events)
            if event.kind != "rate"
        ],
        [
            Request(arrival, int(prompt), int(output), predicted, demand, jitter)
            for arrival, prompt, output, predicted, demand, jitter in zip(
                *(column.tolist() for column in case.arrivals), strict=True
            )
        ],
    )
    cluster.run(lambda _: case.choice(len(cluster.decisions)))
    return cluster
