"""Bounds under caps on the completion time, what they rule out, and the levels of backlog that are tried."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from routing_baselines.cloud_edge.multistart import (
    advance,
    begin,
    change_levels,
    lower_bound,
    make_search,
    polish,
)
from routing_gym.cloud_edge.evaluator import BatchEvaluator, BatchTables
from tests.baselines.cloud_edge.search_cases import (
    Priced,
    changed,
    changes,
    crowded,
    every_assignment,
    rented,
)
from tests.cloud_edge import cases


@given(cases.batches(1, 5, 4), st.sampled_from([0.0, 10.0]), st.integers(1, 30))
@settings(max_examples=50, deadline=None)
def test_a_lower_bound_holds_for_every_assignment_that_completes_by_the_cap(
    case: cases.Case, price: float, steps: int
) -> None:
    tables = cases.compiled(case.tables)
    priced = rented(tables, price, 1.0)
    plan = priced.plan(np.array(case.assignments[0]))
    rate = float(plan.total[0]["makespan_price"])
    assignments = every_assignment(tables)
    completion = priced.evaluator.terms(assignments)[:, 3]
    rest = np.array([priced.cost(each) for each in assignments]) - rate * completion
    multipliers = np.zeros(len(tables.backlog))
    for cap in np.quantile(completion, [1.0, 0.5, 0.1, 0.0], method="higher"):
        least = rest[completion <= cap].min()
        assert lower_bound(plan, cap, least + 1.0, steps, multipliers) <= least + 1e-9
    earliest = np.where(tables.legal, tables.backlog + tables.infer + tables.transfer, np.inf).min(axis=1)
    assert lower_bound(plan, earliest.max() * 0.99 - 1e-3, 1.0, steps, multipliers) == np.inf


def test_a_room_that_is_full_up_to_rounding_is_not_worth_everything() -> None:
    # A room of 4/64 s at a speed-up of 3, in binary fractions, is a little less than four times 1/64.
    sixtyfourth, ones = np.full((4, 1), 1 / 64), np.ones((4, 1))
    tables = BatchTables(
        ones, ones, ones, sixtyfourth, sixtyfourth, ones > 0, np.zeros(1), np.array([3.0]), np.full(4, 0.25)
    )
    plan = rented(tables, 0.0, 1.0).plan(np.zeros(4, int))
    completion = float(BatchEvaluator(tables).terms(np.zeros(4, int))[3])
    assert 4 / 64 > 3.0 * (completion - 1 / 64)
    bound = lower_bound(plan, completion, 1.0, 20, np.zeros(1))
    assert bound == pytest.approx(float(plan.total[0]["origin"]), abs=1e-9)


def test_more_steps_bound_better_up_to_the_value_of_a_problem_without_integrality() -> None:
    # Four equal requests, a cheap destination with room for half of them: three quarters of the difference.
    shape = (4, 2)
    tables = BatchTables(
        loss=np.tile([0.0, 1.0], (4, 1)),
        cost=np.zeros(shape),
        energy=np.zeros(shape),
        infer=np.ones(shape),
        transfer=np.zeros(shape),
        legal=np.ones(shape, bool),
        backlog=np.zeros(2),
        speedup=np.array([1.0, 2.0]),
        weights=np.array([1.0, 0.0, 0.0, 0.0]),
    )
    plan = rented(tables, 0.0, 1.0).plan(np.zeros(4, int))
    bounds = [lower_bound(plan, 1.0, 0.75, steps, np.zeros(2)) for steps in (1, 2, 40)]
    assert bounds[0] == 0.0
    assert bounds[0] < bounds[1] <= bounds[2]
    assert bounds[2] == pytest.approx(0.75)
    # A second of capacity is worth what the dear destination costs more, a quarter.
    multipliers = np.zeros(2)
    lower_bound(plan, 1.0, 0.75, 40, multipliers)
    assert multipliers[0] == pytest.approx(0.25)
    assert multipliers[1] == 0.0


@pytest.mark.parametrize("price", [0.0, 10.0])
def test_no_cap_or_pair_is_ruled_out_that_holds_the_optimum(price: float) -> None:
    for seed in range(30):
        tables = crowded(np.random.default_rng(seed), 6, 3)
        priced = rented(tables, price, 1.0)
        assignments = every_assignment(tables)
        costs = np.array([priced.cost(each) for each in assignments])
        best = assignments[costs.argmin()]
        completion = float(priced.evaluator.terms(best)[3])
        search = make_search(tables, 8, 1.0, price)
        begin(search, 20)
        while search.value[0] > costs.min() + 1e-9:
            open_caps = search.caps["bound"].copy()
            assert advance(search), "it gave up before the optimum"
            done = np.flatnonzero((search.caps["bound"] == np.inf) & (open_caps < np.inf))
            cap = search.caps[done[0]]
            if cap["after"] <= completion <= cap["by"]:
                for r, d in enumerate(best):
                    count = search.plan.requests["options"][r]
                    assert d in search.plan.options[r, :count]
                break


@pytest.mark.parametrize(("price", "window_s"), [(0.0, 1.0), (10.0, 1.0), (3.0, 0.2)])
def test_a_search_knows_what_its_best_costs_and_its_objective(price: float, window_s: float) -> None:
    for seed in range(20):
        tables = crowded(np.random.default_rng(seed), 12, 4)
        search = make_search(tables, 4, window_s, price)
        priced = rented(tables, price, window_s)

        def check(search: Any = search, priced: Priced = priced) -> None:
            assert search.value[0] == pytest.approx(priced.cost(search.best), abs=1e-9)
            assert search.value[1] == pytest.approx(priced.evaluator.objective(search.best), abs=1e-9)

        begin(search, 20)
        check()
        while advance(search):
            check()
        polish(search)
        check()
        change_levels(search, np.array([0.5, 1.0]))
        check()


def long_batch(loss: list[list[float]], infer: list[list[float]], legal: list[list[int]]) -> BatchTables:
    """Return a batch of so high a speed-up that a destination's longest request alone counts."""
    shape = np.shape(loss)
    return BatchTables(
        np.array(loss),
        np.zeros(shape),
        np.zeros(shape),
        np.array(infer),
        np.zeros(shape),
        np.array(legal, bool),
        backlog=np.zeros(shape[1]),
        speedup=np.full(shape[1], 50.0),
        weights=np.array([0.999, 0.0, 0.0, 0.001]),
    )


