"""What is kept of decisions: their times, and how far they are from the optimum."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from hypothesis import given
from hypothesis import strategies as st

from routing_gym.cloud_edge.evaluator import BatchEvaluator, BatchTables
from routing_gym.evaluation import decisions
from routing_gym.evaluation.decisions import (
    DECISION_METRICS,
    Bounds,
    DecisionLog,
    decision_percentiles,
    legal_choices,
    missing_solver,
)
from routing_gym.evaluation.runner import ENVIRONMENTS, Condition
from routing_gym.policy import Policy, make_policy
from tests.evaluation.cloud_edge_runs import (
    Cautious,
    Certain,
    Slow,
    Spy,
    Stubborn,
    Teller,
    batch,
    best_objective,
    condition,
    several,
    without_solver,
)

SMALL = several("small", rate_per_s=1.0, max_requests=3)


def make_env(place: Condition) -> Any:
    return gym.make_vec(
        ENVIRONMENTS["cloud_edge"],
        num_envs=1,
        configs=[place.config],
        autoreset_mode=AutoresetMode.DISABLED,
    )


def played(
    policy: Policy, place: Condition, seed: int, bounds: Bounds | None
) -> tuple[DecisionLog, list[BatchTables], Any]:
    """Play an episode through a log; return it, the batches that were shown, and the environment."""
    envs, log, batches = make_env(place), DecisionLog(policy, bounds), []
    observation, info = envs.reset(seed=[seed])
    state, start, over = policy.initial_state([7]), np.ones(1, bool), False
    while not over:
        batches.append(batch(observation))
        actions, state = log.predict(observation, state, start, info["action_mask"])
        observation, _, _, [over], info = envs.step(actions)
        start = np.zeros(1, bool)
    return log, batches, envs.unwrapped


class Counted(Bounds):
    """Bounds that count how often something is solved."""

    def __init__(self) -> None:
        super().__init__()
        self.solved = 0
        predict = self._solver.predict

        def count(*args: Any, **kwargs: Any) -> Any:
            self.solved += 1
            return predict(*args, **kwargs)

        self._solver.predict = count


# The gap


@pytest.mark.parametrize("name", ["round_robin", "uniroute", "cema", "optimal"])
def test_the_gap_is_to_the_best_of_all_assignments(name: str) -> None:
    policy = make_policy(f"cloud_edge/{name}")
    for seed in (1, 2, 3):
        log, batches, env = played(policy, SMALL, seed, Bounds())
        filled = [tables for tables in batches if len(tables.infer)]
        assert 1 <= len(filled) < len(batches), "some windows must be empty, and not all"
        best = [best_objective(tables) for tables in filled]
        metrics = log.metrics()
        assert metrics["bound"] == pytest.approx(np.mean(best), abs=1e-8)
        predicted = env.episode_metrics(0)["objective_predicted"]
        assert metrics["gap"] == pytest.approx(predicted - np.mean(best), abs=1e-5)
        assert metrics["unproven_windows"] == 0
        if name == "optimal":
            assert metrics["gap"] == pytest.approx(0.0, abs=1e-8)


def test_somebody_is_not_optimal() -> None:
    log, _, _ = played(make_policy("cloud_edge/round_robin"), SMALL, 1, Bounds())
    assert log.metrics()["gap"] > 0.1


def test_an_illegal_choice_is_judged_by_where_its_request_goes() -> None:
    moved = 0
    for seed in range(6):
        log, batches, env = played(Stubborn(), SMALL, seed, Bounds())
        went = env.assignment_log(0)
        values, choices = [], iter(went["destination"][went["window"] >= 0].tolist())
        for tables in batches:
            if count := len(tables.infer):
                values.append(float(BatchEvaluator(tables).objective([next(choices) for _ in range(count)])))
        assert log.metrics()["gap"] + log.metrics()["bound"] == pytest.approx(np.mean(values), abs=1e-9)
        moved += int(went["invalid"].sum())
    assert moved > 0, "every choice was legal"


@given(st.data())
def test_illegal_choices_go_round_to_the_next_legal_destination(data: Any) -> None:
    width = data.draw(st.integers(1, 5))
    rows = st.lists(st.booleans(), min_size=width, max_size=width).filter(any)
    legal = np.array(data.draw(st.lists(rows, min_size=1, max_size=4)))
    choices = np.array(
        data.draw(st.lists(st.integers(0, width - 1), min_size=len(legal), max_size=len(legal)))
    )

    def walk(choice: int, allowed: Sequence[bool]) -> int:
        while not allowed[choice]:
            choice = (choice + 1) % width
        return choice

    assert legal_choices(choices, legal).tolist() == [
        walk(choice, row) for choice, row in zip(choices.tolist(), legal.tolist(), strict=True)
    ]


# Bounds


def test_a_batch_is_solved_once_whoever_meets_it() -> None:
    one, bounds = condition(), Counted()
    gaps = [
        played(make_policy(f"cloud_edge/{name}"), one, 5, bounds)[0].metrics()
        for name in ("uniroute", "cema")
    ]
    assert bounds.solved == 1
    assert gaps[0]["bound"] == gaps[1]["bound"]
    played(make_policy("cloud_edge/uniroute"), one, 6, bounds)
    assert bounds.solved == 2, "another batch has another bound"


def test_other_weights_or_backlogs_are_another_batch() -> None:
    bounds = Counted()
    for place in (condition(), condition(weights=[0.7, 0.1, 0.1, 0.1])):
        played(make_policy("cloud_edge/uniroute"), place, 5, bounds)
    assert bounds.solved == 2
    slow = several(rate_per_s=8.0, edge_only_share=0.0, outage_probability=0.0)
    logs = [
        played(make_policy(f"cloud_edge/{name}"), slow, 5, bounds)[0] for name in ("round_robin", "uniroute")
    ]
    kept = [log.curves()["bound"] for log in logs]
    assert kept[0][0] == kept[1][0], "nothing is carried into the first window"
    assert kept[0][1:] != kept[1][1:]


def test_a_proven_bound_serves_others_and_an_unproven_one_only_its_router() -> None:
    one, bounds = condition(), Counted()
    log, _, _ = played(Cautious(), one, 5, bounds)
    assert (log.metrics()["bound"], log.metrics()["unproven_windows"]) == (-1.0, 1)
    assert bounds.solved == 0
    log, _, _ = played(Spy(), one, 5, bounds)
    assert log.metrics()["bound"] > 0 and log.metrics()["unproven_windows"] == 0
    assert bounds.solved == 1
    played(Certain(), one, 6, bounds)
    log, _, _ = played(Spy(), one, 6, bounds)
    assert log.metrics()["bound"] == 0.0
    assert bounds.solved == 1


def test_without_bounds_there_is_no_gap() -> None:
    log, _, _ = played(Certain(), condition(), 5, None)
    assert [log.metrics()[name] for name in ("gap", "bound", "unproven_windows")] == [None] * 3
    assert "bound" not in log.curves()


def test_what_keeps_bounds_from_being_proven_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("highspy", reason="needs the extra `optimal`")
    assert missing_solver() is None
    without_solver(monkeypatch)
    missing = missing_solver()
    assert missing is not None and "highspy" in missing
    with pytest.raises(ImportError, match="highspy"):
        Bounds()


# Times and curves


def test_empty_windows_are_kept_as_zeros_and_count_for_nothing() -> None:
    spy = Spy()
    log, batches, _ = played(spy, SMALL, 1, Bounds())
    sizes = [len(tables.infer) for tables in batches]
    assert spy.sizes == sizes and 0 in sizes
    curves = log.curves()
    for name in ("decision_ms", "bound"):
        assert len(curves[name]) == len(sizes)
        assert [value > 0 for value in curves[name]] == [size > 0 for size in sizes]
    times = np.array(curves["decision_ms"])[np.array(sizes) > 0]
    assert log.metrics()["decision_ms_median"] == pytest.approx(np.median(times), abs=1e-4)
    assert log.metrics()["decision_ms_p99"] == pytest.approx(times.max(), abs=1e-4)


def test_an_episode_without_requests_has_no_decisions() -> None:
    log, _, _ = played(Spy(), several(rate_per_s=0.0), 1, Bounds())
    assert log.metrics() == {**dict.fromkeys(DECISION_METRICS), "unproven_windows": 0}
    assert log.curves() == {"decision_ms": [0.0] * 6, "bound": [0.0] * 6}


def test_only_the_decision_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the log's own work nor the solver's is a part of it."""
    monkeypatch.setattr(Slow, "decided", True)
    bounds = Bounds()
    of = bounds.of

    def slow(*args: Any) -> Any:
        decisions.time.sleep(0.1)
        return of(*args)

    monkeypatch.setattr(bounds, "of", slow)
    log, _, _ = played(Slow(), condition(), 1, bounds)
    assert 2.0 <= log.metrics()["decision_ms_median"] < 60.0


