"""One replica is an M/G/1 queue on a grid of boundaries: its waits are those of queueing theory.

Let q be the time step. A request that arrives at A is routed at the boundary A' = ceil(A/q)·q, and a
service of S takes S' = ceil(S/q)·q; its wait is W = start - A.

*Path by path.* Let V and U be the waits in continuous time of the same arrivals, with services S and S +
q. The engine only ever rounds up, so it starts no request before V's queue does. Nor does it start one q
or more after U's queue: by induction the service before started less than q later, so it is completed
less than q later, as S' < S + q; and A' < A + q. So V ≤ W < U + q, request by request, and in the mean,
with the formula of Pollaczek and Khinchine, PK(S) = λE[S²] / 2(1 - λE[S]): PK(S) ≤ E[W] ≤ PK(S + q) + q.

*On the grid.* The engine is a queue in discrete time: at each boundary Poisson(ν = λq) requests arrive,
of T = S'/q steps each. Let ρ = νE[T], and B be the steps of work left just before a boundary's arrivals.
As B ← max(0, B + work arriving - 1), that E[B²] is stationary means E[B] = (νE[T²] + ρ² - ρ) / 2(1 - ρ).
A request waits for its boundary, q/2 on average, for B, and for the requests of its boundary that came
before it, ν/2 on average: E[W] = q(1/2 + E[B] + ρ/2). This is Pollaczek's and Khinchine's formula for the
grid, and exact.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import gymnasium as gym
import numpy as np
import pytest
from numpy.typing import NDArray

import routing_gym  # noqa: F401

STEP_MS = 0.5
WARMUP_S, MEASURED_S, ROWS = 5.0, 60.0, 128
LOADS = (0.3, 0.6, 0.8)


class Waits(NamedTuple):
    """What became of the requests of independent episodes, and what the episodes were drawn from."""

    rate_per_ms: float
    logs: list[NDArray]
    config: object

    def mean_and_error(self) -> tuple[float, float]:
        """Return the mean wait after the warm-up, and its standard error over episodes."""
        means = []
        for log in self.logs:
            # The last second is left out, so that the wait of each request is known.
            late = log["arrival"] > (WARMUP_S + MEASURED_S - 1.0) * 1000.0
            counted = log[(log["arrival"] > WARMUP_S * 1000.0) & ~late]
            assert not np.isnan(counted["start"]).any()
            means.append((counted["start"] - counted["arrival"]).mean())
        return float(np.mean(means)), float(np.std(means, ddof=1) / math.sqrt(len(means)))


@pytest.fixture(scope="module", params=LOADS)
def waits(request: pytest.FixtureRequest) -> Waits:
    """Episodes of a single replica at a load."""
    envs = gym.make_vec(
        "routing_gym/InferenceCluster-v0",
        num_envs=ROWS,
        autoreset_mode="Disabled",
        hold_finished=True,
        replicas=1,
        service_ms=[11.0],
        queue_capacity=2**20,
        load=request.param,
        warmup_s=WARMUP_S,
        measured_s=MEASURED_S,
    )
    envs.reset(seed=7)
    actions, over = np.zeros(ROWS, np.int64), np.zeros(ROWS, bool)
    while not over.all():
        over = envs.step(actions)[3]
    config = envs.configs[0]
    return Waits(request.param / 11.0, [envs.request_log(row) for row in range(ROWS)], config)


def token_moments(tokens: object) -> tuple[float, float]:
    """Return mean and mean square of clip(rint(lognormal)), as sums of how often a count is exceeded."""
    counts = range(tokens.minimum, tokens.maximum)
    exceeded = [
        0.5 * math.erfc(math.log((count + 0.5) / tokens.median) / tokens.sigma / math.sqrt(2.0))
        for count in counts
    ]
    mean = tokens.minimum + math.fsum(exceeded)
    square = tokens.minimum**2 + math.fsum((2 * n + 1) * p for n, p in zip(counts, exceeded, strict=True))
    return mean, square


def service_moments(config: object) -> tuple[float, float]:
    """Return mean and mean square of a service time on the reference replica, ms."""
    a, b, c = config.demand.coefficients
    (prompt, prompt2), (output, output2) = map(token_moments, (config.prompt_tokens, config.output_tokens))
    mean = a + b * prompt + c * output
    square = mean**2 + b**2 * (prompt2 - prompt**2) + c**2 * (output2 - output**2)
    # The jitter is uniform on [.9, 1.1), and independent.
    low, high = config.jitter.low, config.jitter.low + config.jitter.width
    return mean * (low + high) / 2.0, square * (low * low + low * high + high * high) / 3.0


def pollaczek_khinchine(rate: float, mean: float, square: float) -> float:
    """Return the mean wait of an M/G/1 queue."""
    return rate * square / (2.0 * (1.0 - rate * mean))


def on_the_grid(rate: float, mean: float, square: float) -> float:
    """Return the mean wait of the queue in discrete time (see above).

    Service times have a smooth density at the scale of a step, so that rounding up adds a uniform part of
    one, independent of what is rounded.
    """
    q = STEP_MS
    ticks, ticks2 = mean / q + 1.0 / 2.0, square / q**2 + mean / q + 1.0 / 3.0
    arrivals = rate * q
    load = arrivals * ticks
    before = (arrivals * ticks2 + load**2 - load) / (2.0 * (1.0 - load))
    return q * (0.5 + before + load / 2.0)


def test_mean_wait_is_that_of_pollaczek_and_khinchine(waits: Waits) -> None:
    """Within the standard error of the value on the grid, and of the bounds in continuous time."""
    mean, square = service_moments(waits.config)
    assert mean == pytest.approx(11.0, rel=1e-9)
    measured, error = waits.mean_and_error()
    expected = on_the_grid(waits.rate_per_ms, mean, square)
    assert error < 0.02 * expected, "the simulation is too short to tell"
    assert abs(measured - expected) < 2.6 * error  # 99 % of all seeds
    lowest = pollaczek_khinchine(waits.rate_per_ms, mean, square)
    wider = square + 2.0 * mean * STEP_MS + STEP_MS**2
    highest = pollaczek_khinchine(waits.rate_per_ms, mean + STEP_MS, wider) + STEP_MS
    assert lowest < expected < highest
    assert lowest - 2.6 * error < measured < highest + 2.6 * error


def continuous_waits(arrival: NDArray, service: NDArray) -> NDArray:
    """Return the waits of a FIFO queue in continuous time, by Lindley's recursion."""
    waits, wait = [0.0], 0.0
    for gap, before in zip(np.diff(arrival).tolist(), service[:-1].tolist(), strict=True):
        wait = max(0.0, wait + before - gap)
        waits.append(wait)
    return np.array(waits)


def test_each_wait_lies_between_two_continuous_queues(waits: Waits) -> None:
    """V ≤ W < U + q, request by request (see above)."""
    for log in waits.logs[:8]:
        service = log["demand"] * 11.0 / 11.0 * log["jitter"]
        served = ~np.isnan(log["start"])
        wait = (log["start"] - log["arrival"])[served]
        lower = continuous_waits(log["arrival"], service)[served]
        upper = continuous_waits(log["arrival"], service + STEP_MS)[served] + STEP_MS
        assert len(wait) > 0.97 * len(log)
        assert (lower <= wait + 1e-6).all()
        assert (wait < upper + 1e-6).all()
        assert lower.mean() < wait.mean() < upper.mean()
