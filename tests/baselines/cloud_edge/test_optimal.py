"""The exact optimum: equal to exhaustive search, and `optimal` only with a proof."""

from __future__ import annotations

import random
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from routing_baselines.cloud_edge.optimal import PROOF, Optimal, proven_bound, solve
from routing_baselines.cloud_edge.relaxation import relax
from routing_gym.cloud_edge.evaluator import BatchEvaluator, BatchTables, term_bounds
from tests.cloud_edge import cases
from tests.cloud_edge.observations import observe, row, stack

EQUAL = (0.25, 0.25, 0.25, 0.25)


def draw_tables(
    rng: np.random.Generator,
    count: int,
    width: int,
    *,
    speedup: float = 2.0,
    backlog: float = 0.0,
    weights: tuple[float, ...] = EQUAL,
) -> BatchTables:
    """Return random tables; at a low speed-up, in which queues matter."""
    loss, cost, energy, infer, transfer = rng.random((5, count, width))
    return BatchTables(
        loss,
        cost,
        energy,
        infer + 0.1,
        transfer,
        legal=cases.random_legality(rng, count, width, 0.8),
        backlog=rng.exponential(1.0, width) * (rng.random(width) < 0.5) * backlog,
        speedup=1.0 + (speedup - 1.0) * rng.random(width),
        weights=np.array(weights),
    )


def batches() -> st.SearchStrategy[BatchTables]:
    """Batches with many ties and terms whose bounds coincide, and others in which queues matter."""
    weight = st.sampled_from([0.0, 0.1, 0.5, 1.0])
    crowded = st.builds(
        draw_tables,
        st.integers(0, 2**32 - 1).map(np.random.default_rng),
        st.integers(1, 5),
        st.integers(1, 4),
        speedup=st.sampled_from([1.0, 1.5, 3.0, 20.0]),
        backlog=st.sampled_from([0.0, 0.0, 1.0, 10.0]),
        weights=st.just(EQUAL) | st.tuples(weight, weight, weight, weight),
    )
    return crowded | cases.batches(1, 5, 4).map(lambda case: cases.compiled(case.tables))


def every_assignment(tables: BatchTables) -> np.ndarray:
    """Return all legal assignments (n, R)."""
    legal = [np.flatnonzero(row) for row in tables.legal]
    grids = np.meshgrid(*legal, indexing="ij")
    return np.stack([grid.ravel() for grid in grids], axis=1)


def crowded(count: int = 14) -> BatchTables:
    """Return a batch of which the relaxation finds neither the optimum nor its value."""
    return draw_tables(np.random.default_rng(1), count, 3, speedup=1.5, backlog=1.0)


def check(tables: BatchTables, rank: float = 0.01) -> None:
    """Hold `solve` against exhaustive search, alone and with an incumbent of some rank (0 best, 1 worst)."""
    evaluator = BatchEvaluator(tables)
    assignments = every_assignment(tables)
    objective = evaluator.objective(assignments)
    least = float(objective.min())
    incumbent = assignments[np.argsort(objective)[int(rank * (len(objective) - 1))]]
    for found in (solve(tables), solve(tables, incumbent)):
        assert found.status == "optimal" and found.proven
        assert found.objective == float(evaluator.objective(found.assignment))
        assert found.objective == pytest.approx(least, rel=0, abs=PROOF * max(1.0, least))
        assert found.bound <= found.objective
        assert found.bound == pytest.approx(least, rel=0, abs=PROOF * max(1.0, least))


@settings(deadline=None, max_examples=150)
@given(batches(), st.sampled_from([0.0, 0.01, 0.1, 1.0]))
def test_equals_exhaustive_search(tables: BatchTables, rank: float) -> None:
    check(tables, rank)


@pytest.mark.parametrize(("count", "width"), [(16, 2), (10, 3), (8, 4), (5, 8)])
@pytest.mark.parametrize("backlog", [0.0, 2.0])
def test_equals_exhaustive_search_of_larger_batches(count: int, width: int, backlog: float) -> None:
    check(draw_tables(np.random.default_rng(count), count, width, speedup=2.0, backlog=backlog))


def test_equals_exhaustive_search_where_destinations_are_far_behind() -> None:
    """Some are best left alone until the others are done; some are worth the wait, and then for several."""
    for seed in range(60):
        check(draw_tables(np.random.default_rng(seed), 6, 3, backlog=3.0), rank=1.0)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize(("count", "width"), [(19, 2), (12, 3), (9, 4), (6, 10)])