def test_convergence_is_that_of_the_first_batch() -> None:
    log, batches, _ = played(Teller(), several(rate_per_s=3.0), 2, None)
    first, *others = [len(tables.infer) for tables in batches if len(tables.infer)]
    assert first != others[-1]
    assert log.curves()["convergence"] == [[0.001, float(first)], [0.002, 0.25]]
    silent, _, _ = played(Spy(), SMALL, 2, None)
    assert "convergence" not in silent.curves()


def test_a_log_changes_nothing_of_what_is_played() -> None:
    policy = make_policy("cloud_edge/cema")
    _, _, watched = played(policy, several(), 3, Bounds())
    envs = make_env(several())
    observation, info = envs.reset(seed=[3])
    state, over = policy.initial_state([7]), False
    while not over:
        actions, state = policy.predict(observation, state, action_masks=info["action_mask"])
        observation, _, _, [over], info = envs.step(actions)
    assert watched.assignment_log(0).tobytes() == envs.unwrapped.assignment_log(0).tobytes()


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=250))
def test_percentiles_are_a_median_and_a_nearest_rank(times: list[float]) -> None:
    found = decision_percentiles(np.array(times))
    ordered = sorted(times)
    middle = ordered[(len(times) - 1) // 2], ordered[len(times) // 2]
    assert found["decision_ms_median"] == pytest.approx(sum(middle) / 2)
    assert found["decision_ms_p99"] == ordered[math.ceil(99 * len(times) / 100) - 1]


def test_percentiles_of_nothing_are_none() -> None:
    assert decision_percentiles(np.zeros(0)) == {"decision_ms_median": None, "decision_ms_p99": None}
