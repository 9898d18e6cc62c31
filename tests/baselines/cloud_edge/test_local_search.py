"""The routers that search: optimal in nearly all small batches, and locally optimal in all."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from routing_baselines.cloud_edge.local_search import LocalSearch, PricedSearch
from routing_baselines.cloud_edge.multistart import begin, make_search
from routing_gym.cloud_edge.config import CloudEdgeConfig
from routing_gym.cloud_edge.evaluator import BatchEvaluator, BatchTables
from tests.baselines.cloud_edge.search_cases import (
    Start,
    changed,
    changes,
    crowded,
    every_assignment,
    rented,
    starts,
)
from tests.cloud_edge.observations import make_observation, observe, random_observation, row, stack


def assign(router: LocalSearch, tables: BatchTables) -> np.ndarray:
    return router.assign(tables, np.uint64(0))[0]


@pytest.mark.parametrize("price", [0.0, 10.0])
def test_the_routers_find_the_optimum_of_nearly_all_small_batches(price: float) -> None:
    router = PricedSearch(price=price) if price else LocalSearch()
    gaps = []
    for seed in range(80):
        rng = np.random.default_rng(seed)
        tables = crowded(rng, int(rng.integers(1, 8)), int(rng.integers(1, 4)))
        priced = rented(tables, price, 1.0)
        cost = priced.cost(assign(router, tables))
        gaps.append(cost - min(priced.cost(each) for each in every_assignment(tables)))
    assert min(gaps) > -1e-9
    assert np.mean(np.array(gaps) < 1e-9) >= 0.98


@given(starts())
@settings(max_examples=30, deadline=None)
def test_what_the_routers_return_is_legal_the_same_again_and_no_change_improves_it(start: Start) -> None:
    tables = start.priced.evaluator.tables
    for router, price in ((LocalSearch(), 0.0), (PricedSearch(price=10.0), 10.0)):
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


def test_each_row_is_priced_by_its_own_window() -> None:
    # 0 answers worse; 1 keeps a request longer than a window of 1 s, though not than one of 5 s.
    batch = make_observation(
        2, 2, 3, quality=[[0.5, 1.0]], infer_s=[[0.1, 3.0]], transfer_s=0.0, weights=[0.7, 0.0, 0.0, 0.3]
    )
    router = PricedSearch(price=10.0)
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
