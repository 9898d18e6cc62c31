"""The runner: an episode's results depend on its router, condition and seed, and on nothing else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from routing_gym.cluster.metrics import CDF_GRID_MS, METRICS, TIMELINE_POINTS
from routing_gym.evaluation import runner
from routing_gym.evaluation.runner import (
    DEVELOPMENT_SEEDS,
    ENVIRONMENTS,
    ROUTER_SEED_OFFSET,
    TEST_SEEDS_FROM,
    VALIDATION_SEEDS,
    Job,
    Result,
    make_jobs,
    make_shards,
    play,
    run_jobs,
)
from routing_gym.policy import make_policy, policy_class
from tests.evaluation.runs import (
    CLUSTER_ROUTERS,
    CLUSTER_YARDSTICKS,
    Spy,
    assert_same_metrics,
    condition,
    install,
    router,
)

FAILURE = [
    {"time_s": 0.2, "kind": "failure", "replica": 0},
    {"time_s": 0.4, "kind": "recovery", "replica": 0},
]
# Different numbers of replicas, admission, lengths and loads: no single vector environment plays them all.
CONDITIONS = [
    condition("steady"),
    condition("overload", rate_per_s=420.0, queue_capacity=4),
    condition("failure", events=FAILURE),
    condition("long", measured_s=0.5, rate_per_s=120.0, heterogeneity=0.5),
    condition("one replica", replicas=1, rate_per_s=90.0),
    condition("five replicas", replicas=5, events=FAILURE, rate_per_s=400.0),
    condition("admission", admission=True, rate_per_s=350.0),
    condition("what a proxy sees", observation="router", signal_interval_ms=4.0),
]
SEEDS = [30_000, 30_001, 7]


def results_by_key(results: Sequence[Result] | Any) -> dict[tuple[str, str, int], Result]:
    found: dict[tuple[str, str, int], Result] = {}
    for result in results:
        assert result.job.key not in found, "an episode was played twice"
        found[result.job.key] = result
    return found


def assert_same_results(a: dict[Any, Result], b: dict[Any, Result]) -> None:
    assert a.keys() == b.keys()
    for key in a:
        assert_same_metrics(a[key].metrics, b[key].metrics)
        assert a[key].curves == b[key].curves


@pytest.fixture(scope="module")
def everything() -> dict[tuple[str, str, int], Result]:
    """Every installed router under every condition, played in one process in shards as they come."""
    listed = [router(name.partition("/")[2]) for name in (*CLUSTER_ROUTERS, *CLUSTER_YARDSTICKS)]
    return results_by_key(run_jobs(make_jobs(listed, CONDITIONS, SEEDS), curves=True))


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The vector environments that the runner makes from here on."""
    envs: list[Any] = []
    make_vec: Callable[..., Any] = gym.make_vec

    def keep(*args: Any, **kwargs: Any) -> Any:
        envs.append(make_vec(*args, **kwargs))
        return envs[-1]

    monkeypatch.setattr(runner.gym, "make_vec", keep)
    return envs


# Jobs and shards


def test_every_router_gets_the_same_list() -> None:
    routers = [router("least_queue"), router("adaptive"), router("bound")]
    jobs = make_jobs(routers, CONDITIONS[:2], SEEDS)
    episodes = [[(job.condition, job.seed) for job in jobs if job.router is one] for one in routers]
    assert episodes[0] == episodes[1] == episodes[2]
    assert episodes[0] == [(place, seed) for place in CONDITIONS[:2] for seed in SEEDS]
    assert len({job.key for job in jobs}) == len(jobs)


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_a_shard_is_one_router_under_conditions_that_fit_together(workers: int) -> None:
    jobs = make_jobs([router("least_queue"), router("bound"), router("clairvoyant")], CONDITIONS, range(70))
    shards = make_shards(jobs, workers)
    for shard in shards:
        assert len({(job.router.label, job.condition.config.space_key) for job in shard}) == 1
        assert 1 <= len(shard) <= policy_class(shard[0].router.name).max_rows
    assert sorted(job.key for shard in shards for job in shard) == sorted(job.key for job in jobs)


def test_no_worker_is_left_without_work_by_one_large_shard() -> None:
    jobs = make_jobs([router("least_queue")], CONDITIONS[:2], range(10))
    assert [len(shard) for shard in make_shards(jobs, workers=4)] == [5, 5, 5, 5]
    assert [len(shard) for shard in make_shards(jobs, workers=1)] == [20]


def test_nothing_to_do_is_done_at_once() -> None:
    assert list(run_jobs([])) == []
    assert list(run_jobs([], workers=2)) == []


@pytest.mark.parametrize("workers", [0, -1])
def test_there_is_at_least_one_worker(workers: int) -> None:
    with pytest.raises(ValueError, match=rf"workers = {workers}: must be at least 1"):
        list(run_jobs([], workers=workers))


