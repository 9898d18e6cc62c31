"""The greedy router: equal to a plain one, and a batch worked by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from routing_baselines.cloud_edge.greedy import Greedy
from routing_gym.cloud_edge.evaluator import BatchEvaluator, BatchTables, term_bounds
from tests.cloud_edge import cases, reference
from tests.cloud_edge.observations import make_observation


def part_of(tables: reference.Tables, kept: list[int]) -> reference.Tables:
    """Return the batch of some of the requests, in batch order."""
    rows = {
        name: [getattr(tables, name)[r] for r in kept]
        for name in ("loss", "cost", "energy", "infer", "transfer", "legal")
    }
    fixed = {name: getattr(tables, name) for name in ("backlog", "speedup", "weights")}
    return reference.Tables(**rows, **fixed)


def plain(tables: reference.Tables, queues: bool = True) -> list[int]:
    """Return the greedy assignment, J of each part by adding everything up."""
    count = len(tables.legal)
    limits = reference.bounds(tables)
    if not queues:
        tables = replace(tables, speedup=[math.inf] * len(tables.speedup))

    def length(r: int) -> float:
        legal = [infer for infer, legal in zip(tables.infer[r], tables.legal[r], strict=True) if legal]
        return sum(legal) / len(legal)

    def objective(chosen: dict[int, int]) -> float:
        kept = sorted(chosen)
        terms = reference.terms(part_of(tables, kept), [chosen[r] for r in kept])
        terms[0] *= len(kept) / count  # Q is a mean over the whole batch
        return reference.weighted(terms, limits, tables.weights)

    chosen: dict[int, int] = {}
    for r in sorted(range(count), key=lambda r: (-length(r), r)):
        legal = [d for d in range(len(tables.speedup)) if tables.legal[r][d]]
        chosen[r] = min(legal, key=lambda d: objective({**chosen, r: d}))
    return [chosen[r] for r in range(count)]


def test_it_does_what_a_plain_greedy_does() -> None:
    for seed in range(100):
        rng = np.random.default_rng(seed)
        tables = cases.random_batch(rng, int(rng.integers(1, 16)), int(rng.integers(1, 6))).tables
        found, random, told = Greedy().assign(cases.compiled(tables), np.uint64(7))
        assert found.tolist() == plain(tables), seed
        assert (random, told) == (7, {})


def test_alone_each_request_goes_where_a_batch_of_it_would_be_best() -> None:
    for seed in range(60):
        rng = np.random.default_rng(seed)
        tables = cases.random_batch(rng, int(rng.integers(1, 16)), int(rng.integers(1, 6))).tables
        found, random, told = Greedy(alone=True).assign(cases.compiled(tables), np.uint64(7))
        count = len(tables.legal)
        assert found.tolist() == [plain(part_of(tables, [r]))[0] for r in range(count)], seed
        assert (random, told) == (7, {})
        # Whoever else is in the batch.
        kept = sorted(rng.choice(count, int(rng.integers(1, count + 1)), replace=False).tolist())
        fewer = Greedy(alone=True).assign(cases.compiled(part_of(tables, kept)), np.uint64(7))[0]
        assert fewer.tolist() == found[kept].tolist(), seed


def test_a_single_request_is_alone() -> None:
    for seed in range(40):
        tables = cases.compiled(cases.random_batch(np.random.default_rng(seed), 1, 5).tables)
        choices = [
            Greedy(**given).assign(tables, np.uint64(0))[0].tolist()
            for given in ({}, {"alone": True}, {"queues": False})
        ]
        assert choices[0] == choices[1] == choices[2], seed


def test_without_queues_it_does_what_a_plain_greedy_does_that_knows_of_none() -> None:
    different = 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        tables = cases.random_batch(rng, int(rng.integers(2, 16)), int(rng.integers(2, 6))).tables
        found = Greedy(queues=False).assign(cases.compiled(tables), np.uint64(0))[0].tolist()
        assert found == plain(tables, queues=False), seed
        different += found != plain(tables)
    assert different


def test_equally_long_requests_keep_batch_order() -> None:
    for seed in range(10):
        tables = cases.random_batch(np.random.default_rng(seed), 40, 4).tables
        infer = [tables.infer[r % 2] for r in range(40)]
        tables = replace(tables, infer=infer, legal=[[True] * 4] * 40, speedup=[1.0] * 4)
        assert Greedy().assign(cases.compiled(tables), np.uint64(0))[0].tolist() == plain(tables), seed


def test_a_batch_worked_by_hand() -> None:
    # Only T counts, 0 is twice as fast as 1. The third is the longest and goes first: 4 s on 0 against 8. The
    # second: before it on 0 it would delay that one to 7 s; on 1 it takes 6. The first: on 0 the third would
    # be done at 6, on 1 the second at 10.
    tables = BatchTables(
        loss=np.zeros((3, 2)),
        cost=np.zeros((3, 2)),
        energy=np.zeros((3, 2)),
        infer=np.array([[2.0, 4.0], [3.0, 6.0], [4.0, 8.0]]),
        transfer=np.zeros((3, 2)),
        legal=np.ones((3, 2), bool),
        backlog=np.zeros(2),
        speedup=np.ones(2),
        weights=np.array([0.0, 0.0, 0.0, 1.0]),
    )
    assert Greedy().assign(tables, np.uint64(0))[0].tolist() == [0, 1, 0]
    # A second of backlog on 0 makes that 7 for the first, still less; five make 1 better for the third.
    behind = tables._replace(backlog=np.array([5.0, 0.0]))
    assert Greedy().assign(behind, np.uint64(0))[0].tolist() == [0, 0, 1]


def test_what_is_left_out_worked_by_hand() -> None:
    # A request takes 4 s on 0, where it costs a dollar, and 7 s on 1.
    tables = BatchTables(
        loss=np.zeros((3, 2)),
        cost=np.array([[1.0, 0.0]] * 3),
        energy=np.zeros((3, 2)),
        infer=np.array([[4.0, 7.0]] * 3),
        transfer=np.zeros((3, 2)),
        legal=np.ones((3, 2), bool),
        backlog=np.zeros(2),
        speedup=np.ones(2),
        weights=np.array([0.0, 0.15, 0.0, 0.85]),
    )

    def assigned(backlog: float, **given: bool) -> list[int]:
        loaded = tables._replace(backlog=np.array([backlog, 0.0]))
        return Greedy(**given).assign(loaded, np.uint64(0))[0].tolist()

    # T is between 4 s and the 21 s of all on 1, C between 0 and 3 dollars: a second counts .05, as a dollar.
    # The first: .25 on 0, .35 on 1. The second: .25 on 0, after 8 s; .15 on 1. The third: .1 on 0, .35 on 1.
    assert assigned(0.0) == [0, 1, 0]
    # Without queues, the second and the third end on 0 when the first does.
    assert assigned(0.0, queues=False) == [0, 0, 0]
    # Alone, T is between 4 and 7 s: the 3 s count .85 and the dollar .15.
    assert assigned(0.0, alone=True) == [0, 0, 0]
    # 2.2 s of backlog on 0 count .62 of that, and with the dollar less than .85.
    assert assigned(2.2, alone=True) == [0, 0, 0]
    assert assigned(3.0, alone=True) == [1, 1, 1]
    # In the batch they make it .36 against .35 for the first, and .05 against 0 for the others if they do not
    # queue. If they do, the second on 1 would end after 14 s, and so would the third, or after 10.2 s on 0.
    assert assigned(2.2, queues=False) == [1, 1, 1]
    assert assigned(2.2) == [1, 0, 0]


@pytest.mark.parametrize("name", ["alone", "queues"])
def test_what_is_neither_true_nor_false_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} = 1: must be true or false"):
        Greedy(**{name: 1})


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, [0, 0]),  # ties go to the lowest index
        ({"quality": [[0.1, 0.9], [0.9, 0.1]]}, [1, 0]),
        ({"quality": [[0.1, 0.9], [0.9, 0.1]], "legal": [[1, 0], [1, 1]]}, [0, 0]),
        ({"cost": [[2.0, 1.0], [1.0, 1.0]]}, [1, 0]),
        ({"energy": [[1.0, 1.0], [2.0, 1.0]]}, [0, 1]),
        ({"backlog_s": [9.0, 0.0], "infer_s": [[1.0, 1.5]]}, [1, 1]),
    ],
)
def test_every_term_counts(fields: dict[str, list], expected: list[int]) -> None:
    batch = make_observation(2, 2, 3, **({"speedup": [100.0, 100.0]} | fields))
    actions, _ = Greedy().predict(batch)
    assert actions.tolist() == [*expected, 0]


def test_it_is_legal_and_within_the_bounds_of_j_where_nothing_is_carried() -> None:
    for seed in range(40):
        case = cases.random_batch(np.random.default_rng(seed), 20, 4)
        tables = cases.compiled(cases.unloaded(case.tables))
        found = Greedy().assign(tables, np.uint64(0))[0]
        terms = BatchEvaluator(tables).terms(found)  # which raises if it is not legal
        assert (terms <= term_bounds(tables)[:, 1] + 1e-9).all()
