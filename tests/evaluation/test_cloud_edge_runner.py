"""The runner on batches: one episode at a time, by every router in turn; only times may differ."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from routing_gym.cloud_edge.metrics import METRICS
from routing_gym.evaluation import runner
from routing_gym.evaluation.decisions import DECISION_METRICS
from routing_gym.evaluation.runner import (
    ENVIRONMENTS,
    ROUTER_SEED_OFFSET,
    Job,
    Result,
    make_jobs,
    make_shards,
    run_jobs,
)
from routing_gym.evaluation.sequential import Sequential
from routing_gym.policy import make_policy
from tests.evaluation import runs
from tests.evaluation.cloud_edge_runs import (
    SOME_ROUTERS,
    OneByOne,
    Slow,
    Spy,
    condition,
    install,
    router,
    several,
    without_times,
)

# Another number of destinations and of slots: no single vector environment plays them all.
CONDITIONS = [
    condition(),
    several(),
    condition("two copies", replicate=2),
    condition("weights", weights=[0.7, 0.1, 0.1, 0.1], reward_on="predicted", max_requests=4, windows=3),
]
SEEDS = [30_000, 7]
ROUTERS = [*map(router, SOME_ROUTERS)]


def results_by_key(results: Sequence[Result] | Any) -> dict[tuple[str, str, int], Result]:
    found: dict[tuple[str, str, int], Result] = {}
    for result in results:
        assert result.job.key not in found, "an episode was played twice"
        found[result.job.key] = result
    return found


def assert_same_results(a: dict[Any, Result], b: dict[Any, Result]) -> None:
    """Assert that results are the same but for what depends on the machine."""
    assert a.keys() == b.keys()
    for key in a:
        runs.assert_same_metrics(without_times(a[key].metrics), without_times(b[key].metrics))
        assert without_times(a[key].curves) == without_times(b[key].curves)


@pytest.fixture(scope="module")
def everything() -> dict[tuple[str, str, int], Result]:
    """Some routers under every condition, with gaps, played in this process."""
    return results_by_key(run_jobs(make_jobs(ROUTERS, CONDITIONS, SEEDS), curves=True, gap=True))


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


# Shards


@pytest.mark.parametrize("workers", [1, 3])
def test_a_shard_is_one_episode_by_every_router_yardsticks_first(workers: int) -> None:
    jobs = make_jobs(ROUTERS, CONDITIONS, SEEDS)
    shards = make_shards(jobs, workers)
    assert sorted(job.key for shard in shards for job in shard) == sorted(job.key for job in jobs)
    assert len(shards) == len(CONDITIONS) * len(SEEDS)
    for shard in shards:
        assert len({(job.condition.name, job.seed) for job in shard}) == 1
        labels = [job.router.label for job in shard]
        assert labels == ["optimal", "round_robin", "uniroute", "cema"]


def test_batches_and_the_cluster_share_no_shard() -> None:
    jobs = [
        *make_jobs([router("uniroute")], CONDITIONS[:1], [1, 2]),
        *make_jobs([runs.router("adaptive")], [runs.condition()], [1, 2]),
    ]
    assert [[job.router.name for job in shard] for shard in make_shards(jobs)] == [
        ["cloud_edge/uniroute"],
        ["cloud_edge/uniroute"],
        ["cluster/adaptive"] * 2,
    ]


# The results of an episode


@pytest.mark.parametrize("name", SOME_ROUTERS)
def test_an_episode_is_that_of_the_single_environment(
    name: str, everything: dict[tuple[str, str, int], Result]
) -> None:
    for place in CONDITIONS:
        env: Any = gym.make(ENVIRONMENTS["cloud_edge"], config=place.config).unwrapped
        for seed in SEEDS:
            policy = make_policy(f"cloud_edge/{name}")
            state, start = policy.initial_state([seed + ROUTER_SEED_OFFSET]), np.ones(1, bool)
            observation, info = env.reset(seed=seed)
            over = False
            while not over:
                shown = {key: value[None] for key, value in observation.items()}
                action, state = policy.predict(shown, state, start, action_masks=info["action_mask"][None])
                observation, _, _, over, info = env.step(action[0])
                start = np.zeros(1, bool)
            result = everything[name, place.name, seed]
            metrics = {key: value for key, value in result.metrics.items() if key not in DECISION_METRICS}
            runs.assert_same_metrics(metrics, env.episode_metrics())


def test_a_router_of_requests_plays_batches_too(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, one_by_one="OneByOne")
    place = several(rate_per_s=4.0)
    [result] = run_jobs([Job(router("one_by_one"), place, 4)], curves=True, gap=True)
    env: Any = gym.make(ENVIRONMENTS["cloud_edge"], config=place.config).unwrapped
    policy, over = Sequential(OneByOne()), False
    state = policy.initial_state([0])
    observation, _ = env.reset(seed=4)
    while not over:
        shown = {key: value[None] for key, value in observation.items()}
        action, state = policy.predict(shown, state)
        observation, _, _, over, _ = env.step(action[0])
    metrics = {key: value for key, value in result.metrics.items() if key not in DECISION_METRICS}
    runs.assert_same_metrics(metrics, env.episode_metrics())
    assert result.metrics["gap"] > 0 and result.metrics["decision_ms_median"] > 0


def test_results_depend_on_neither_order_nor_company(
    everything: dict[tuple[str, str, int], Result],
) -> None:
    jobs = make_jobs(ROUTERS, CONDITIONS, SEEDS)
    np.random.default_rng(1).shuffle(jobs)  # type: ignore[arg-type]
    again = results_by_key(run_jobs(jobs, curves=True, gap=True))
    assert_same_results(again, everything)
    for one in ROUTERS[::2]:
        alone = results_by_key(run_jobs(make_jobs([one], CONDITIONS[:2], SEEDS[:1]), curves=True, gap=True))
        assert_same_results(alone, {key: everything[key] for key in alone})


def test_results_do_not_depend_on_how_many_processes_play(
    everything: dict[tuple[str, str, int], Result],
) -> None:
    jobs, told = make_jobs(ROUTERS, CONDITIONS[:2], SEEDS), []
    again = results_by_key(run_jobs(jobs, workers=2, curves=True, gap=True, progress=told.append))
    assert len(again) == len(jobs) == sum(told)
    assert_same_results(again, {key: everything[key] for key in again})


def test_every_row_has_every_metric(everything: dict[tuple[str, str, int], Result]) -> None:
    for result in everything.values():
        assert list(result.metrics) == [*METRICS, *DECISION_METRICS]
        assert all(result.metrics[name] is not None for name in DECISION_METRICS)
        assert result.metrics["gap"] >= -1e-9, "nobody is better than a proven bound"


def test_every_router_meets_the_same_batches(everything: dict[tuple[str, str, int], Result]) -> None:
    for (label, place, seed), result in everything.items():
        first = everything["round_robin", place, seed]
        assert result.metrics["arrivals"] == first.metrics["arrivals"], label
        assert result.curves["requests"] == first.curves["requests"], label
    assert any(0 in result.curves["requests"] for result in everything.values())


def test_curves_have_a_number_for_each_window(everything: dict[tuple[str, str, int], Result]) -> None:
    for (label, place, _), result in everything.items():
        windows = next(one.config.windows for one in CONDITIONS if one.name == place)
        told = {"convergence"} if label in ("cema", "optimal") else set()
        assert result.curves.keys() >= {"decision_ms", "bound", "objective", "requests", *told}
        assert ("convergence" in result.curves) == bool(told)
        for name, values in result.curves.items():
            assert name == "convergence" or len(values) == windows


def test_gaps_are_worked_out_only_where_asked_for() -> None:
    [result] = run_jobs([Job(router("optimal"), CONDITIONS[0], 1)], curves=True)
    assert [result.metrics[name] for name in ("gap", "bound", "unproven_windows")] == [None] * 3
    assert "bound" not in result.curves
    [result] = run_jobs([Job(router("uniroute"), CONDITIONS[0], 1)], gap=True)
    assert result.curves == {}


def test_progress_adds_up_to_the_number_of_jobs() -> None:
    told: list[float] = []
    jobs = make_jobs([router("uniroute"), router("round_robin")], [several("long", windows=200)], SEEDS)
    for _ in run_jobs(jobs, progress=told.append):
        assert sum(told) <= len(jobs) + 1e-9
    assert sum(told) == pytest.approx(len(jobs))
    assert min(told) >= 0.0
    assert len(told) > len(jobs), "a progress bar that stands still until an episode is over"


# Fairness


def test_only_yardsticks_may_look_into_the_environment(
    monkeypatch: pytest.MonkeyPatch, made: list[Any]
) -> None:
    install(monkeypatch, spy="Spy", spy_yardstick="SpyYardstick")
    list(run_jobs(make_jobs([router("spy"), router("spy_yardstick")], CONDITIONS[1:2], SEEDS)))
    for spy in Spy.seen:
        assert len(spy.attached) == (spy.role == "yardstick")
        assert all(envs in made for envs in spy.attached)
    assert {spy.role for spy in Spy.seen} == {"router", "yardstick"}


def test_a_router_starts_anew_in_every_episode_with_a_seed_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    install(monkeypatch, spy="Spy")
    list(run_jobs(make_jobs([router("spy")], [CONDITIONS[1]], SEEDS)))
    episodes = [spy for spy in Spy.seen if len(spy.starts) == 6]
    assert [spy.seeds for spy in episodes] == [[seed + ROUTER_SEED_OFFSET] for seed in SEEDS]
    for spy in episodes:
        assert spy.configured == [CONDITIONS[1].config]
        assert spy.starts == [True] + [False] * 5
        assert spy.states == list(range(6)), "its state was passed on"


def test_the_first_decision_in_a_process_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, slow="Slow")
    monkeypatch.setattr(runner, "_warm", set())
    monkeypatch.setattr(Slow, "decided", False)
    place = several(edge_only_share=0.0, outage_probability=0.0)
    results = list(run_jobs(make_jobs([router("slow")], [place], [16, 6])))
    played = [spy.sizes for spy in Spy.seen if len(spy.sizes) == 6]
    assert len(played) == 2 and played[0][0] == 0 < sum(played[0]), "the first window is empty"
    assert all(2.0 <= result.metrics["decision_ms_p99"] < 200.0 for result in results)
    # Once more, on a copy of its own and on a batch.
    assert [spy.sizes for spy in Spy.seen if len(spy.sizes) != 6] == [
        [size for size in played[0] if size][:1]
    ]


def test_a_yardstick_that_only_measures_has_every_column(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, ruler="Ruler")
    ruler, uniroute = run_jobs(
        make_jobs([router("ruler"), router("uniroute")], CONDITIONS[:1], [3]), gap=True
    )
    assert ruler.job.router.label == "ruler"
    assert list(ruler.metrics) == list(uniroute.metrics)
    assert ruler.metrics["arrivals"] == uniroute.metrics["arrivals"] == 6
    assert (ruler.metrics["gap"], ruler.metrics["quality"], ruler.curves) == (None, None, {})
    assert not router("ruler").plays and router("optimal").plays
