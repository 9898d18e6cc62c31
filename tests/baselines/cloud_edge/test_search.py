"""What a change of an assignment costs, and where a descent ends."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from routing_baselines.cloud_edge.plan import NONE, place, total_cost
from routing_baselines.cloud_edge.search import change, descend
from tests.baselines.cloud_edge.search_cases import Start, changed, changes, starts


@given(starts())
@settings(max_examples=60, deadline=None)
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
@settings(max_examples=60, deadline=None)
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