def test_seed_ranges_are_those_of_the_protocol_and_do_not_meet() -> None:
    assert list(DEVELOPMENT_SEEDS) == list(range(10_000, 10_008))
    assert list(VALIDATION_SEEDS) == list(range(20_000, 20_024))
    assert TEST_SEEDS_FROM == 30_000
    assert ROUTER_SEED_OFFSET > 10_000_000, "a router's seed could be an episode's of a long training"


# The results of an episode


@pytest.mark.parametrize("name", CLUSTER_ROUTERS)
def test_an_episode_is_that_of_the_single_environment(
    name: str, everything: dict[tuple[str, str, int], Result]
) -> None:
    label = name.partition("/")[2]
    for place in CONDITIONS:
        env: Any = gym.make(ENVIRONMENTS["cluster"], config=place.config).unwrapped
        for seed in SEEDS:
            policy = make_policy(name)
            policy.configure([place.config])
            state, start = policy.initial_state([seed + ROUTER_SEED_OFFSET]), np.ones(1, bool)
            observation, info = env.reset(seed=seed)
            over = False
            while not over:
                batch = {key: value[None] for key, value in observation.items()}
                masks = info["action_mask"][None]
                action, state = policy.predict(batch, state, start, action_masks=masks)
                observation, _, _, over, info = env.step(action[0])
                start = np.zeros(1, bool)
            result = everything[label, place.name, seed]
            assert_same_metrics(result.metrics, env.episode_metrics())


@pytest.mark.parametrize("rows", [1, 4])
def test_results_do_not_depend_on_how_episodes_are_grouped(
    rows: int, everything: dict[tuple[str, str, int], Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["round_robin", "adaptive", "random", "clairvoyant", "bound"]
    for name in names:
        monkeypatch.setattr(policy_class(f"cluster/{name}"), "max_rows", rows)
    jobs = make_jobs(list(map(router, names)), CONDITIONS, SEEDS[1:])
    np.random.default_rng(rows).shuffle(jobs)  # type: ignore[arg-type]
    assert max(map(len, make_shards(jobs))) == rows
    again = results_by_key(run_jobs(jobs, curves=True))
    assert_same_results(again, {key: everything[key] for key in again})


def test_results_do_not_depend_on_how_many_processes_play(
    everything: dict[tuple[str, str, int], Result],
) -> None:
    jobs = make_jobs(list(map(router, ["round_robin", "random", "bound"])), CONDITIONS[:3], SEEDS)
    told: list[float] = []
    again = results_by_key(run_jobs(jobs, workers=2, curves=True, progress=told.append))
    assert len(again) == len(jobs)
    assert_same_results(again, {key: everything[key] for key in again})
    assert sum(told) == len(jobs)


def test_every_row_has_every_metric_and_its_counts_add_up(
    everything: dict[tuple[str, str, int], Result],
) -> None:
    for (label, _, _), result in everything.items():
        metrics = result.metrics
        assert list(metrics) == list(METRICS)
        if f"cluster/{label}" in CLUSTER_ROUTERS:
            assert metrics["arrivals"] == metrics["completed"] + metrics["shed"] + metrics["unfinished"]
            assert metrics["completed"] == metrics["on_time"] + metrics["late"]
            assert 0 <= metrics["rejected"] <= metrics["shed"]
            assert metrics["attainment"] == metrics["on_time"] / metrics["arrivals"]


def test_no_router_is_above_the_bound_and_all_count_the_same_arrivals(
    everything: dict[tuple[str, str, int], Result],
) -> None:
    for (label, place, seed), result in everything.items():
        bound = everything["bound", place, seed].metrics
        assert result.metrics["arrivals"] == bound["arrivals"], label
        assert result.metrics["on_time"] <= bound["on_time"], label


def test_what_is_undefined_is_none() -> None:
    empty = condition("nobody comes", rate_per_s=0.0)
    routers = [router("least_queue"), router("bound")]
    played, bound = (result.metrics for result in run_jobs(make_jobs(routers, [empty], [1])))
    for metrics in (played, bound):
        assert metrics["arrivals"] == metrics["on_time"] == 0
        assert metrics["attainment"] is None
    for name in ("p99_ms", "p99_all_ms", "mean_latency_ms", "slo_miss_rate", "replica_shares"):
        assert played[name] is None
    assert bound["completed"] is None and bound["p99_ms"] is None, "a bound knows of no completions"


def test_curves_are_kept_where_asked_for_and_describe_the_episode(
    everything: dict[tuple[str, str, int], Result],
) -> None:
    for (label, place, seed), (_, metrics, curves) in everything.items():
        if label == "bound":
            assert curves == {}, "nothing was played"
            continue
        cdf, outstanding = curves["latency_cdf"], curves["outstanding"]
        assert len(cdf) == len(CDF_GRID_MS) and len(outstanding) == TIMELINE_POINTS
        assert np.all(np.diff(cdf) >= 0), (label, place, seed)
        assert cdf[-1] == pytest.approx(metrics["completed"] / metrics["arrivals"], abs=1e-6)
        assert min(outstanding) >= 0 and outstanding[0] == 0
    [result] = run_jobs([Job(router("least_queue"), CONDITIONS[0], 1)])
    assert result.curves == {}


# Fairness


def test_every_router_meets_the_same_workload(made: list[Any]) -> None:
    names = [name.partition("/")[2] for name in (*CLUSTER_ROUTERS, "cluster/clairvoyant")]
    jobs = make_jobs(list(map(router, names)), CONDITIONS[:3], SEEDS)
    for _ in run_jobs(jobs):
        pass
    assert len(made) == len(names)
    logs = [[envs.unwrapped.request_log(row) for row in range(envs.num_envs)] for envs in made]
    exogenous = ["arrival", "prompt", "output", "predicted", "demand", "jitter"]
    for log in logs[1:]:
        assert len(log) == len(logs[0]) == 9
        for mine, first in zip(log, logs[0], strict=True):
            for field in exogenous:
                assert mine[field].tobytes() == first[field].tobytes()
            assert mine["demand"].sum() == first["demand"].sum() > 0
    # Were they not, the comparison above would compare a run with itself.
    assert any(a["replica"].tobytes() != b["replica"].tobytes() for a, b in zip(*logs[:2], strict=True))


def test_only_yardsticks_may_look_into_the_environment(
    monkeypatch: pytest.MonkeyPatch, made: list[Any]
) -> None:
    install(monkeypatch, spy="Spy", spy_yardstick="SpyYardstick")
    jobs = make_jobs([router("spy"), router("spy_yardstick")], CONDITIONS[:2], SEEDS)
    assert len(list(run_jobs(jobs))) == len(jobs)
    spy, yardstick = Spy.seen
    assert spy.role == "router" and spy.attached == []
    assert yardstick.role == "yardstick" and yardstick.attached == [made[1]]


def test_a_router_is_told_its_conditions_but_gets_no_workload(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, spy="Spy")
    jobs = make_jobs([router("spy")], CONDITIONS[:2], SEEDS)
    list(run_jobs(jobs))
    [spy] = Spy.seen
    assert spy.configured == [job.condition.config for job in jobs]


def test_routers_have_seeds_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, spy="Spy")
    jobs = make_jobs([router("spy")], CONDITIONS[:2], SEEDS)
    list(run_jobs(jobs))
    [spy] = Spy.seen
    assert spy.seeds == [job.seed + ROUTER_SEED_OFFSET for job in jobs]
    assert not {job.seed for job in jobs} & set(spy.seeds)


def test_an_episode_starts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, spy="Spy")
    list(run_jobs(make_jobs([router("spy")], [CONDITIONS[0], CONDITIONS[3]], SEEDS)))
    [spy] = Spy.seen
    assert spy.starts[0].all()
    assert not np.any(spy.starts[1:])