def test_equals_exhaustive_search_up_to_a_million(count: int, width: int, seed: int) -> None:
    rng = np.random.default_rng([seed, count])
    check(draw_tables(rng, count, width, speedup=rng.choice([1.0, 2.0, 5.0]), backlog=seed % 3))


def test_hand_worked_batch() -> None:
    """Two equal requests, a good and a bad destination; sharing the good one costs the time of one more."""
    ones = np.ones((2, 2))
    tables = BatchTables(
        loss=np.array([[0.0, 1.0], [0.0, 1.0]]),
        cost=ones,
        energy=ones,
        infer=ones,
        transfer=0.0 * ones,
        legal=ones > 0,
        backlog=np.zeros(2),
        speedup=np.ones(2),
        weights=np.array([0.2, 0.3, 0.3, 0.2]),
    )
    # T is from 1 to 2. Together on the good one: Q = 0, T = 2, J = .2; apart: Q = .5, T = 1, J = .1.
    found = solve(tables)
    assert found.objective == pytest.approx(0.1)
    assert sorted(found.assignment) == [0, 1]
    # Without queues both fit on the good one: the relaxation alone proves nothing here.
    assert relax(tables, term_bounds(tables)).bound == pytest.approx(0.0)


def test_a_batch_without_requests() -> None:
    empty = draw_tables(np.random.default_rng(0), 0, 3)
    found = solve(empty)
    assert (found.assignment.shape, found.objective, found.bound, found.status) == ((0,), 0.0, 0.0, "optimal")


@settings(deadline=None, max_examples=60)
@given(batches(), st.randoms(use_true_random=False))
def test_the_order_of_destinations_changes_nothing(tables: BatchTables, shuffler: random.Random) -> None:
    order = list(range(len(tables.backlog)))
    shuffler.shuffle(order)
    other = cases.reindexed(tables, destinations=order)
    assert solve(other).objective == pytest.approx(solve(tables).objective, rel=1e-9, abs=PROOF)


@settings(deadline=None, max_examples=200)
@given(batches())
def test_the_relaxation_bounds_every_assignment(tables: BatchTables) -> None:
    """So do its bounds of pairs, for the assignments that use the pair."""
    evaluator = BatchEvaluator(tables)
    assignments = every_assignment(tables)
    objective = evaluator.objective(assignments)
    relaxation = relax(tables, evaluator.bounds)
    assert relaxation.bound <= objective.min()
    pair_bounds = relaxation.pair_bounds()
    np.testing.assert_array_equal(np.isinf(pair_bounds), ~tables.legal)
    for r, d in zip(*np.nonzero(tables.legal), strict=True):
        assert pair_bounds[r, d] <= objective[assignments[:, r] == d].min()
    rows = np.arange(assignments.shape[1])
    late = relaxation.rate * (evaluator.terms(assignments)[:, 3] - relaxation.origin)
    np.testing.assert_allclose(relaxation.pair[rows, assignments].sum(axis=1) + late, objective, atol=1e-12)


@settings(deadline=None, max_examples=60)
@given(batches())
def test_the_relaxation_is_exact_without_queues(tables: BatchTables) -> None:
    fast = tables._replace(speedup=np.full(len(tables.backlog), 1e6))
    evaluator = BatchEvaluator(fast)
    assignments = every_assignment(fast)
    objective = evaluator.objective(assignments)
    least = objective.min()
    relaxation = relax(fast, evaluator.bounds)
    assert relaxation.bound == pytest.approx(least, rel=1e-9, abs=1e-9)
    assert evaluator.objective(relaxation.assignment()) == pytest.approx(least, rel=1e-9, abs=1e-9)
    pair_bounds = relaxation.pair_bounds()
    for r, d in zip(*np.nonzero(tables.legal), strict=True):
        using = objective[assignments[:, r] == d].min()
        assert pair_bounds[r, d] == pytest.approx(using, rel=1e-9, abs=1e-9)


def test_bounds_allow_for_rounding() -> None:
    """Where bounds all but coincide, J is little but rounding; nothing false is proven of it."""
    for seed in range(60):
        rng = np.random.default_rng(seed)
        tables = draw_tables(rng, 4, 3)
        tables = tables._replace(energy=1e3 + 1e-11 * tables.energy, weights=np.array([0.1, 0.1, 0.7, 0.1]))
        least = BatchEvaluator(tables).objective(every_assignment(tables)).min()
        found = solve(tables)
        assert found.bound <= least
        assert not found.proven or found.objective <= least + PROOF


