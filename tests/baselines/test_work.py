"""Least work and deadline aware, on a state whose numbers are exact in binary."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing_baselines.cluster.work import DeadlineAware, LeastWork
from routing_gym.cluster.config import ClusterConfig
from routing_gym.cluster.features import expected_work
from routing_gym.cluster.workload import make_workload
from tests.baselines.states import fits, observation, observations, row

DEMAND = (1.0, 1 / 64, 1 / 8)  # ms per request, prompt token and output token
# The request is worth 1 + 64/64 + 8/8 = 3 ms. Replica 0: 2 + 2 + 2, and 3, are 9 ms; replica 1: 4 + 4 + 4,
# and 3, at half a ms each are 7.5 ms; replica 2: 7 + 7 + 7, and 3, at one and a half are 36 ms.
STATE = {
    "outstanding": [2, 4, 7],
    "outstanding_prompt_tokens": [128, 256, 448],
    "outstanding_predicted_tokens": [16, 32, 56],
    "speed_ewma": [1.0, 0.5, 1.5],
}
WORK = [9.0, 7.5, 36.0]


def state(age: float = 0.0, **fields: Any) -> dict[str, np.ndarray]:
    return observation(**{**STATE, "request": [64, 8, age], **fields})


def test_expected_work_by_hand() -> None:
    seen = {name: value.astype(np.float64) for name, value in state().items()}
    work = expected_work(
        seen["outstanding"],
        seen["outstanding_prompt_tokens"],
        seen["outstanding_predicted_tokens"],
        seen["request"],
        seen["speed_ewma"],
        DEMAND,
    )
    assert work.tolist() == WORK


def test_expected_work_of_rows_with_their_own_coefficients() -> None:
    rng = np.random.default_rng(0)
    fields = [rng.integers(0, 9, (4, 3)).astype(float) for _ in range(3)]
    request, speed = rng.integers(1, 99, (4, 3)).astype(float), rng.uniform(0.5, 2, (4, 3))
    columns = tuple(rng.uniform(0, 1, (4, 1)) for _ in range(3))
    together = expected_work(*fields, request, speed, columns)
    for k in range(4):
        alone = expected_work(
            *(f[k] for f in fields), request[k], speed[k], tuple(float(c[k, 0]) for c in columns)
        )
        assert together[k].tolist() == alone.tolist()


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, 1),
        ({"eligible": [1, 0, 1]}, 0),
        ({"eligible": [0, 0, 1]}, 2),
        ({"speed_ewma": [1.0, 0.75, 1.5]}, 0),  # 9, 11.25, 36
        ({"speed_ewma": [1.25, 0.75, 1.5]}, 0),  # 11.25 twice: the lower index
        ({"outstanding_prompt_tokens": [2048, 4096, 0]}, 2),  # 39, 37.5, 25.5
    ],
)
def test_least_work(fields: dict[str, Any], expected: int) -> None:
    assert LeastWork(DEMAND).predict(state(**fields))[0] == expected


def test_by_default_demand_is_the_shipped_config_s() -> None:
    assert LeastWork().demand == DeadlineAware().demand == ClusterConfig.create().demand.coefficients


# Deadline aware: late everywhere when the age and 7.5 ms exceed margin · deadline.


@pytest.mark.parametrize(
    ("age", "fields", "kept", "given_up"),
    [
        (0.0, {}, 1, 1),
        (17.5, {}, 1, 1),  # 25 of 25 ms: just in time
        (17.75, {}, 2, 3),  # to the most work, or rejected
        (60.0, {}, 2, 3),
        (17.75, {"eligible": [1, 1, 0]}, 0, 3),  # the most work that is eligible
        (17.0, {"eligible": [1, 0, 1]}, 2, 3),  # replica 1 could make it, but is not eligible
        (16.0, {"eligible": [1, 0, 1]}, 0, 0),
        (42.5, {"deadline": [100]}, 1, 1),
        (42.75, {"deadline": [100]}, 2, 3),
        (17.75, {"speed_ewma": [4.0, 1.0, 1.5]}, 0, 3),  # 36, 15, 36 ms of work: the lower index
    ],
)
def test_deadline_aware_at_half_the_deadline(
    age: float, fields: dict[str, Any], kept: int, given_up: int
) -> None:
    observed = state(age, **fields)
    assert DeadlineAware(0.5, DEMAND).predict(observed)[0] == kept
    assert DeadlineAware(0.5, DEMAND, admission=True).predict(observed)[0] == given_up


def test_the_default_margin_is_nine_tenths() -> None:
    router = DeadlineAware(demand=DEMAND)
    assert router.margin == 0.9
    assert router.predict(state(37.5))[0] == 1
    assert router.predict(state(37.75))[0] == 2


def test_where_nothing_is_hopeless_it_is_least_work() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        observed = state(
            0.0, outstanding=rng.integers(0, 3, 3), outstanding_prompt_tokens=rng.integers(0, 99, 3)
        )
        assert DeadlineAware(demand=DEMAND).predict(observed)[0] == LeastWork(DEMAND).predict(observed)[0]


@given(observations(st.just((8,))), st.floats(0.05, 3), st.booleans())
def test_routers_follow_their_rules(drawn: Any, margin: float, admission: bool) -> None:
    batch, shape = drawn
    least = LeastWork(DEMAND).predict(batch)[0]
    aware = DeadlineAware(margin, DEMAND, admission).predict(batch)[0]
    count = batch["outstanding"].shape[-1]
    for index in np.ndindex(shape):
        seen = {name: value.astype(float) for name, value in row(batch, index).items()}
        prompt, output, age = seen["request"]
        work = {
            int(i): (
                DEMAND[0] * (seen["outstanding"][i] + 1)
                + DEMAND[1] * (seen["outstanding_prompt_tokens"][i] + prompt)
                + DEMAND[2] * (seen["outstanding_predicted_tokens"][i] + output)
            )
            * seen["speed_ewma"][i]
            for i in np.flatnonzero(fits(row(batch, index)))
        }
        best, worst = min(work.values()), max(work.values())
        assert work[int(least[index])] == pytest.approx(best, rel=1e-12)
        slack = margin * 50 - (age + best)
        if abs(slack) < 1e-9:
            continue
        if slack > 0:
            assert work[int(aware[index])] == pytest.approx(best, rel=1e-12)
        elif admission:
            assert aware[index] == count
        else:
            assert work[int(aware[index])] == pytest.approx(worst, rel=1e-12)


def test_a_margin_must_be_positive() -> None:
    with pytest.raises(ValueError, match=r"margin = 0\.0: must be above 0"):
        DeadlineAware(margin=0.0)


# What an operator knows


@pytest.mark.parametrize("router", [LeastWork, DeadlineAware])
def test_configure_takes_over_each_row_s_coefficients(router: Any) -> None:
    """Replica 0 has prompts to read, replica 1 output to write."""
    seen = observation(
        outstanding_prompt_tokens=[1000, 0], outstanding_predicted_tokens=[0, 1000], deadline=[1e6]
    )
    batch = {name: np.stack([value] * 2) for name, value in seen.items()}
    reads = ClusterConfig.create(demand={"prompt_ms": 0.1, "output_ms": 0.01})
    writes = ClusterConfig.create(demand={"prompt_ms": 0.01, "output_ms": 0.1})
    learner = router()
    for configs, expected in (
        ([reads, writes], [1, 0]),
        ([writes, writes], [0, 0]),
        ([reads, reads], [1, 1]),
    ):
        learner.configure(configs)
        assert learner.predict(batch)[0].tolist() == expected


def test_configure_takes_over_a_trace_s_coefficients(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("arrival_s,prompt_tokens,output_tokens\n0,4000,10\n20,6000,30\n")
    config = ClusterConfig.create(trace=path)
    learner = LeastWork()
    learner.configure([config, config])
    assert learner.demand == make_workload(config).demand
    a, b, c = learner.demand
    assert a + b * 5000 + c * 20 == pytest.approx(11)
    learner.configure([config, ClusterConfig.create()])
    assert [coefficient.shape for coefficient in learner.demand] == [(2, 1)] * 3
    assert learner.demand[0][:, 0].tolist() == [a, ClusterConfig.create().demand.base_ms]


def test_configure_takes_over_admission() -> None:
    learner = DeadlineAware()
    for admission in (True, False):
        learner.configure([ClusterConfig.create(admission=admission)] * 2)
        batch = {name: np.stack([value] * 2) for name, value in state(60.0).items()}
        assert learner.predict(batch)[0].tolist() == ([3, 3] if admission else [2, 2])