def test_parameters_reach_the_router_and_labels_keep_variants_apart() -> None:
    routers = [router("adaptive"), router("adaptive", "adaptive:c=30", c=30.0)]
    results = results_by_key(run_jobs(make_jobs(routers, [CONDITIONS[0]], SEEDS)))
    shares = [
        [results[one.label, "steady", seed].metrics["replica_shares"].tolist() for seed in SEEDS]
        for one in routers
    ]
    assert shares[0] != shares[1]


# While it goes on


def test_results_come_as_episodes_end(made: list[Any]) -> None:
    shard = [
        Job(router("least_queue"), condition("long", measured_s=2.0), 1),
        Job(router("least_queue"), condition("short"), 2),
        Job(router("least_queue"), condition("middle", measured_s=1.0), 3),
    ]
    results = play(shard)
    order = []
    for result in results:
        order.append(result.job.condition.name)
        progress = made[0].unwrapped.progress()
        rows = [k for k, job in enumerate(shard) if job.condition.name in order]
        assert np.all(progress[rows] == 1.0)
        assert np.all(np.delete(progress, rows) < 1.0), "a result was held back"
    assert order == ["short", "middle", "long"]


def test_a_finished_row_is_left_as_it_is() -> None:
    pair = [condition("short"), condition("long", measured_s=2.0)]
    together = results_by_key(run_jobs(make_jobs([router("round_robin")], pair, [1])))
    for place in pair:
        [alone] = run_jobs([Job(router("round_robin"), place, 1)])
        assert_same_metrics(alone.metrics, together["round_robin", place.name, 1].metrics)


@pytest.mark.parametrize("name", ["round_robin", "bound"])
def test_progress_adds_up_to_the_number_of_jobs(name: str) -> None:
    jobs = make_jobs([router(name)], [*CONDITIONS[:2], condition("long", measured_s=2.0)], SEEDS)
    told: list[float] = []
    finished: list[float] = []
    for k, _ in enumerate(run_jobs(jobs, progress=told.append)):
        finished.append(k)
        assert sum(told) <= len(jobs) + 1e-9
    assert sum(told) == pytest.approx(len(jobs))
    assert min(told) >= 0.0
    assert len(told) >= 3, "a progress bar that stands still until all is over"
