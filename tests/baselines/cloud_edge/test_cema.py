"""The memetic router: equal to Algorithms 1 to 3 in plain Python, elitist, anytime, reproducible."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from routing_baselines.cloud_edge import cema, memetic
from routing_baselines.cloud_edge.cema import Cema
from routing_gym.cloud_edge.evaluator import BatchEvaluator, BatchTables
from routing_gym.common.config import ConfigError, packaged
from tests.baselines.cloud_edge.cema_reference import PlainSearch, random_tables, tables
from tests.cloud_edge.observations import batches, observe, row

SEEDS = st.integers(0, 2**64 - 1)
NORMALISATIONS: list[Any] = ["population", "fixed"]


def search(router: Cema, drawn: BatchTables, seed: int = 0) -> tuple[np.ndarray, int, np.ndarray]:
    router.output_tokens = drawn.infer.max(axis=1)  # what the plain search takes for the length
    assignment, state, found = router.assign(drawn, np.uint64(seed))
    return assignment, int(state), found["convergence"]


# The plain search


def test_the_load_aware_chromosome_sends_the_longest_predicted_output_first() -> None:
    """Whatever T_infer says: requests 0 and 1 want destination 0, which the longer one gets."""
    drawn = random_tables(0, 2, 2)._replace(
        infer=np.array([[3.0, 4.0], [3.0, 4.0]]),
        transfer=np.zeros((2, 2)),
        backlog=np.zeros(2),
        legal=np.ones((2, 2), bool),
    )
    for tokens, chosen in (([5, 9], [1, 0]), ([9, 5], [0, 1]), ([7, 7], [0, 1])):
        observation = observe(drawn, 3)
        observation["predicted_output_tokens"][:2] = tokens
        router = Cema(population=1, generations=0)
        assert router.predict(observation)[0].tolist() == [*chosen, 0]


@pytest.mark.parametrize("normalisation", NORMALISATIONS)
@settings(max_examples=40)
@given(drawn=tables(), seed=SEEDS, population=st.integers(1, 7), trials=st.sampled_from([0, 2, 8]))
def test_it_is_the_plain_search(
    normalisation: Any, drawn: BatchTables, seed: int, population: int, trials: int
) -> None:
    router = Cema(
        population=population,
        generations=4,
        mutation=0.2,
        repair=0.8,
        repair_trials=trials,
        normalisation=normalisation,
    )
    assignment, state, convergence = search(router, drawn, seed)
    plain, evaluator = PlainSearch(drawn, router.parameters, seed), BatchEvaluator(drawn)
    best = [plain.best()]
    for _ in range(4):
        plain.step()
        best.append(plain.best())
    assert assignment.tolist() == best[-1]
    assert state == plain.random.state
    np.testing.assert_allclose(convergence[:, 1], evaluator.objective(np.array(best)), atol=1e-12)


def test_its_populations_are_the_plain_ones_at_full_size() -> None:
    drawn, router = random_tables(1, 30, 11), Cema()
    plain = PlainSearch(drawn, router.parameters, 5)
    state, operators, fixed = np.array([5], np.uint64), router._operators, BatchEvaluator(drawn).bounds
    legal = memetic.legal_sets(drawn.legal)
    order = np.argsort(-drawn.infer.max(axis=1), kind="stable")
    population = memetic.first_population(drawn, order, legal, fixed, operators, 30, state)
    for _ in range(3):
        assert population.genes.tolist() == plain.population
        memetic.generation(drawn, legal, fixed, operators, population, state)
        plain.step()
    assert population.genes.tolist() == plain.population
    assert int(state[0]) == plain.random.state


# What it finds


@pytest.mark.parametrize("normalisation", NORMALISATIONS)
@given(drawn=tables(), seed=SEEDS)
def test_it_is_legal_and_tells_the_truth_about_itself(
    normalisation: Any, drawn: BatchTables, seed: int
) -> None:
    assignment, _, convergence = search(Cema(normalisation=normalisation), drawn, seed)
    # The evaluator refuses destinations that are not legal.
    assert convergence[-1, 1] == pytest.approx(BatchEvaluator(drawn).objective(assignment), abs=1e-12)
    assert convergence.shape == (21, 2)
    assert (np.diff(convergence[:, 0]) >= 0).all()
    assert convergence[0, 0] > 0


@settings(max_examples=30)
@given(drawn=tables(max_requests=5, max_destinations=4), seed=SEEDS)
def test_given_time_it_finds_the_optimum_under_fixed_bounds(drawn: BatchTables, seed: int) -> None:
    legal = [np.flatnonzero(row) for row in drawn.legal]
    least = BatchEvaluator(drawn).objective(np.array(list(itertools.product(*legal)))).min()
    _, _, convergence = search(Cema(generations=100, normalisation="fixed"), drawn, seed)
    assert convergence[-1, 1] == pytest.approx(least, abs=1e-12)


@given(drawn=tables(max_requests=12), seed=SEEDS)
def test_under_fixed_bounds_the_best_never_gets_worse(drawn: BatchTables, seed: int) -> None:
    _, _, convergence = search(Cema(normalisation="fixed"), drawn, seed)
    assert (np.diff(convergence[:, 1]) <= 0).all()


def test_as_published_the_best_can_get_worse() -> None:
    """One request; destination 0 loses a little quality and money, 1 is slow, 2 is bad at everything.

    J is .05, .22 and .75 while 2 is in the population. Without it the bounds are those of 0 and 1, which
    count .5 and .25: two small losses outweigh a great one, and the better assignment is given up.
    """
    drawn = random_tables(0, 1, 3)._replace(
        loss=np.array([[0.1, 0.0, 1.0]]),
        cost=np.array([[0.1, 0.0, 1.0]]),
        energy=np.ones((1, 3)),
        infer=np.array([[1.0, 9.0, 10.0]]),
        transfer=np.zeros((1, 3)),
        legal=np.ones((1, 3), bool),
        backlog=np.zeros(3),
        weights=np.full(4, 0.25),
    )
    published = [search(Cema(), drawn, seed) for seed in range(10)]
    assert [convergence[0, 1] for _, _, convergence in published] == pytest.approx([0.05] * 10)
    given_up = [convergence[-1, 1] for chosen, _, convergence in published if chosen.tolist() == [1]]
    assert given_up
    assert given_up == pytest.approx([0.25 * 8 / 9] * len(given_up))
    fixed = Cema(normalisation="fixed")
    assert {search(fixed, drawn, seed)[0].item() for seed in range(10)} == {0}


@pytest.mark.parametrize("normalisation", NORMALISATIONS)
@given(drawn=tables(), seed=SEEDS, powers=st.lists(st.integers(-8, 8), min_size=3, max_size=3))
def test_units_do_not_matter(normalisation: Any, drawn: BatchTables, seed: int, powers: list[int]) -> None:
    """Powers of two, so that rounding is the same."""
    loss, cost, energy = (2.0**power for power in powers)
    other = drawn._replace(loss=drawn.loss * loss, cost=drawn.cost * cost, energy=drawn.energy * energy)
    router = Cema(generations=5, normalisation=normalisation)
    assert search(router, drawn, seed)[0].tolist() == search(router, other, seed)[0].tolist()


# Budget


@given(drawn=tables(), seed=SEEDS)
def test_without_time_it_returns_the_best_of_the_first_population(drawn: BatchTables, seed: int) -> None:
    for normalisation in NORMALISATIONS:
        hasty = Cema(time_budget_s=0, normalisation=normalisation)
        assignment, _, convergence = search(hasty, drawn, seed)
        assert assignment.tolist() == PlainSearch(drawn, hasty.parameters, seed).best()
        assert len(convergence) == 1


def test_no_generation_begins_after_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that a look moves on by a second: two looks a generation, and two before the first."""
    drawn = random_tables(4, 6, 3)
    for budget, generations in ((1.5, 0), (2.5, 1), (4.0, 1), (4.5, 2), (41.0, 20), (1e9, 20)):
        ticks = itertools.count()
        monkeypatch.setattr(
            cema, "time", SimpleNamespace(perf_counter=lambda ticks=ticks: float(next(ticks)))
        )
        hurried, _, convergence = search(Cema(time_budget_s=budget), drawn)
        assert len(convergence) == generations + 1
        assert hurried.tolist() == search(Cema(generations=generations), drawn)[0].tolist()


