"""The evaluator: equal to a plain reference, to numbers worked by hand, and true to J's laws."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from routing_gym.cloud_edge.catalogue import Catalogue, physics_table
from routing_gym.cloud_edge.evaluator import (
    BatchEvaluator,
    BatchTables,
    cross_router_objective,
    normalise,
    objective,
    pair_parts,
)
from tests.cloud_edge import reference
from tests.cloud_edge.cases import (
    Case,
    batches,
    compiled,
    random_batch,
    reference_destination,
    reindexed,
    unloaded,
)

RANDOM = settings(derandomize=True, database=None)


def near(expected: object) -> object:
    """Compare to 1e-12."""
    return pytest.approx(expected, rel=1e-12, abs=1e-12)


def assert_equal(case: Case) -> None:
    """Assert that evaluator and reference agree on every number of every assignment."""
    tables, assignments = case
    evaluator = BatchEvaluator(compiled(tables))
    assert evaluator.bounds == near(np.array(reference.bounds(tables)))
    terms, values = evaluator.terms(assignments), evaluator.objective(assignments)
    assert terms.shape == (len(assignments), 4) and values.shape == (len(assignments),)
    for k, assignment in enumerate(assignments):
        assert terms[k] == near(np.array(reference.terms(tables, assignment)))
        assert values[k] == near(reference.objective(tables, assignment))
        assert objective(terms[k], evaluator.bounds, evaluator.tables.weights) == near(values[k])
        parts = reference.finish_parts(tables, assignment)
        for name, column in evaluator.finish_parts(assignment)._asdict().items():
            assert column == near(np.array([getattr(part, name) for part in parts], float)), name
        assert evaluator.new_work(assignment) == near(np.array(reference.new_work(tables, assignment)))


@settings(RANDOM, max_examples=300)
@given(batches())
def test_equals_the_reference(case: Case) -> None:
    """On small batches full of ties, masked pairs and bounds that coincide."""
    assert_equal(case)


def test_equals_the_reference_on_realistic_batches() -> None:
    """Up to the published sizes: 128 requests, 88 destinations."""
    rng = np.random.default_rng(7)
    for _ in range(150):
        assert_equal(random_batch(rng, int(rng.integers(1, 33)), int(rng.integers(1, 12))))
    assert_equal(random_batch(rng, 128, 88))


# A large model in the cloud and a small one at the edge. Of each destination, with round numbers:
# T_infer = n_in·0.0025 + n_out·0.01 s and n_in·0.005 + n_out·0.01 s; S = 4 and 2;
# t_up = n_in·1e-5 and n_in·1e-6 s; t_down = n_out·2e-5 and n_out·1e-6 s.
CATALOGUE = Catalogue.model_validate(
    {
        "efficiency": 0.1,
        "speedup": 4.0,
        "utilisation": 0.5,
        "network": {
            "cloud": {
                "rtt_ms": 40.0,
                "up_mbps": 3.2,
                "down_mbps": 1.6,
                "transmit_w": 2.0,
                "receive_w": 1.0,
                "price_gb_usd": 250.0,
            },
            "edge": {
                "rtt_ms": 5.0,
                "up_mbps": 32.0,
                "down_mbps": 32.0,
                "transmit_w": 1.0,
                "receive_w": 1.0,
                "price_gb_usd": 0.0,
            },
        },
        "nodes": [
            {"name": "big", "tier": "cloud", "tflops": 10.0, "power_w": 200.0, "models": ["large"]},
            {
                "name": "box",
                "tier": "edge",
                "single_tflops": 0.2,
                "batch_tflops": 0.4,
                "power_w": 40.0,
                "models": ["small"],
            },
        ],
        "models": {
            "large": {
                "parameters_b": 5.0,
                "price_in_usd": 10.0,
                "price_out_usd": 30.0,
                "fee_usd": 0.001,
            },
            "small": {"parameters_b": 1.0, "price_in_usd": 0.0, "price_out_usd": 2.0},
        },
    }
)
RTT_S = [0.05, 0.005]  # as measured now, not the catalogue's
TOKENS = [(100, 50), (200, 10), (400, 100), (100, 200)]
INFER = [[0.75, 1.0], [0.6, 1.1], [2.0, 3.0], [2.25, 2.5]]
TRANSFER = [
    [0.05 + 0.001 + 0.001, 0.005 + 0.0001 + 0.00005],
    [0.05 + 0.002 + 0.0002, 0.005 + 0.0002 + 0.00001],
    [0.05 + 0.004 + 0.002, 0.005 + 0.0004 + 0.0001],
    [0.05 + 0.001 + 0.004, 0.005 + 0.0001 + 0.0002],
]
# Tokens, the fee, and 4 bytes a token at 250 USD per 1e9 bytes: 1e-6 USD a token.
COST = [
    [0.001 + 0.0015 + 0.001 + 0.00015, 0.0001],
    [0.002 + 0.0003 + 0.001 + 0.00021, 0.00002],
    [0.004 + 0.003 + 0.001 + 0.0005, 0.0002],
    [0.001 + 0.006 + 0.001 + 0.0003, 0.0004],
]
# 100 W or 20 W (half the nodes' power) while it infers, and the radio.
ENERGY = [
    [75.0 + 0.002 + 0.001, 20.0 + 0.0001 + 0.00005],
    [60.0 + 0.004 + 0.0002, 22.0 + 0.0002 + 0.00001],
    [200.0 + 0.008 + 0.002, 60.0 + 0.0004 + 0.0001],
    [225.0 + 0.002 + 0.004, 50.0 + 0.0001 + 0.0002],
]
BY_HAND = reference.Tables(
    loss=[[0.1, 0.4], [0.2, 0.2], [0.1, 0.5], [0.3, 0.9]],
    cost=COST,
    energy=ENERGY,
    infer=INFER,
    transfer=TRANSFER,
    legal=[[True, True], [True, True], [True, True], [False, True]],  # the last must not leave the edge
    backlog=[0.0, 0.0],
    speedup=[4.0, 2.0],
    weights=[0.4, 0.3, 0.2, 0.1],
)


def test_hand_worked_pairs() -> None:
    """T_infer, T_trans, C and E of four requests on two destinations."""
    destinations = CATALOGUE.destinations()
    assert [d.speedup for d in destinations] == near(BY_HAND.speedup)
    records = physics_table(destinations, CATALOGUE.hosted)
    for r, (n_in, n_out) in enumerate(TOKENS):
        for d, destination in enumerate(destinations):
            expected = near((INFER[r][d], TRANSFER[r][d], COST[r][d], ENERGY[r][d]))
            assert pair_parts(records[d], float(n_in), float(n_out), RTT_S[d]) == expected
            assert reference.pair(reference_destination(destination), n_in, n_out, RTT_S[d]) == expected


@settings(RANDOM, max_examples=100)
@given(
    st.sampled_from(["cloud", "edge"]),
    st.lists(st.integers(1, 64), min_size=12, max_size=12),
    st.integers(0, 5000),
    st.integers(0, 5000),
    st.sampled_from([0.0, 0.002, 0.3]),
)
def test_pairs_equal_the_reference(tier: str, draws: list[int], n_in: int, n_out: int, rtt: float) -> None:
    """Whatever the destination's constants, read from a catalogue."""
    names = ["up_mbps", "down_mbps", "transmit_w", "receive_w", "price_gb_usd"]
    path = dict(zip(names, (float(k) for k in draws), strict=False)) | {"rtt_ms": 1.0}
    node = {"name": "n", "tier": tier, "models": ["m"], "power_w": float(draws[5])}
    catalogue = Catalogue.model_validate(
        {
            "efficiency": draws[6] / 64,
            "speedup": float(draws[7]),
            "utilisation": draws[8] / 64,
            "network": {tier: path},
            "nodes": [node | {"tflops": draws[9] / 2}],
            "models": {
                "m": {
                    "parameters_b": float(draws[10]),
                    "price_in_usd": draws[11] / 8,
                    "price_out_usd": draws[0] / 4,
                    "fee_usd": draws[1] / 1e4,
                }
            },
        }
    )
    destinations = catalogue.destinations()
    (record,) = physics_table(destinations, catalogue.hosted)
    expected = reference.pair(reference_destination(destinations[0]), n_in, n_out, rtt)
    assert pair_parts(record, float(n_in), float(n_out), rtt) == near(expected)


