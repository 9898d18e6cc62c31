"""Local search: what a change costs, where a descent ends, what bounds rule out, what the routers find."""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from routing_baselines.cloud_edge.local_search import LocalSearch, PricedSearch
from routing_baselines.cloud_edge.multistart import (
    advance,
    begin,
    change_levels,
    lower_bound,
    make_search,
    polish,
)
from routing_baselines.cloud_edge.plan import NONE, Plan, make_plan, place, settle, total_cost
from routing_baselines.cloud_edge.search import change, descend
from routing_gym.cloud_edge.config import CloudEdgeConfig
from routing_gym.cloud_edge.evaluator import BatchEvaluator, BatchTables
from tests.cloud_edge import cases
from tests.cloud_edge.observations import make_observation, observe, random_observation, row, stack


class Priced(NamedTuple):
    """Prices of times, and the plain sum of J and what they make of an assignment."""

    evaluator: BatchEvaluator
    makespan: float  # a factor of what T costs in J
    overshoot: float
    caps: np.ndarray
    rents: np.ndarray
    window_s: float

    def cost(self, assignment: np.ndarray) -> float:
        evaluator = self.evaluator
        terms = evaluator.terms(assignment)
        width = evaluator.bounds[3, 1] - evaluator.bounds[3, 0]
        rate = evaluator.tables.weights[3] / width if width > 0.0 else 0.0
        cost = float(evaluator.objective(assignment)) + (self.makespan - 1.0) * rate * float(terms[3])
        finish = evaluator.finish_parts(assignment).finish
        for d in range(len(self.caps)):
            last = finish[assignment == d].max(initial=0.0)
            cost += self.overshoot * max(0.0, last - self.caps[d])
        left = np.maximum(0.0, evaluator.tables.backlog + evaluator.new_work(assignment) - self.window_s)
        return cost + float(self.rents @ left)

    def plan(self, assignment: np.ndarray) -> Plan:
        """Return the settled plan."""
        plan = make_plan(self.evaluator.tables, self.evaluator.bounds, self.window_s)
        plan.requests["destination"] = assignment
        plan.destinations["cap"], plan.destinations["rent"] = self.caps, self.rents
        plan.total["makespan_price"] *= self.makespan
        plan.total["overshoot_price"] = self.overshoot
        settle(plan)
        return plan


class Start(NamedTuple):
    priced: Priced
    assignment: np.ndarray
    rng: np.random.Generator