# Randomness


@given(drawn=tables(max_requests=12), seed=SEEDS)
def test_it_depends_on_its_seed_alone(drawn: BatchTables, seed: int) -> None:
    one, other = search(Cema(), drawn, seed), search(Cema(), drawn, seed)
    assert one[0].tolist() == other[0].tolist()
    assert one[1] == other[1]
    assert one[2][:, 1].tolist() == other[2][:, 1].tolist()


def test_other_seeds_search_elsewhere() -> None:
    drawn = random_tables(2, 30, 11)
    assert len({tuple(search(Cema(), drawn, seed)[0]) for seed in range(10)}) == 10


def test_its_state_goes_on_from_decision_to_decision() -> None:
    observation, router = observe(random_tables(2, 30, 11), slots=32), Cema()
    state = router.initial_state([3])
    kept, chosen = state.copy(), []
    for _ in range(2):
        actions, state = router.predict({name: value[None] for name, value in observation.items()}, state)
        chosen.append(actions[0].tolist())
    assert kept.tolist() == [3] != state.tolist()
    assert chosen[0] != chosen[1]
    assert chosen[0][30:] == [0, 0]


@settings(max_examples=30)
@given(drawn=batches(st.just((3,))), seeds=st.lists(SEEDS, min_size=3, max_size=3))
def test_a_row_s_search_does_not_depend_on_its_batch(drawn: Any, seeds: list[int]) -> None:
    batch, _ = drawn
    router = Cema(generations=3)
    together, after = router.predict(batch, router.initial_state(seeds))
    for k in range(3):
        alone, state = router.predict(row(batch, (k,)), router.initial_state(seeds[k : k + 1]))
        assert alone.tolist() == together[k].tolist()
        assert int(state) == after[k]
        count = int(batch["active"][k].sum())
        pairs = batch["legal"][k].reshape(len(batch["active"][k]), -1)
        assert (pairs[np.arange(count), alone[:count]] > 0).all()
        assert [len(found.get("convergence", ())) for found in router.diagnostics()] == [4 if count else 0]