def test_hand_worked_batch() -> None:
    """Requests 0 and 2 to the cloud, 1 and 3 to the edge; then all to the edge, with a backlog there."""
    evaluator = BatchEvaluator(compiled(BY_HAND))
    bounds = [
        [(0.1 + 0.2 + 0.1 + 0.9) / 4, (0.4 + 0.2 + 0.5 + 0.9) / 4],  # of the last, only the edge counts
        [0.0001 + 0.00002 + 0.0002 + 0.0004, 0.00365 + 0.00351 + 0.0085 + 0.0004],
        [20.00015 + 22.00021 + 60.0005 + 50.0003, 75.003 + 60.0042 + 200.01 + 50.0003],
        # lo: request 3, legal on the edge only, 2.5 + 0.0053. hi: the edge's, with all four there, 7.6/2 s
        # of work and the longest way, request 2's 0.0055; the cloud's is max(2.0, 3.35/4) + 0.056.
        [2.5053, 3.8055],
    ]
    assert evaluator.bounds == near(np.array(bounds))

    # Request 2 on the cloud: 2.75/4 s of work is less than its own 2.0 s. Request 3 at the edge: 3.6/2 s is
    # less than 2.5 s.
    parts = evaluator.finish_parts([0, 1, 0, 1])
    assert parts.infer.tolist() == near([0.75, 1.1, 2.0, 2.5])
    assert parts.transfer.tolist() == near([0.052, 0.00521, 0.056, 0.0053])
    assert parts.queue.tolist() == near([0.0] * 4)
    assert parts.finish.tolist() == near([0.802, 1.10521, 2.056, 2.5053])
    terms = [1.3 / 4, 0.00365 + 0.00002 + 0.0085 + 0.0004, 75.003 + 22.00021 + 200.01 + 50.0003, 2.5053]
    assert evaluator.terms([0, 1, 0, 1]).tolist() == near(terms)
    # Q and T are at their lower bounds; C is 0.01257 within [0.00072, 0.01606], E 347.01351 within
    # [152.00116, 385.0175].
    j = 0.3 * (0.01257 - 0.00072) / (0.01606 - 0.00072)
    j += 0.2 * (347.01351 - 152.00116) / (385.0175 - 152.00116)
    assert evaluator.objective([0, 1, 0, 1]) == near(j)
    assert evaluator.new_work([0, 1, 0, 1]).tolist() == near([2.0, 2.5])

    evaluator = BatchEvaluator(compiled(replace(BY_HAND, backlog=[9.0, 0.3])))
    assert evaluator.bounds == near(np.array(bounds))
    # Work of 1.0, 2.1, 5.1 and 7.6 s at a speed-up of 2, behind 0.3 s: requests 0, 1 and 2 take their own
    # 1.0, 1.1 and 3.0 s, request 3 waits for 3.8 s.
    parts = evaluator.finish_parts([1, 1, 1, 1])
    assert parts.queue.tolist() == near([0.3, 0.3, 0.3, 0.3 + 1.3])
    assert parts.finish.tolist() == near([1.30515, 1.40521, 3.3055, 4.1053])
    assert evaluator.terms([1, 1, 1, 1]).tolist() == near([0.5, 0.00072, 152.00116, 4.1053])
    # Q is at its upper bound, C and E at their lower ones, T beyond the upper one.
    assert evaluator.objective([1, 1, 1, 1]) == near(0.4 + 0.1 * 1.6 / 1.3002)
    assert evaluator.new_work([1, 1, 1, 1]).tolist() == near([0.0, 3.8])


