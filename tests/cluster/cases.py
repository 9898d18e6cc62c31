"""Random episodes of the cluster, played by the engine and by the reference, and their comparison."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
from hypothesis import strategies as st

from routing_gym.cluster.config import ClusterConfig
from routing_gym.cluster.engine import advance
from routing_gym.cluster.observation import observation_layout
from routing_gym.cluster.state import REQUEST_LOG, ClusterState
from routing_gym.cluster.workload import Arrivals
from routing_gym.common.commands import START, STEP
from tests.cluster.reference import Event, ReferenceCluster, Request, Settings

# The fields of an observation that a router's own records fill, and those that replicas report (DESIGN 3).
OWN = {
    "outstanding",
    "outstanding_prompt_tokens",
    "outstanding_predicted_tokens",
    "service_ewma",
    "speed_ewma",
    "reward_ewma",
    "completed",
    "oldest_age",
    "since_completion",
    "healthy",
    "eligible",
    "request",
    "arrival_gap",
    "deadline",
}
REPORTED = {"waiting", "in_flight", "in_flight_age", "signal_age"}
WEIGHTINGS = ("on_time", "slo", "latency", "weighted", (0.3, -0.7, 2.0, 0.011, -0.013))


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
    layout = observation_layout(1, config.replicas, config.observation == "full")
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
            # A second acceptance would take a second decision, so this is the one just made.
            replica = int(state.requests["replica"][0, request])
            played.acceptances.append(Acceptance(time, request, replica))
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
            Event(float(1000 * Decimal(str(event.time_s))), event.kind, event.replica, event.factor or 1.0)
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


def log_of(reference: ReferenceCluster) -> np.ndarray:
    """Return the reference's requests as a request log."""
    log = np.empty(len(reference.requests), REQUEST_LOG)
    for r, request in enumerate(reference.requests):
        log[r] = (
            request.arrival,
            request.prompt,
            request.output,
            request.predicted,
            request.demand,
            request.jitter,
            -1 if request.shed else request.replica,
            np.nan if request.start is None else request.start,
            np.nan if request.completion is None else request.completion,
            request.reroutes,
            request.invalid,
            request.replica,
            request.shed,
            request.rejected,
        )
    return log


def assert_observation(ours: dict[str, np.ndarray], theirs: dict[str, Any], where: str) -> None:
    """Assert that an observation holds the float32 of the reference's values, bit for bit."""
    for name, values in ours.items():
        assert values.dtype == np.float32
        expected = np.atleast_1d(np.array(theirs[name], np.float32))
        assert values.tobytes() == expected.tobytes(), f"{where}: {name} = {values}, reference {expected}"