@pytest.mark.parametrize("limit", [0.0, 1e-6])
def test_without_time_there_is_a_bound_but_no_proof(limit: float) -> None:
    tables = crowded()
    best = solve(tables)
    found = solve(tables, time_limit_s=limit)
    assert best.proven and not found.proven and found.status == "time limit"
    assert found.bound <= best.objective < found.objective
    assert found.objective - found.bound > PROOF


def test_is_never_worse_than_the_incumbent() -> None:
    tables = crowded()
    best = solve(tables)
    found = solve(tables, best.assignment, time_limit_s=0.0)
    assert found.status == "time limit"
    assert found.objective == best.objective
    np.testing.assert_array_equal(found.assignment, best.assignment)
    assert proven_bound(tables, best.assignment) == pytest.approx(best.objective, rel=0, abs=PROOF)


def test_a_good_incumbent_can_be_all_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where an assignment meets the relaxation's bound, no program is solved, and highspy not needed."""
    ones = np.ones((2, 2))
    # All the same, but two requests on one destination are slower than one on each.
    tables = BatchTables(*[ones] * 5, ones > 0, np.zeros(2), np.ones(2), np.array(EQUAL))
    monkeypatch.setitem(sys.modules, "highspy", None)
    with pytest.raises(ImportError, match="highspy"):
        solve(tables)
    assert solve(tables, [0, 1]).status == "optimal"


def test_tells_how_it_converged() -> None:
    found = solve(crowded())
    seconds, objective = found.convergence.T
    assert len(seconds) >= 2
    assert (np.diff(seconds) >= 0).all() and seconds[-1] <= found.seconds
    assert (np.diff(objective) < 0).all() and objective[-1] == found.objective


def test_another_solver_in_the_process_does_not_matter() -> None:
    """HiGHS keeps one set of threads per process, made for the number that its first user asked for."""
    highspy = pytest.importorskip("highspy")
    highspy.Highs.resetGlobalScheduler(True)
    other = highspy.Highs()
    other.setOptionValue("output_flag", False)
    other.setOptionValue("threads", 2)
    other.addVar(0.0, 1.0)
    assert other.run() == highspy.HighsStatus.kOk
    assert solve(crowded()).proven


def test_errors() -> None:
    tables = crowded(3)
    with pytest.raises(ValueError, match="weights has -1; all of it must be finite and not negative"):
        solve(tables._replace(weights=np.array([1.0, 0.0, 0.0, -1.0])))
    with pytest.raises(ValueError, match="assignments have shape"):
        solve(tables, [0])
    with pytest.raises(ValueError, match="time_limit_s = 0: must be a number above 0"):
        Optimal(time_limit_s=0)


def test_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "highspy", None)
    with pytest.raises(ImportError, match=r'pip install "routing-gym\[optimal\]"'):
        Optimal()


def test_the_router_solves_each_row() -> None:
    rng = np.random.default_rng(3)
    shown = stack([observe(draw_tables(rng, count, 3), slots=6) for count in (6, 0, 4)])
    router = Optimal()
    assert (router.family, router.role, router.acts_on) == ("cloud_edge", "yardstick", "batch")
    state = router.initial_state([7, 8, 9])
    actions, after = router.predict(shown, state)
    np.testing.assert_array_equal(after, state)
    assert router.diagnostics()[1] == {}
    for k, told in enumerate(router.diagnostics()):
        tables = BatchTables.from_observation(row(shown, (k,)))
        count = len(tables.infer)
        assert (actions[k, count:] == 0).all()
        if count:
            found = solve(tables)
            np.testing.assert_array_equal(actions[k, :count], found.assignment)
            assert told["status"] == "optimal" and told["bound"] == found.bound
            assert told["convergence"][-1][1] == found.objective


def test_where_there_is_no_choice_there_is_a_proof() -> None:
    """Bounds that nearly coincide make the relaxation's rounding large; J is 0 all the same."""
    rng = np.random.default_rng(1)
    for _ in range(500):
        count = int(rng.integers(1, 6))
        shape = (count, 1)
        tables = BatchTables(
            rng.random(shape),
            rng.random(shape),
            rng.random(shape),
            rng.random(shape),
            0.1 + 1e-16 * rng.integers(0, 9, shape),
            np.ones(shape, bool),
            np.zeros(1),
            np.full(1, 20.0),
            np.full(4, 0.25),
        )
        solution = solve(tables)
        assert solution.proven and solution.bound <= solution.objective
