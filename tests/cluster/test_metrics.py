"""Metrics of an episode: a log worked by hand, and a slow implementation from the definitions."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import routing_gym
from routing_gym.cluster.config import ClusterConfig
from routing_gym.cluster.env import InferenceCluster
from routing_gym.cluster.metrics import (
    CDF_GRID_MS,
    COUNTS,
    METRICS,
    TIMELINE_POINTS,
    Horizon,
    episode_curves,
    episode_metrics,
    jain_index,
    nearest_rank,
    stable_order,
)
from routing_gym.cluster.state import OUTCOME, REQUEST_LOG
from routing_gym.cluster.workload import make_workload

HORIZON = Horizon(warmup_ms=100.0, cutoff_ms=1100.0, deadline_ms=50.0, replicas=3)
NAN = math.nan


def request_log(rows: list[tuple[float, ...]]) -> np.ndarray:
    """Return a log with these columns of `OUTCOME`; start and tokens shown do not matter here."""
    log = np.zeros(len(rows), REQUEST_LOG)
    for row, values in zip(log, rows, strict=True):
        for name, value in zip(OUTCOME, values, strict=True):
            row[name] = value
    log["replica"] = np.where(log["shed"], -1, log["last_replica"])
    return log


# arrival, completion, demand, output, last replica, shed, rejected
BY_HAND = request_log(
    [
        (40.0, 90.0, 9.0, 1, 0, 0, 0),  # warm-up
        (50.0, 100.0, 9.0, 2, 0, 0, 0),  # done as the measured time begins: not within it
        (100.0, 130.5, 9.0, 4, 1, 0, 0),  # arrived as it begins: no cohort, but throughput
        (100.5, 150.5, 5.0, 10, 0, 0, 0),  # a latency of just the deadline is on time
        (200.0, 250.5, 20.0, 20, 1, 0, 0),  # late
        (300.0, 310.0, 1.0, 30, 2, 0, 0),  # on time
        (310.0, 900.0, 7.0, 11, 2, 0, 0),  # later than ten deadlines
        (400.0, NAN, 8.0, 40, -1, 1, 0),  # shed
        (500.0, NAN, 30.0, 50, -1, 1, 1),  # rejected
        (600.0, 1100.0, 8.0, 60, 0, 0, 0),  # just ten deadlines, done at the cutoff
        (700.0, NAN, 12.0, 70, 0, 0, 0),  # unfinished
        (800.0, 820.0, 9.0, 80, 1, 0, 0),  # on time
        (900.0, 930.0, 6.0, 90, 1, 0, 0),  # on time
        (1000.0, NAN, 5.0, 100, 2, 1, 0),  # accepted, re-routed, shed
        (1100.0, NAN, 2.0, 5, 2, 0, 0),  # arrived at the cutoff: unfinished
    ]
)


def test_a_log_worked_by_hand() -> None:
    metrics = episode_metrics(BY_HAND, HORIZON, 17)
    counts = {
        "arrivals": 12,
        "completed": 7,
        "shed": 3,
        "unfinished": 2,
        "on_time": 4,
        "late": 3,
        "rejected": 1,
    }
    assert {name: metrics[name] for name in counts} == counts
    assert metrics["invalid_actions"] == 17
    assert metrics["attainment"] == 4 / 12
    assert metrics["goodput_per_s"] == 4.0
    assert metrics["slo_miss_rate"] == 3 / 7
    assert metrics["shed_rate"] == 3 / 12
    assert metrics["throughput_per_s"] == 8.0  # the seven, and the one that arrived at 100 ms
    assert metrics["token_goodput_per_s"] == 10 + 30 + 80 + 90
    assert metrics["mean_latency_ms"] == pytest.approx((50 + 50.5 + 10 + 590 + 500 + 20 + 30) / 7)
    assert metrics["max_latency_ms"] == 590
    assert metrics["share_over_10_deadlines"] == 6 / 12
    # 10, 20, 30, 50, 50.5, 500, 590, and five that are infinite.
    assert (metrics["p50_ms"], metrics["p95_ms"], metrics["p99_ms"]) == (50, 590, 590)
    assert (metrics["p50_all_ms"], metrics["p95_all_ms"], metrics["p99_all_ms"]) == (500, math.inf, math.inf)
    # By demand: 1 on time, 2, 5 on time | 5 (arrived later), 6 on time, 7 | 8, 8, 9 on time | 12, 20, 30
    assert [metrics[f"attainment_q{k}"] for k in (1, 2, 3, 4)] == [2 / 3, 1 / 3, 1 / 3, 0]
    assert metrics["attainment_largest_5pct"] == 0
    # Tenths end at 1, 2, 3, 4, 6, 7, 8, 9, 10, 12: attainment 1, 0, 1, 0, .5, 0, 0, 1, 0, 0.
    assert metrics["jain_demand_deciles"] == pytest.approx(3.5**2 / (10 * 3.25))
    assert metrics["replica_shares"].tolist() == [0.3, 0.3, 0.4]


def test_every_metric_is_listed_and_counts_are_whole_numbers() -> None:
    metrics = episode_metrics(BY_HAND, HORIZON, 0)
    assert set(metrics) == set(METRICS)
    assert len(METRICS) == len(set(METRICS))
    assert {name for name, value in metrics.items() if type(value) is int} == set(COUNTS)
    rest = set(METRICS) - set(COUNTS) - {"replica_shares"}
    assert all(type(metrics[name]) is float for name in rest)


def slow_metrics(log: np.ndarray, horizon: Horizon) -> dict[str, Any]:
    """Return metrics from the definitions of DESIGN 3, one request at a time."""
    start, end, deadline, replicas = horizon
    cohort = [row for row in log if start < row["arrival"] <= end]
    late_by: dict[int, float] = {}  # latency by place in the cohort, infinite where there is none
    for place, row in enumerate(cohort):
        latency = float(row["completion"] - row["arrival"])
        late_by[place] = math.inf if math.isnan(latency) else latency
    latencies = [latency for latency in late_by.values() if latency < math.inf]
    seconds = (end - start) / 1000
    good = [place for place, latency in late_by.items() if latency <= deadline]

    def share(part: float, whole: int) -> float | None:
        return part / whole if whole else None

    def percentile(values: list[float], percent: int) -> float | None:
        """The smallest value that at least that many per cent of the values do not exceed."""
        return next(
            (v for v in sorted(values) if 100 * sum(w <= v for w in values) >= percent * len(values)), None
        )

    ranked = sorted(range(len(cohort)), key=lambda place: (cohort[place]["demand"], place))

    def attainment(low: int, high: int) -> float | None:
        return share(sum(place in good for place in ranked[low:high]), high - low)

    count = len(cohort)
    tenths = [attainment(count * k // 10, count * (k + 1) // 10) for k in range(10)]
    squares = sum((tenth or 0) ** 2 for tenth in tenths)
    accepted = [int(row["last_replica"]) for row in cohort if row["last_replica"] >= 0]
    done = len(latencies)
    shed = sum(bool(row["shed"]) for row in cohort)
    return {
        "arrivals": count,
        "completed": done,
        "shed": shed,
        "unfinished": sum(math.isnan(row["completion"]) and not row["shed"] for row in cohort),
        "on_time": len(good),
        "late": done - len(good),
        "rejected": sum(bool(row["rejected"]) for row in cohort),
        "invalid_actions": 5,
        "attainment": share(len(good), count),
        "goodput_per_s": len(good) / seconds,
        "slo_miss_rate": share(done - len(good), done),
        "shed_rate": share(shed, count),
        "throughput_per_s": sum(start < row["completion"] <= end for row in log) / seconds,
        "token_goodput_per_s": sum(int(cohort[place]["output"]) for place in good) / seconds,
        "mean_latency_ms": share(math.fsum(latencies), done),
        "max_latency_ms": max(latencies, default=None),
        "share_over_10_deadlines": share(sum(latency > 10 * deadline for latency in late_by.values()), count),
        **{f"p{p}_ms": percentile(latencies, p) for p in (50, 95, 99)},
        **{f"p{p}_all_ms": percentile(list(late_by.values()), p) for p in (50, 95, 99)},
        **{f"attainment_q{k + 1}": attainment(count * k // 4, count * (k + 1) // 4) for k in range(4)},
        "attainment_largest_5pct": attainment(count - math.ceil(count / 20), count),
        "jain_demand_deciles": sum(tenths) ** 2 / (10 * squares) if squares and None not in tenths else None,
        "replica_shares": [accepted.count(i) / len(accepted) for i in range(replicas)] if accepted else None,
    }


@st.composite
def logs(draw: st.DrawFn) -> np.ndarray:
    """Logs on a coarse grid, so that ties and exact boundaries are common."""
    size = draw(st.integers(0, 60))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    arrival = np.sort(rng.integers(0, 45, size) * 25.0)
    latency = rng.choice([0.5, 10.0, 25.0, 50.0, 50.5, 75.0, 499.5, 500.0, 500.5], size)
    completion = np.where(arrival + latency <= 1100, arrival + latency, NAN)
    fate = rng.choice(["served", "open", "shed", "rejected"], size, p=draw(st.sampled_from(
        [(0.7, 0.1, 0.1, 0.1), (1, 0, 0, 0), (0, 0.5, 0.5, 0), (0.3, 0, 0, 0.7)]
    )))  # fmt: skip
    return request_log(
        [
            (
                arrival[k],
                completion[k] if fate[k] == "served" else NAN,
                float(rng.choice([3.0, 7.5, 7.5, 11.0, 80.0])),
                float(rng.integers(1, 500)),
                float(
                    rng.integers(-1, 3)
                    if fate[k] == "shed"
                    else -1
                    if fate[k] == "rejected"
                    else rng.integers(0, 3)
                ),
                fate[k] in ("shed", "rejected"),
                fate[k] == "rejected",
            )
            for k in range(size)
        ]
    )


def same(one: Any, other: Any) -> bool:
    if one is None or other is None:
        return one is other
    return bool(np.all(np.asarray(one) == pytest.approx(np.asarray(other, float), rel=1e-12)))


@given(logs())
def test_metrics_are_those_of_the_definitions(log: np.ndarray) -> None:
    fast, slow = episode_metrics(log, HORIZON, 5), slow_metrics(log, HORIZON)
    assert set(fast) == set(slow)
    wrong = {name: (fast[name], slow[name]) for name in fast if not same(fast[name], slow[name])}
    assert not wrong
    assert fast["arrivals"] == fast["completed"] + fast["shed"] + fast["unfinished"]
    assert fast["rejected"] <= fast["shed"]


def test_what_cannot_be_defined_is_none() -> None:
    nobody = episode_metrics(request_log([]), HORIZON, 0)
    assert {name: value for name, value in nobody.items() if value is not None} == {
        **dict.fromkeys(COUNTS, 0),
        "goodput_per_s": 0.0,
        "throughput_per_s": 0.0,
        "token_goodput_per_s": 0.0,
    }
    all_shed = episode_metrics(request_log([(200.0, NAN, 1.0, 1, -1, 1, 0)] * 20), HORIZON, 0)
    assert [name for name, value in all_shed.items() if value is None] == [
        "slo_miss_rate", "mean_latency_ms", "max_latency_ms", "p50_ms", "p95_ms", "p99_ms",
        "jain_demand_deciles", "replica_shares",
    ]  # fmt: skip
    assert all_shed["attainment"] == 0
    assert all_shed["p50_all_ms"] == math.inf
    # Fewer than ten arrivals leave a tenth empty; fewer than four, a quarter.
    few = episode_metrics(request_log([(200.0, 210.0, 1.0, 1, 0, 0, 0)] * 3), HORIZON, 0)
    assert few["jain_demand_deciles"] is None
    assert few["attainment_q1"] is None
    assert few["attainment_largest_5pct"] == 1


def test_the_same_log_as_columns_of_numbers() -> None:
    columns = {name: BY_HAND[name].astype(float) for name in OUTCOME}
    one, other = episode_metrics(columns, HORIZON, 1), episode_metrics(BY_HAND, HORIZON, 1)
    assert all(same(one[name], other[name]) for name in METRICS)


def test_metrics_leave_the_log_alone() -> None:
    log = BY_HAND.copy()
    episode_metrics(log, HORIZON, 0)
    assert log.tobytes() == BY_HAND.tobytes()


# The pieces


@given(st.lists(st.floats(0, 1e6), max_size=40), st.integers(0, 40), st.integers(1, 100))
def test_nearest_rank_by_counting(finite: list[float], missing: int, percent: int) -> None:
    """The smallest value such that at least that share of all, missing ones infinite, do not exceed it."""
    values = sorted(finite) + [math.inf] * missing
    rank = nearest_rank(np.sort(np.array(finite)), percent, len(values))
    if not values:
        assert rank is None
        return
    assert rank in values
    assert Fraction(sum(v <= rank for v in values), len(values)) >= Fraction(percent, 100)
    assert Fraction(sum(v < rank for v in values), len(values)) < Fraction(percent, 100)


@pytest.mark.parametrize(
    ("percent", "rank"), [(1, 1), (25, 5), (50, 10), (95, 19), (96, 20), (99, 20), (100, 20)]
)
def test_nearest_rank_by_hand(percent: int, rank: int) -> None:
    assert nearest_rank(np.arange(1.0, 21.0), percent, 20) == rank


@pytest.mark.parametrize("count", [100, 200, 700, 1100, 12_345])
def test_nearest_rank_takes_no_rounding_error(count: int) -> None:
    """ceil(.07 · 100) is 8 in floating point."""
    for percent in range(1, 101):
        assert (
            nearest_rank(np.arange(float(count)), percent, count)
            == math.ceil(Fraction(percent * count, 100)) - 1
        )


finite_floats = st.floats(allow_nan=False, allow_infinity=False)
few_values = st.sampled_from([0.0, -0.0, 1.0, 1.0 + 2**-52, 2.0, 1e300, 5e-324])


@given(
    st.lists(finite_floats, max_size=200)
    | st.lists(few_values, max_size=200)
    | st.lists(st.floats(8, 50), max_size=200)
    | st.lists(st.floats(0, 5e-324 * 7), max_size=20)
    | st.lists(st.sampled_from([-1.7e308, 0.0, 1.7e308]), max_size=20)
)
def test_stable_order_is_that_of_argsort(values: list[float]) -> None:
    array = np.array(values, np.float64)
    assert stable_order(array).tolist() == np.argsort(array, kind="stable").tolist()


@pytest.mark.parametrize("shape", ["demands", "constant", "sorted", "reversed", "one far away"])
def test_stable_order_of_many(shape: str) -> None:
    demands = np.round(np.random.default_rng(0).lognormal(2.2, 0.6, 3000), 1)
    values = {
        "demands": demands,
        "constant": np.full(3000, 11.0),
        "sorted": np.sort(demands),
        "reversed": -np.sort(demands),
        "one far away": np.append(demands[:300], 1e12),
    }[shape]
    assert stable_order(values).tolist() == np.argsort(values, kind="stable").tolist()


@given(st.lists(st.floats(0, 1), min_size=1, max_size=10))
def test_jain_lies_between_one_share_and_all(shares: list[float]) -> None:
    index = jain_index(list(shares))
    if sum(share * share for share in shares) == 0:
        assert index is None
    else:
        assert index is not None
        assert 1 / len(shares) - 1e-9 <= index <= 1 + 1e-9


def test_jain_by_hand() -> None:
    assert jain_index([0.5] * 10) == pytest.approx(1)
    assert jain_index([0.7, 0, 0, 0]) == pytest.approx(1 / 4)
    assert jain_index([1, 2, 3]) == pytest.approx(36 / (3 * 14))
    assert jain_index([0.0, 0.0]) is None
    assert jain_index([1.0, None]) is None


def test_the_horizon_is_the_workload_s(tmp_path: Any) -> None:
    config = ClusterConfig.create(replicas=4, deadline_ms=70, warmup_s=1)
    assert Horizon.of(make_workload(config)) == (1000.0, 13_000.0, 70.0, 4)
    trace = tmp_path / "trace.csv"
    trace.write_text("arrival_s,prompt_tokens,output_tokens\n0,1,1\n20,1,1\n")
    full = config.replace(trace=str(trace), trace_full=True)
    assert Horizon.of(make_workload(full)) == (1000.0, 20_070.0, 70.0, 4)


# Curves


def test_curves_worked_by_hand() -> None:
    horizon = Horizon(0.0, 300.0, 50.0, 2)
    log = request_log(
        [
            (10.0, 15.0, 1.0, 1, 0, 0, 0),
            (20.0, 120.0, 1.0, 1, 0, 0, 0),
            (30.0, NAN, 1.0, 1, -1, 1, 0),
            (40.0, NAN, 1.0, 1, 1, 0, 0),
        ]
    )
    curves = episode_curves(log, horizon)
    cdf = dict(zip(CDF_GRID_MS, curves["latency_cdf"], strict=True))
    assert {share for latency, share in cdf.items() if latency < 5} == {0.0}
    assert {share for latency, share in cdf.items() if 5 <= latency < 100} == {0.25}
    assert {share for latency, share in cdf.items() if latency >= 100} == {0.5}
    assert len(curves["outstanding"]) == TIMELINE_POINTS == 301  # one a ms
    expected = [0] * 10 + [1] * 5 + [0] * 5 + [1] * 20 + [2] * 80 + [1] * 181
    assert curves["outstanding"] == expected


@given(logs())
def test_curves_of_any_log(log: np.ndarray) -> None:
    curves, metrics = episode_curves(log, HORIZON), episode_metrics(log, HORIZON, 0)
    assert curves["latency_cdf"] == sorted(curves["latency_cdf"])
    assert curves["latency_cdf"][-1] == pytest.approx(
        metrics["completed"] / max(metrics["arrivals"], 1), abs=1e-6
    )
    assert min(curves["outstanding"]) >= 0
    assert curves["outstanding"][-1] == np.count_nonzero(np.isnan(log["completion"]) & ~log["shed"])


# An episode's


@pytest.mark.parametrize(
    "fields",
    [{"scenario": "failure"}, {"admission": True, "rate_per_s": 600, "queue_capacity": 3}, {"rate_per_s": 0}],
)
def test_an_episode_s_metrics_are_those_of_its_log(fields: dict[str, Any]) -> None:
    env = InferenceCluster(warmup_s=0.5, measured_s=1, **fields)
    router = routing_gym.make_policy("cluster/deadline_aware", admission=env.config.admission)
    observation, info = env.reset(seed=3)
    done = False
    while not done:
        assert "episode_metrics" not in info
        observation, _, _, done, info = env.step(router.predict(observation)[0])
    expected = slow_metrics(env.request_log(), Horizon(500, 1500, 50, 3))
    expected["invalid_actions"] = 0
    assert set(info["episode_metrics"]) == {name for name, value in expected.items() if value is not None}
    for name, value in env.episode_metrics().items():
        assert same(value, expected[name]), name
        assert value is None or same(info["episode_metrics"][name], value)