def everything(tables: BatchTables) -> Iterator[tuple[int, ...]]:
    """Yield every legal assignment."""
    return itertools.product(*(np.flatnonzero(row).tolist() for row in tables.legal))


@settings(RANDOM, max_examples=150)
@given(batches(min_requests=1, max_requests=4, max_destinations=4))
def test_unloaded_objective_is_within_0_and_1(case: Case) -> None:
    """Every legal assignment's, and so is each term within its bounds; Q, C and E reach theirs."""
    tables = compiled(unloaded(case.tables))
    evaluator = BatchEvaluator(tables)
    assignments = np.array(list(everything(tables)))
    terms, values = evaluator.terms(assignments), evaluator.objective(assignments)
    low, high = evaluator.bounds.T
    assert (terms >= low - 1e-12).all() and (terms <= high + 1e-12).all()
    assert (values >= -1e-12).all() and (values <= 1.0 + 1e-12).all()
    assert terms[:, :3].min(axis=0) == near(low[:3])
    assert terms[:, :3].max(axis=0) == near(high[:3])


@settings(RANDOM, max_examples=100)
@given(batches(), st.floats(0.0, 100.0), st.integers(0, 4))
def test_backlog_moves_completion_time_alone(case: Case, more: float, at: int) -> None:
    """More backlog: the same bounds and the other terms; a T, and so a J, that is not smaller."""
    tables = compiled(case.tables)
    at %= len(tables.backlog)
    backlog = tables.backlog.copy()
    backlog[at] += more
    before, after = BatchEvaluator(tables), BatchEvaluator(tables._replace(backlog=backlog))
    assert np.array_equal(before.bounds, after.bounds)
    for assignment in case.assignments:
        old, new = before.terms(assignment), after.terms(assignment)
        assert np.array_equal(old[:3], new[:3])
        assert new[3] >= old[3]
        if at not in assignment:
            assert new[3] == old[3]
        elif all(d == at for d in assignment):
            assert new[3] == near(old[3] + (backlog[at] - tables.backlog[at]))
        assert after.objective(assignment) >= before.objective(assignment)
        assert after.new_work(assignment).tolist() == before.new_work(assignment).tolist()