@pytest.mark.parametrize(
    ("tables", "stuck", "best", "levels"),
    [
        # Three requests that 0 serves slowly and a little cheaper. Only all of them leave no backlog there.
        (
            long_batch([[0.0, 0.1, 0.2]] * 3, [[4.0, 1.0, 1.0]] * 3, [[1, 1, 1]] * 3),
            [0, 0, 0],
            [1, 1, 1],
            [1.0],
        ),
        # Two long ones, each alone where it is cheapest. On 0, both leave no more backlog than one does.
        (
            long_batch([[0.1, 0.0, 0.0]] * 2, [[4.2, 4.0, 4.0]] * 2, [[1, 1, 0], [1, 0, 1]]),
            [1, 2],
            [0, 0],
            [],
        ),
    ],
)
def test_changing_levels_goes_on_where_no_single_change_gains(
    tables: BatchTables, stuck: list[int], best: list[int], levels: list[float]
) -> None:
    price = 10000.0
    priced = rented(tables, price, 1.0)
    assert priced.cost(np.array(best)) == min(priced.cost(each) for each in every_assignment(tables))
    for each in changes(tables, np.array(stuck), chains=True):
        assert priced.cost(changed(np.array(stuck), *each)) > priced.cost(np.array(stuck))
    search = make_search(tables, 4, 1.0, price)
    begin(search, 20)
    search.best[:], search.value[:] = stuck, priced.cost(np.array(stuck))
    assert change_levels(search, np.array(levels))
    assert search.best.tolist() == best
    assert not change_levels(search, np.array(levels))