@st.composite
def starts(draw: st.DrawFn) -> Start:
    """Batches with ties or without, an assignment, and prices such as a search sets, or none beside J's."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    if draw(st.booleans()):
        case = draw(cases.batches(1, 8, 5))
    else:
        case = cases.random_batch(rng, draw(st.integers(1, 9)), draw(st.integers(1, 5)))
    tables = cases.compiled(case.tables)
    width = len(tables.backlog)
    shape = draw(st.sampled_from(["J", "capped", "rented", "both"]))
    priced = Priced(
        BatchEvaluator(tables),
        makespan=0.0 if shape == "capped" else 1.0,
        overshoot=rng.exponential(1.0) if shape in ("capped", "both") else 0.0,
        caps=rng.exponential(2.0, width),
        rents=rng.exponential(1.0, width) * (rng.random(width) < 0.7) * (shape in ("rented", "both")),
        window_s=float(rng.exponential(1.0)),
    )
    return Start(priced, np.array(case.assignments[0]), rng)


def changes(tables: BatchTables, assignment: np.ndarray, chains: bool) -> Any:
    """Yield all moves, swaps and (if asked) chains of two moves, as `change` takes them."""
    count, width = tables.legal.shape
    for r, b in itertools.product(range(count), range(width)):
        if b == assignment[r] or not tables.legal[r, b]:
            continue
        yield r, b, NONE, NONE
        for s in np.flatnonzero(assignment == b):
            for c in range(width):
                if c != b and tables.legal[s, c] and (chains or c == assignment[r]):
                    yield r, b, int(s), c


def changed(assignment: np.ndarray, r: int, b: int, s: int, c: int) -> np.ndarray:
    after = assignment.copy()
    after[r] = b
    if s != NONE:
        after[s] = c
    return after


@given(starts())
@settings(max_examples=100, deadline=None)
def test_changes_cost_what_a_full_evaluation_says_along_any_path(start: Start) -> None:
    priced, assignment, rng = start
    plan = priced.plan(assignment)
    tables = priced.evaluator.tables
    assert total_cost(plan) == pytest.approx(priced.cost(assignment), abs=1e-9)
    for _ in range(12):
        possible = list(changes(tables, assignment, chains=True))
        if not possible:
            return
        r, b, s, c = possible[rng.integers(len(possible))]
        before = priced.cost(assignment)
        cost = change(plan, r, b, s, c)
        assignment = changed(assignment, r, b, s, c)
        assert cost == pytest.approx(priced.cost(assignment) - before, abs=1e-9)
        place(plan, r, b)
        if s != NONE:
            place(plan, s, c)
        assert (plan.requests["destination"] == assignment).all()
        assert total_cost(plan) == pytest.approx(priced.cost(assignment), abs=1e-9)
        # Nothing drifts: all figures are those of a plan that is settled anew.
        anew = priced.plan(assignment)
        for kept, fresh in ((plan.requests, anew.requests), (plan.destinations, anew.destinations)):
            assert (kept == fresh).all()
        for name in ("first", "second", "third"):
            assert plan.total[name] == anew.total[name]


@given(starts())
@settings(max_examples=100, deadline=None)
def test_a_descent_ends_where_nothing_gains_and_never_above_its_start(start: Start) -> None:
    priced, assignment, _ = start
    tables = priced.evaluator.tables
    for ejecting in (False, True):
        plan = priced.plan(assignment)
        descend(plan, ejecting)
        found = plan.requests["destination"].copy()
        cost = priced.cost(found)  # which raises if it is not legal
        assert cost <= priced.cost(assignment) + 1e-9
        for each in changes(tables, found, chains=True):
            if ejecting or each[2] == NONE:
                assert priced.cost(changed(found, *each)) >= cost - 1e-9


def every_assignment(tables: BatchTables) -> np.ndarray:
    """Return all legal assignments (n, R)."""
    return np.array(list(itertools.product(*(np.flatnonzero(legal) for legal in tables.legal))))


def rented(tables: BatchTables, price: float, window_s: float) -> Priced:
    """Return J and what `PricedSearch` pays beside it."""
    evaluator = BatchEvaluator(tables)
    width = evaluator.bounds[3, 1] - evaluator.bounds[3, 0]
    rent = price * tables.weights[3] / width if width > 0.0 else 0.0
    ones = np.ones(len(tables.backlog))
    return Priced(evaluator, 1.0, 0.0, np.inf * ones, rent * ones, window_s)


@given(cases.batches(1, 5, 4), st.sampled_from([0.0, 10.0]), st.integers(1, 30))
@settings(max_examples=80, deadline=None)
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


def crowded(rng: np.random.Generator, count: int, width: int, legal: float = 0.9) -> BatchTables:
    """Return a batch with backlog and low speed-ups, in which queues decide."""
    loss, cost, energy, infer, transfer = rng.random((5, count, width))
    return BatchTables(
        loss,
        cost,
        energy,
        infer + 0.1,
        0.1 * transfer,
        legal=cases.random_legality(rng, count, width, legal),
        backlog=rng.exponential(1.0, width) * (rng.random(width) < 0.5),
        speedup=1.0 + 2.0 * rng.random(width),
        weights=rng.dirichlet(np.ones(4)),
    )


def assign(router: LocalSearch, tables: BatchTables) -> np.ndarray:
    return router.assign(tables, np.uint64(0))[0]


@pytest.mark.parametrize("price", [0.0, 10.0])
def test_the_routers_find_the_optimum_of_nearly_all_small_batches(price: float) -> None:
    router = PricedSearch(price=price) if price else LocalSearch()
    gaps = []
    for seed in range(100):
        rng = np.random.default_rng(seed)
        tables = crowded(rng, int(rng.integers(1, 8)), int(rng.integers(1, 4)))
        priced = rented(tables, price, 1.0)
        cost = priced.cost(assign(router, tables))
        gaps.append(cost - min(priced.cost(each) for each in every_assignment(tables)))
    assert min(gaps) > -1e-9
    assert np.mean(np.array(gaps) < 1e-9) >= 0.98


@given(starts())
@settings(max_examples=40, deadline=None)
def test_what_the_routers_return_is_legal_the_same_again_and_no_change_improves_it(start: Start) -> None:
    tables = start.priced.evaluator.tables
    for router, price in ((LocalSearch(), 0.0), (PricedSearch(), 10.0)):
        priced = rented(tables, price, 1.0)
        found = assign(router, tables)
        cost = priced.cost(found)
        assert (assign(router, tables) == found).all()
        for each in changes(tables, found, chains=False):
            assert priced.cost(changed(found, *each)) >= cost - 1e-9
        # Nor is it above a start: the cheapest destinations.
        search = make_search(tables, router.caps, 1.0, price)
        begin(search, router.steps)
        assert cost <= search.value[0] + 1e-9


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


def test_without_backlog_left_the_priced_search_is_the_local_search() -> None:
    for seed in range(30):
        tables = crowded(np.random.default_rng(seed), 20, 4)
        local, priced = LocalSearch(caps=16), PricedSearch(caps=16)
        priced.configure([CloudEdgeConfig.create(window_s=1e6)])
        assert (assign(local, tables) == assign(priced, tables)).all()


def test_where_completion_times_do_not_differ_the_price_counts_for_nothing() -> None:
    tables = crowded(np.random.default_rng(0), 6, 3)
    flat = tables._replace(
        infer=np.ones_like(tables.infer), transfer=np.ones_like(tables.infer), speedup=np.full(3, 100.0)
    )
    found = assign(PricedSearch(), flat)
    cost = rented(flat, 0.0, 1.0).cost
    assert cost(found) == pytest.approx(min(cost(each) for each in every_assignment(flat)))


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


def test_each_row_is_priced_by_its_own_window() -> None:
    # 0 answers worse; 1 keeps a request longer than a window of 1 s, though not than one of 5 s.
    batch = make_observation(
        2, 2, 3, quality=[[0.5, 1.0]], infer_s=[[0.1, 3.0]], transfer_s=0.0, weights=[0.7, 0.0, 0.0, 0.3]
    )
    router = PricedSearch()
    assert router.predict(batch)[0].tolist() == [0, 0, 0]
    router.configure([CloudEdgeConfig.create(window_s=window) for window in (1.0, 5.0, 1.0)])
    actions, _ = router.predict(stack([batch] * 3))
    assert actions.tolist() == [[0, 0, 0], [1, 1, 0], [0, 0, 0]]
    assert LocalSearch().predict(batch)[0].tolist() == [1, 1, 0]


def test_rows_are_decided_alone_and_told_of_in_the_diagnostics() -> None:
    rng = np.random.default_rng(5)
    batches = [random_observation(rng, 4, 9, requests) for requests in (9, 0, 5, 9)]
    for router in (LocalSearch(), PricedSearch()):
        actions, _ = router.predict(stack(batches))
        told = list(router.diagnostics())
        for k, batch in enumerate(batches):
            alone, _ = router.predict(row(stack(batches), (k,)))
            assert (actions[k] == alone).all()
            if not batch["active"].any():
                assert told[k] == {}
                continue
            tables = BatchTables.from_observation(batch)
            convergence = told[k]["convergence"]
            assert convergence.ndim == 2
            assert convergence.shape[1] == 2
            assert (np.diff(convergence[:, 0]) > 0).all()
            if not isinstance(router, PricedSearch):
                assert (np.diff(convergence[:, 1]) <= 0).all()
            objective = BatchEvaluator(tables).objective(alone[: len(tables.infer)])
            assert convergence[-1, 1] == pytest.approx(objective, abs=1e-9)


def test_it_reaches_the_proven_optimum_of_large_crowded_batches_within_a_thousandth() -> None:
    pytest.importorskip("highspy", reason="the optimum needs the extra `optimal`")
    from routing_baselines.cloud_edge.optimal import solve

    gaps = []
    for seed in range(12):
        tables = crowded(np.random.default_rng(seed), 30, 5)
        found = assign(LocalSearch(), tables)
        solution = solve(tables, found)
        assert solution.proven
        objective = float(BatchEvaluator(tables).objective(found))
        gaps.append((objective - solution.objective) / objective)
    assert np.median(gaps) <= 1e-3
    assert max(gaps) <= 0.02


@pytest.mark.parametrize(
    ("cls", "given", "message"),
    [
        (LocalSearch, {"caps": 0}, r"caps = 0: must be at least 1"),
        (LocalSearch, {"steps": 0}, r"steps = 0: must be at least 1"),
        (PricedSearch, {"price": -1.0}, r"price = -1.0: must not be negative"),
        (PricedSearch, {"levels": [0.0]}, r"levels = \[0.0\]: each must be above 0 and at most 1"),
        (PricedSearch, {"levels": [0.5, 1.5]}, r"levels = \[0.5, 1.5\]: each must be above 0 and at most 1"),
    ],
)
def test_parameters_out_of_range_are_refused(cls: Any, given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        cls(**given)


def test_an_observation_in_single_precision_is_enough() -> None:
    tables = crowded(np.random.default_rng(3), 10, 4)
    seen = BatchTables.from_observation(observe(tables))
    found, _ = LocalSearch().predict(observe(tables))
    assert float(BatchEvaluator(seen).objective(found)) == pytest.approx(
        float(BatchEvaluator(seen).objective(assign(LocalSearch(), seen)))
    )