@settings(RANDOM, max_examples=100)
@given(batches(), st.randoms(use_true_random=False))
def test_destinations_have_no_order(case: Case, random: object) -> None:
    """Numbering them otherwise changes their numbers and nothing else."""
    tables = compiled(case.tables)
    order = list(range(len(tables.backlog)))
    random.shuffle(order)  # type: ignore[attr-defined]
    place = {d: k for k, d in enumerate(order)}
    before = BatchEvaluator(tables)
    after = BatchEvaluator(reindexed(tables, destinations=order))
    assert np.array_equal(before.bounds, after.bounds)
    for assignment in case.assignments:
        renamed = [place[d] for d in assignment]
        assert np.array_equal(after.terms(renamed), before.terms(assignment))
        assert np.array_equal(after.objective(renamed), before.objective(assignment))
        assert np.array_equal(after.finish_parts(renamed).finish, before.finish_parts(assignment).finish)
        assert np.array_equal(after.new_work(renamed), before.new_work(assignment)[order])


@settings(RANDOM, max_examples=100)
@given(batches(min_requests=1), st.randoms(use_true_random=False))
def test_requests_have_no_order_but_in_their_queues(case: Case, random: object) -> None:
    """Dispatched in another order they cost, use and are worth the same, and leave the same backlog."""
    order = list(range(len(case.tables.legal)))
    random.shuffle(order)  # type: ignore[attr-defined]
    tables = compiled(case.tables)
    before, after = BatchEvaluator(tables), BatchEvaluator(reindexed(tables, requests=order))
    assert after.bounds == near(before.bounds)
    for assignment in case.assignments:
        moved = [assignment[r] for r in order]
        assert after.terms(moved)[:3] == near(before.terms(assignment)[:3])
        assert after.new_work(moved) == near(before.new_work(assignment))


@given(batches())
@settings(RANDOM, max_examples=100)
def test_many_at_once_are_one_by_one(case: Case) -> None:
    """Any leading axes, and none."""
    evaluator = BatchEvaluator(compiled(case.tables))
    block = np.array([case.assignments, case.assignments[::-1]], np.int32)
    terms, values = evaluator.terms(block), evaluator.objective(block)
    assert terms.shape == (*block.shape[:2], 4) and values.shape == block.shape[:2]
    for where in np.ndindex(*block.shape[:2]):
        assert np.array_equal(terms[where], evaluator.terms(block[where]))
        assert values[where] == near(float(evaluator.objective(block[where])))


@given(batches(min_requests=1))
@settings(RANDOM, max_examples=100)
def test_normalised_terms_weigh_up_to_the_objective(case: Case) -> None:
    """Within their bounds, 0 where these coincide; J is their weighted sum."""
    evaluator = BatchEvaluator(compiled(case.tables))
    terms = evaluator.terms(case.assignments)
    shares = normalise(terms, evaluator.bounds)
    for (low, high), column, share in zip(evaluator.bounds, terms.T, shares.T, strict=True):
        assert share == near((column - low) / (high - low) if high > low else np.zeros(len(column)))
    assert shares @ evaluator.tables.weights == near(evaluator.objective(case.assignments))