def assert_equal(played: Played, reference: ReferenceCluster, case: Case) -> None:
    """Assert that engine and reference agree on every number that either of them knows."""
    config = case.config
    assert len(played.observations) == len(reference.decisions) + (1 if reference.decisions else 2)
    shown = [observation for observation, _ in reference.decisions]
    shown += [reference.closing] * (len(played.observations) - len(shown))
    names = OWN | REPORTED if config.observation == "full" else OWN
    for k, (ours, mask, theirs) in enumerate(zip(played.observations, played.masks, shown, strict=True)):
        assert ours.keys() == names
        assert_observation(ours, theirs, f"observation {k}")
        assert mask == theirs["mask"], f"mask {k}"
    assert np.array(played.terms).tolist() == reference.terms
    for terms, reward in zip(reference.terms, played.rewards, strict=True):
        expected = 0.0
        for weight, term in zip(config.reward_weights, terms, strict=True):
            expected += weight * term
        assert reward == expected
    log, expected_log = played.log, log_of(reference)
    for name in REQUEST_LOG.names or ():
        np.testing.assert_array_equal(log[name], expected_log[name], err_msg=name)
    replicas, row = played.state.replicas[0], played.state.rows[0]
    for name in ("service_ewma", "speed_ewma", "reward_ewma", "completed"):
        assert replicas[name].tolist() == getattr(reference, name), name
    assert replicas["healthy"].tolist() == [int(replica.healthy) for replica in reference.replicas]
    assert row["invalid_actions"] == reference.invalid_actions


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Small episodes on a coarse grid, so that all kinds of coincidence happen often.

    Times are multiples of an eighth of a time step: many fall on a boundary, many on the same one, some on
    time 0 and on the cutoff.
    """
    step = draw(st.sampled_from([0.5, 0.5, 0.5, 0.25, 2.0]))
    replicas = draw(st.integers(1, 8))
    ticks = draw(st.one_of(st.integers(8, 80), st.integers(200, 600)))
    eighths = st.one_of(st.integers(0, 8 * ticks), st.integers(0, ticks).map(lambda k: 8 * k))

    def event() -> dict[str, Any]:
        kind = draw(st.sampled_from(["slowdown", "failure", "failure", "recovery", "recovery"]))
        factor = (
            draw(st.sampled_from([0.25, 0.9, 1.0, 3.0, 40.0, 1e9, 1e300])) if kind == "slowdown" else None
        )
        time = draw(times)
        return {
            "time_s": time * step / 8000.0,
            "kind": kind,
            "replica": draw(st.integers(0, replicas - 1)),
            "factor": factor,
        }

    # Events share a few times, so that several of them, on one replica too, come at once.
    times = st.sampled_from(draw(st.lists(eighths, min_size=1, max_size=5)))
    events = [event() for _ in range(draw(st.integers(0, 14)))]
    config = ClusterConfig.create(
        replicas=replicas,
        service_ms=draw(st.sampled_from([(8.0, 11.0, 16.0), (11.0,), (22.0, 5.5)])),
        heterogeneity=draw(st.sampled_from([0.0, 0.5, 1.0, 1.7])),
        queue_capacity=draw(st.one_of(st.integers(1, 3), st.integers(1, 50))),
        admission=draw(st.booleans()),
        time_step_ms=step,
        deadline_ms=draw(st.one_of(st.just(50.0), st.integers(1, 40).map(lambda k: k * step))),
        ewma_alpha=draw(st.sampled_from([0.15, 1.0])),
        service_ceiling_ms=draw(st.sampled_from([60.0, 12.0])),
        signal_interval_ms=step * draw(st.sampled_from([0, 0, 1, 3, 20, 1000])),
        observation=draw(st.sampled_from(["full", "full", "router"])),
        reward=draw(
            st.sampled_from(["on_time", "slo", "latency", "weighted", [0.3, -0.7, 2.0, 0.011, -0.013]])
        ),
        events=events,
    )
    size = draw(st.integers(0, 80))  # lists of any size are short ones mostly
    gaps = draw(st.lists(st.sampled_from([0, 0, 0, 1, 3, 4, 8, 8, 16, 40]), min_size=size, max_size=size))
    arrival = step / 8.0 * (draw(st.sampled_from([0, 0, 3, 8])) + np.cumsum(np.array(gaps, np.int64)))
    arrival = arrival[arrival <= ticks * step]
    if draw(st.booleans()):
        arrival = np.append(arrival, ticks * step)
    count = len(arrival)
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    prompt, output = rng.integers(1, 2048, count), rng.integers(1, 512, count)
    hidden, exact, noisy = np.full(count, 60.5), output, rng.integers(1, 512, count)
    # Two in three services are whole numbers of steps on some replica, but for rounding: they end when
    # something else happens, and tell in which order the service is evaluated.
    whole, means = step * rng.integers(1, 60, count), np.array(config.replica_service_ms)
    demand = np.choose(
        rng.integers(0, 3, count),
        [whole, whole * 11.0 / means[rng.integers(0, replicas, count)], rng.uniform(0.1, 70.0, count)],
    )
    return Case(
        config,
        ticks * step,
        Arrivals(
            arrival,
            prompt.astype(np.float64),
            output.astype(np.float64),
            draw(st.sampled_from([hidden, exact, noisy])).astype(np.float64),
            demand,
            np.where(rng.random(count) < 0.6, 1.0, 0.9 + 0.2 * rng.random(count)),
        ),
        tuple(draw(st.lists(st.integers(0, 71), min_size=1, max_size=30))),
    )