# Parameters


def test_it_ships_as_published() -> None:
    shipped = packaged("routers", "cloud_edge")["cema"]
    assert Cema().parameters.model_dump() == shipped
    assert shipped == {
        "population": 30,
        "generations": 20,
        "crossover": 0.9,
        "mutation": 0.1,
        "tournament": 3,
        "repair": 0.5,
        "repair_trials": 8,
        "normalisation": "population",
        "time_budget_s": None,
    }


@pytest.mark.parametrize(
    ("field", "value", "allowed"),
    [
        ("population", 0, "greater than or equal to 1"),
        ("population", 2.5, "integer"),
        ("generations", -1, "greater than or equal to 0"),
        ("crossover", 1.1, "less than or equal to 1"),
        ("mutation", -0.1, "greater than or equal to 0"),
        ("mutation", float("nan"), "finite"),
        ("tournament", 0, "greater than or equal to 1"),
        ("repair", 2, "less than or equal to 1"),
        ("repair_trials", 7, "multiple of 2"),
        ("repair_trials", -2, "greater than or equal to 0"),
        ("normalisation", "none", "'population' or 'fixed'"),
        ("time_budget_s", -1, "greater than or equal to 0"),
    ],
)
def test_a_parameter_that_is_not_allowed_is_named(field: str, value: Any, allowed: str) -> None:
    with pytest.raises(ConfigError, match=rf"{field} = {value!r}: .*{allowed}"):
        Cema(**{field: value})