def test_an_empty_batch_is_worth_nothing() -> None:
    """Every term, bound and J is 0, and nothing is left behind."""
    empty: list[list[float]] = []
    tables = reference.Tables(empty, empty, empty, empty, empty, [], [1.0, 2.0], [1.0, 4.0], [0.25] * 4)
    evaluator = BatchEvaluator(compiled(tables))
    assert evaluator.bounds.tolist() == [[0.0, 0.0]] * 4
    assert evaluator.terms([]).tolist() == [0.0] * 4
    assert evaluator.terms(np.zeros((3, 0), np.int64)).tolist() == [[0.0] * 4] * 3
    assert evaluator.objective([]) == 0.0
    assert [column.shape for column in evaluator.finish_parts([])] == [(0,)] * 4
    assert evaluator.new_work([]).tolist() == [0.0, 0.0]


def test_bounds_that_coincide_count_nothing() -> None:
    """A single destination leaves no choice: J is 0, whatever is carried over."""
    tables = replace(
        BY_HAND,
        **{name: [row[1:] for row in getattr(BY_HAND, name)] for name in ("loss", "cost", "energy", "legal")},
        infer=[[1.0]] * 4,
        transfer=[[0.1]] * 4,
        backlog=[5.0],
        speedup=[4.0],
    )
    assert BatchEvaluator(compiled(tables)).objective([0, 0, 0, 0]) == 0.0


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("loss", np.zeros((4, 3)), r"loss has shape \(4, 3\); infer has \(4, 2\)"),
        ("legal", np.ones((3, 2), bool), r"legal has shape \(3, 2\); infer has \(4, 2\)"),
        ("transfer", np.zeros(8), r"transfer has shape \(8,\); infer has \(4, 2\)"),
        ("backlog", np.zeros(3), r"backlog has shape \(3,\); it must be \(2,\)"),
        ("speedup", np.ones((1, 2)), r"speedup has shape \(1, 2\); it must be \(2,\)"),
        ("weights", np.ones(3), r"weights has shape \(3,\); it must be \(4,\)"),
        ("legal", np.arange(8).reshape(4, 2) < 6, "legal: request 3 has no legal destination"),
    ],
)
def test_tables_must_fit_together(name: str, value: np.ndarray, message: str) -> None:
    """And every request needs somewhere to go."""
    with pytest.raises(ValueError, match=message):
        BatchEvaluator(compiled(BY_HAND)._replace(**{name: value}))


@pytest.mark.parametrize("method", ["terms", "objective", "finish_parts", "new_work"])
@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ([0, 0, 1], r"shape \(3,\).*must be whole numbers of shape \(….*4\)"),
        (1, r"shape \(\)"),
        ([0.0, 0.0, 0.0, 1.0], "float64.*must be whole numbers"),
        ([0, 2, 0, 1], r"assignments\[1\] = 2: must be from 0 to 1"),
        ([0, 0, -1, 1], r"assignments\[2\] = -1: must be from 0 to 1"),
        ([0, 0, 0, 0], r"assignments\[3\] = 0: is not legal for request 3"),
    ],
)
def test_assignments_must_be_legal(method: str, assignment: object, message: str) -> None:
    """The message names the place and the value."""
    with pytest.raises(ValueError, match=message):
        getattr(BatchEvaluator(compiled(BY_HAND)), method)(assignment)


def test_the_offender_among_many_is_named() -> None:
    """By the assignment's index, then the request's."""
    evaluator = BatchEvaluator(compiled(BY_HAND))
    with pytest.raises(ValueError, match=r"assignments\[1, 3\] = 0: is not legal for request 3"):
        evaluator.terms([[0, 0, 0, 1], [1, 1, 1, 0]])
    with pytest.raises(ValueError, match=r"assignments\[0, 2\] = 7: must be from 0 to 1"):
        evaluator.objective([[0, 0, 7, 1], [1, 1, 1, 1]])


@pytest.mark.parametrize("method", ["finish_parts", "new_work"])
def test_details_are_of_one_assignment(method: str) -> None:
    """Not of as many as there are requests, either, which would broadcast."""
    with pytest.raises(ValueError, match=r"shape \(4, 4\)"):
        getattr(BatchEvaluator(compiled(BY_HAND)), method)([[1, 1, 1, 1]] * 4)


