"""Metrics of an episode: recomputed from its log and rewards, percentiles by hand, what is undefined."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from routing_gym.cloud_edge.config import CloudEdgeConfig
from routing_gym.cloud_edge.env import CloudEdgeBatch
from routing_gym.cloud_edge.metrics import (
    ASSIGNMENT_LOG,
    METRICS,
    WINDOW_TERMS,
    assignment_log,
    episode_curves,
    episode_metrics,
)
from routing_gym.cloud_edge.request_env import CloudEdgeRequest
from routing_gym.cloud_edge.state import CloudEdgeState
from routing_gym.cloud_edge.workload import EpisodeSource
from routing_gym.common.seeding import new_generator

RANDOM = settings(derandomize=True, database=None, phases=(Phase.explicit, Phase.generate, Phase.shrink))
COUNTS = {
    "arrivals",
    "dispatched",
    "undispatched",
    "waited",
    "set_aside",
    "invalid_actions",
    "windows",
    "nonempty_windows",
}


def mean(values: Any) -> float | None:
    values = list(values)
    return math.fsum(values) / len(values) if values else None


def percentile(values: list[float], percent: int) -> float | None:
    """Return the smallest value that at least that many per cent of the values do not exceed."""
    return next(
        (v for v in sorted(values) if 100 * sum(w <= v for w in values) >= percent * len(values)), None
    )


def backlogs(log: np.ndarray, config: CloudEdgeConfig, over: int) -> list[list[float]]:
    """Return B_d after each window: B ← max(0, B + max(max T, ΣT/S) - Δ)."""
    left, after = [0.0] * config.destination_count, []
    for window in range(over):
        for d, destination in enumerate(config.destinations):
            took = [float(row["infer"]) for row in log if row["window"] == window and row["destination"] == d]
            new = max(*took, sum(took) / destination.speedup) if took else 0.0
            left[d] = max(0.0, left[d] + new - config.window_s)
        after.append(list(left))
    return after


def slow_metrics(
    log: np.ndarray, paid: list[float], foreseen: list[float], config: CloudEdgeConfig
) -> dict[str, Any]:
    """Return metrics from their definitions, one request at a time.

    Args:
        log: the assignment log.
        paid: minus the reward of each window so far.
        foreseen: the same, had the reward been on predicted values.
        config: the condition.
    """
    over, delta = len(paid), config.window_s
    sent = [row for row in log if row["window"] >= 0]
    left = [row for row in log if row["window"] < 0]
    busy = {k: [row for row in sent if row["window"] == k] for k in range(over)}
    busy = {k: rows for k, rows in busy.items() if rows}
    latency = [float(row["dispatch"] - row["arrival"] + row["finish"]) for row in sent]
    largest = [max(after) for after in backlogs(log, config, over)]
    cloud = [d.is_cloud for d in config.destinations]
    chosen = [int(row["destination"]) for row in sent]
    return {
        "arrivals": len(log),
        "dispatched": len(sent),
        "undispatched": len(left),
        "waited": sum(row["arrival"] < row["window"] * delta for row in sent)
        + sum(row["arrival"] < over * delta for row in left),
        "set_aside": sum(bool(row["set_aside"]) for row in log),
        "invalid_actions": sum(bool(row["invalid"]) for row in log),
        "windows": over,
        "nonempty_windows": len(busy),
        "objective": mean(paid[k] for k in busy),
        "objective_predicted": mean(foreseen[k] for k in busy),
        "quality_loss": mean(mean(1.0 - row["quality"] for row in rows) for rows in busy.values()),
        "cost_usd": mean(math.fsum(row["cost"] for row in rows) for rows in busy.values()),
        "energy_j": mean(math.fsum(row["energy"] for row in rows) for rows in busy.values()),
        "completion_s": mean(max(row["finish"] for row in rows) for rows in busy.values()),
        "quality": mean(row["quality"] for row in sent),
        "mean_latency_s": mean(latency),
        **{f"p{p}_latency_s": percentile(latency, p) for p in (50, 95, 99)},
        "p99_all_latency_s": percentile(latency + [math.inf] * len(left), 99),
        "cloud_share": mean(float(cloud[d]) for d in chosen),
        "mean_backlog_s": mean(largest),
        "max_backlog_s": max(largest, default=None),
        "destination_shares": [chosen.count(d) / len(sent) for d in range(len(cloud))] if sent else None,
    }


def assert_same_metrics(metrics: dict[str, Any], expected: dict[str, Any]) -> None:
    """Assert that metrics are the expected ones, and of the right types."""
    assert metrics.keys() == expected.keys() == set(METRICS)
    for name, value in metrics.items():
        if name in COUNTS:
            assert type(value) is int and value == expected[name], name
        elif value is None or expected[name] is None:
            assert value is expected[name], name
        else:
            assert name == "destination_shares" or type(value) is float, name
            np.testing.assert_allclose(value, expected[name], rtol=1e-10, atol=1e-12, err_msg=name)


def short(**fields: Any) -> dict[str, Any]:
    return {"rate_per_s": 3.0, "windows": 5, "max_requests": 4} | fields


small_configs = st.fixed_dictionaries(
    {
        "config": st.sampled_from(["routerbench-5node", "testbed-6node"]),
        "windows": st.integers(1, 6),
        "window_s": st.sampled_from([1.0, 0.3]),
        "max_requests": st.integers(1, 5),
        "rate_per_s": st.sampled_from([0.3, 4.0]),
        "requests": st.none() | st.integers(0, 7),
        "edge_only_share": st.sampled_from([0.0, 0.5]),
        "outage_probability": st.sampled_from([0.0, 0.4, 1.0]),
        "outage_mean_windows": st.sampled_from([1.0, 3.0]),
        "catalogue": st.sampled_from([{}, {"speedup": 1.0}]),
    }
)


@settings(RANDOM, max_examples=40)
@given(small_configs, st.integers(0, 10**6))
def test_metrics_are_those_of_the_log_and_the_rewards(fields: dict[str, Any], seed: int) -> None:
    """At each step, of an episode of legal and illegal choices; and every arrival is accounted for."""
    actual = CloudEdgeBatch(**fields)
    predicted = CloudEdgeBatch(**fields, reward_on="predicted")
    actual.reset(seed=seed)
    predicted.reset(seed=seed)
    rng, paid, foreseen, over = np.random.default_rng(seed), [], [], False
    assert_same_metrics(
        actual.episode_metrics(), slow_metrics(actual.assignment_log(), [], [], actual.config)
    )
    while not over:
        action = rng.integers(0, actual.config.destination_count, actual.config.max_requests)
        paid.append(-actual.step(action)[1])
        _, reward, _, over, info = predicted.step(action)
        foreseen.append(-reward)
        log = actual.assignment_log()
        metrics = actual.episode_metrics()
        assert_same_metrics(metrics, slow_metrics(log, paid, foreseen, actual.config))
        assert metrics["arrivals"] == metrics["dispatched"] + metrics["undispatched"]
    assert len(log) == len(actual.episode.arrivals.arrival_s)
    assert metrics["set_aside"] <= metrics["waited"]
    assert metrics["undispatched"] <= metrics["waited"]
    # On predicted values, what is paid is the other mean; nothing else differs.
    theirs = predicted.episode_metrics()
    assert theirs.pop("objective") == theirs["objective_predicted"] == metrics["objective_predicted"]
    assert_same_metrics({**theirs, "objective": metrics["objective"]}, metrics)
    assert info["episode_metrics"].keys() == {name for name, value in metrics.items() if value is not None}


@settings(RANDOM, max_examples=20)
@given(small_configs, st.integers(0, 10**6))
def test_metrics_of_a_walk_are_those_of_its_log_and_rewards(fields: dict[str, Any], seed: int) -> None:
    """A request environment pays for a batch with its last request."""
    env = CloudEdgeRequest(**fields)
    env.reset(seed=seed)
    rng, rewards, over = np.random.default_rng(seed), [], False
    while not over:
        _, reward, _, over, _ = env.step(int(rng.integers(0, env.config.destination_count)))
        rewards.append(-reward)
    log, metrics = env.assignment_log(), env.episode_metrics()
    sizes = np.bincount(log["window"][log["window"] >= 0], minlength=env.config.windows)
    ends = np.cumsum(sizes) - 1
    paid = [rewards[end] if size else 0.0 for end, size in zip(ends.tolist(), sizes.tolist(), strict=True)]
    assert sum(rewards) == pytest.approx(sum(paid))
    expected = slow_metrics(log, paid, paid, env.config)
    expected["objective_predicted"] = metrics["objective_predicted"]
    assert_same_metrics(metrics, expected)


# Percentiles


def answered(latencies: list[float], unanswered: int = 0) -> dict[str, Any]:
    """Return the metrics of an episode of one window whose requests took so long from their arrival at 0."""
    config = CloudEdgeConfig.create("testbed-6node", requests=len(latencies) + unanswered, windows=1)
    state = CloudEdgeState(1, 6, config.max_requests)
    state.load(0, *EpisodeSource(config).draw(new_generator(0)))
    count = len(latencies)
    state.requests["arrival"] = 0.0
    for name, values in (("window", 0), ("destination", 2), ("finish", np.array(latencies) - 1.0)):
        state.requests[name][0, :count] = values
    state.rows["next_request"], state.rows["window"] = count + unanswered, 1
    return episode_metrics(state, 0)


def test_percentiles_by_hand() -> None:
    """Of 1 to 20 s the tenth, the nineteenth and the last; in whatever order they came."""
    latencies = np.random.default_rng(0).permutation(np.arange(1.0, 21.0)).tolist()
    metrics = answered(latencies)
    assert [metrics[f"p{p}_latency_s"] for p in (50, 95, 99)] == [10.0, 19.0, 20.0]
    assert metrics["p99_all_latency_s"] == 20.0
    assert metrics["mean_latency_s"] == 10.5
    assert metrics["destination_shares"].tolist() == [0, 0, 1, 0, 0, 0]
    assert metrics["cloud_share"] == 0.0
    only = answered([4.0])
    assert [only[f"p{p}_latency_s"] for p in (50, 95, 99)] == [4.0] * 3


@pytest.mark.parametrize(("sent", "left", "of_all"), [(99, 1, 99.0), (98, 2, math.inf), (199, 2, 199.0)])
def test_those_not_dispatched_are_infinitely_late_for_the_percentile_of_all(
    sent: int, left: int, of_all: float
) -> None:
    """Of a hundred the 99th counts: one that was left behind does not show, two do."""
    metrics = answered(np.arange(1.0, sent + 1).tolist(), left)
    assert metrics["p99_all_latency_s"] == of_all
    assert metrics["p99_latency_s"] == math.ceil(0.99 * sent)
    assert (metrics["arrivals"], metrics["dispatched"], metrics["undispatched"]) == (sent + left, sent, left)


# What is undefined


def test_what_cannot_be_defined_is_none() -> None:
    """Before an episode, before its first dispatch, and where nothing ever arrives."""
    env = CloudEdgeBatch(**short(rate_per_s=0.0))
    empty = dict.fromkeys(METRICS) | dict.fromkeys(COUNTS, 0)
    assert env.episode_metrics() == empty
    env.reset(seed=0)
    assert env.episode_metrics() == empty
    over = False
    while not over:
        *_, over, info = env.step(np.zeros(4, int))
    done = empty | {"windows": 5, "mean_backlog_s": 0.0, "max_backlog_s": 0.0}
    assert env.episode_metrics() == done
    assert info["episode_metrics"] == {name: value for name, value in done.items() if value is not None}


def test_where_nothing_can_be_dispatched_all_are_infinitely_late() -> None:
    nodes = CloudEdgeConfig.create().catalogue.node_names()
    env = CloudEdgeBatch(**short(outages=[{"node": node, "window": 0, "windows": 5} for node in nodes]))
    env.reset(seed=0)
    over = False
    while not over:
        *_, over, _ = env.step(np.zeros(4, int))
    metrics = env.episode_metrics()
    count = len(env.assignment_log())
    assert count > 5
    for name in ("arrivals", "undispatched", "waited", "set_aside"):
        assert metrics[name] == count
    assert metrics["p99_all_latency_s"] == math.inf
    assert metrics["p99_latency_s"] is metrics["quality"] is metrics["objective"] is None
    assert metrics["destination_shares"] is metrics["cloud_share"] is None


# Curves and log


@pytest.mark.parametrize("paid", ["actual", "predicted"])
def test_the_means_of_the_curves_are_the_metrics(paid: str) -> None:
    """Over windows in which something was dispatched; backlog is that of all destinations together."""
    env = CloudEdgeBatch("testbed-6node", rate_per_s=1.5, windows=30, reward_on=paid)
    env.reset(seed=2)
    assert set(map(len, episode_curves(env._state, 0).values())) == {0}
    over, k = False, 0
    while not over:
        *_, over, _ = env.step(np.full(32, k % 6))
        k += 1
    curves, metrics, log = episode_curves(env._state, 0), env.episode_metrics(), env.assignment_log()
    assert {len(values) for values in curves.values()} == {30}
    sizes = np.bincount(log["window"], minlength=30)
    assert curves["requests"] == sizes.tolist()
    assert 0 in curves["requests"] and metrics["nonempty_windows"] == np.count_nonzero(sizes) < 30
    for name in ("objective", "objective_predicted", *WINDOW_TERMS):
        values = np.array(curves[name])
        assert values[sizes > 0].mean() == pytest.approx(metrics[name]), name
        assert not values[sizes == 0].any()
    after = backlogs(log, env.config, 30)
    np.testing.assert_allclose(curves["backlog_s"], [sum(each) for each in after], rtol=1e-12, atol=1e-12)
    assert max(curves["backlog_s"]) >= metrics["max_backlog_s"] > 0


def test_the_log_holds_what_has_arrived_so_far() -> None:
    """And is a copy; a request's answer is as long and as good as its destination's model makes it."""
    env = CloudEdgeBatch(**short(windows=4, rate_per_s=6.0))
    assert env.assignment_log().shape == (0,)
    env.reset(seed=3)
    contents = env.episode.arrivals.contents
    model = [env.config.catalogue.hosted.index(d.model) for d in env.config.destinations]
    for window in range(4):
        log = env.assignment_log()
        assert log.dtype == ASSIGNMENT_LOG
        arrived = env.episode.arrivals.arrival_s < window + 1
        assert log["arrival"].tolist() == env.episode.arrivals.arrival_s[arrived].tolist()
        pending = log["window"] < 0
        assert pending[-1] and (log["window"] < window).all()
        for name in ("dispatch", "finish", "infer", "quality", "predicted_quality", "output_tokens"):
            assert np.isnan(log[name][pending]).all() and np.isfinite(log[name][~pending]).all()
        env.step(np.arange(4) + window)
        log["arrival"] = log["quality"] = -1.0
    log = assignment_log(env._state, 0)
    sent = np.flatnonzero(log["window"] >= 0)
    columns = [model[d] for d in log["destination"][sent]]
    assert len({*columns}) > 3
    for name, values in (
        ("quality", contents.quality),
        ("predicted_quality", contents.predicted_quality),
        ("output_tokens", contents.output_tokens),
    ):
        assert log[name][sent].tolist() == values[sent, columns].tolist()
    assert log["input_tokens"].tolist() == contents.input_tokens.tolist()
    assert log["predicted_output_tokens"].tolist() == contents.predicted_output_tokens.tolist()