def test_hand_worked_cross_router_objective() -> None:
    """Three routers, two batches; in the second, all agree on the cost."""
    terms = np.array(
        [
            [[0.2, 1.0, 100.0, 2.0], [0.5, 3.0, 10.0, 1.0]],
            [[0.4, 3.0, 200.0, 1.0], [0.5, 3.0, 20.0, 3.0]],
            [[0.3, 2.0, 400.0, 1.5], [0.9, 3.0, 40.0, 2.0]],
        ]
    )
    first = [0.1 * 1.0, 0.4 + 0.3 + 0.2 / 3, 0.4 / 2 + 0.3 / 2 + 0.2 + 0.1 / 2]
    second = [0.0, 0.2 / 3 + 0.1, 0.4 + 0.2 + 0.1 / 2]
    expected = [(a + b) / 2 for a, b in zip(first, second, strict=True)]
    weights = [0.4, 0.3, 0.2, 0.1]
    assert cross_router_objective(terms, weights).tolist() == near(expected)
    assert reference.cross_router(terms.swapaxes(0, 1).tolist(), weights) == near(expected)
    # It depends on who else is there: without the second router, the first one's T is the worst in batch 0.
    assert cross_router_objective(terms[[0, 2]], weights).tolist() == near([0.05, 0.8])
    assert np.isnan(cross_router_objective(terms[:, :0], weights)).all()


@given(st.integers(1, 5), st.integers(1, 4), st.integers(0, 2**32))
@settings(RANDOM, max_examples=50)
def test_cross_router_objective_equals_the_reference(routers: int, count: int, seed: int) -> None:
    """On few distinct numbers, so that routers often agree."""
    rng = np.random.default_rng(seed)
    terms, weights = rng.integers(0, 4, (routers, count, 4)) / 4.0, rng.dirichlet(np.ones(4)).tolist()
    expected = reference.cross_router(terms.swapaxes(0, 1).tolist(), weights)
    assert cross_router_objective(terms, weights).tolist() == near(expected)


@given(batches(min_requests=1), st.integers(0, 4))
@settings(RANDOM, max_examples=50)
def test_reads_an_observation(case: Case, padding: int) -> None:
    """Active slots only, whose numbers survive float32 here, as they are whole 64ths."""
    tables = compiled(case.tables)
    count, width = tables.legal.shape

    def padded(table: np.ndarray) -> np.ndarray:
        rows = np.full((padding, width), 7.0)
        return np.concatenate([table, rows]).astype(np.float32).ravel()

    observation = {
        "active": np.repeat([1, 0], [count, padding]).astype(np.int8),
        "quality": padded(1.0 - tables.loss),
        "cost": padded(tables.cost),
        "energy": padded(tables.energy),
        "infer_s": padded(tables.infer),
        "transfer_s": padded(tables.transfer),
        "legal": padded(tables.legal).astype(np.int8),
        "backlog_s": tables.backlog.astype(np.float32),
        "speedup": tables.speedup.astype(np.float32),
        "weights": tables.weights.astype(np.float32),
    }
    read = BatchTables.from_observation(observation)
    for name, column, expected in zip(BatchTables._fields, read, tables, strict=True):
        assert column.flags.c_contiguous and column.dtype == (bool if name == "legal" else np.float64)
        assert np.array_equal(column, expected.astype(np.float32) if name == "weights" else expected), name


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("loss", np.nan, "loss has nan; all of it must be finite and not negative"),
        ("infer", -1.0, "infer has -1; all of it must be finite and not negative"),
        ("backlog", np.inf, "backlog has inf; all of it must be finite and not negative"),
        ("weights", -0.5, "weights has -0.5; all of it must be finite and not negative"),
        ("speedup", 0.0, "speedup = 0: must be above 0"),
    ],
)
def test_numbers_must_be_sound(name: str, value: float, message: str) -> None:
    """A NaN would otherwise make J 0, the best there is; where a pair is not legal nothing is asked."""
    shape = (2, 3)
    fields = {part: np.ones(shape) for part in ("loss", "cost", "energy", "infer", "transfer")}
    fields |= {"legal": np.ones(shape, bool), "backlog": np.ones(3), "speedup": np.ones(3)}
    good = BatchTables(**fields, weights=np.full(4, 0.25))
    BatchEvaluator(good)
    bad = good._replace(**{name: np.full_like(getattr(good, name), value)})
    with pytest.raises(ValueError, match=message):
        BatchEvaluator(bad)
    with pytest.raises(ValueError, match="legal has type float64; it must be bool"):
        BatchEvaluator(good._replace(legal=np.ones(shape)))
    nowhere_legal = good.legal.copy()
    nowhere_legal[0, 0] = False
    loss = good.loss.copy()
    loss[0, 0] = np.nan
    BatchEvaluator(good._replace(legal=nowhere_legal, loss=loss))
