"""The memetic search's operators, one by one."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing_baselines.cloud_edge import memetic
from routing_baselines.cloud_edge.memetic import Operators, Population
from routing_baselines.splitmix import splitmix64, uniform
from routing_gym.cloud_edge.evaluator import BatchEvaluator, BatchTables, population_terms
from tests.baselines.cloud_edge.cema_reference import batch, is_legal, random_legal, random_tables, tables

SEEDS = st.integers(0, 2**64 - 1)
PUBLISHED = Operators(0.9, 0.1, 3, 0.5, 8, True)
FIXED = PUBLISHED._replace(population_bounds=False)


def words(seed: int) -> np.ndarray:
    return np.array([seed], np.uint64)


def chi_square(counts: Any, shares: Any) -> float:
    counts, expected = np.asarray(counts, float), np.asarray(shares) * np.sum(counts)
    return float(((counts - expected) ** 2 / expected).sum())


# Random numbers


@given(SEEDS)
def test_the_generator_is_splitmix64(seed: int) -> None:
    state, random = words(seed), words(seed)
    for _ in range(3):
        state, word = splitmix64(state)
        assert memetic.next_word(random) == word[0]
        assert random[0] == state[0]
    state, number = uniform(state)
    assert memetic.uniform(random) == number[0]


def test_below_is_uniform() -> None:
    random = words(5)
    counts = np.bincount([memetic.below(7, random) for _ in range(7000)], minlength=7)
    assert len(counts) == 7
    assert chi_square(counts, np.full(7, 1 / 7)) < 22.5  # 0.1 %, six degrees


def test_all_ordered_pairs_are_as_likely_and_distinct() -> None:
    random = words(6)
    counts = np.zeros((4, 4))
    for _ in range(6000):
        counts[memetic.distinct_pair(4, random)] += 1
    assert not counts.diagonal().any()
    assert chi_square(counts[~np.eye(4, dtype=bool)], np.full(12, 1 / 12)) < 31.3  # eleven degrees


# The first population


def test_legal_sets_list_the_legal_destinations() -> None:
    legal = memetic.legal_sets(np.array([[True, False, True], [False, True, False]]))
    assert legal.sizes.tolist() == [2, 1]
    assert legal.destinations[0, :2].tolist() == [0, 2]
    assert legal.destinations[1, 0] == 1


def test_the_load_aware_chromosome_by_hand() -> None:
    """Requests go in the order 2, 0, 1, 3; loads start at 0, 1 and 0.

    2 would finish at 0 + 4 + 1 or 0 + 6 (destination 1 is not legal): it takes 0. 0 then has 4 + 3 + 1,
    1 + 4 or 0 + 5: the first of the two that tie, 1. 1 has 4 + 2 + 1, 5 + 2 or 0 + 9: the first again, 0.
    3 has 6 + 1 + 1, 5 + 2.5 or 0 + 9: it takes 1. Speed-ups change nothing.
    """
    infer = [[3, 4, 5], [2, 2, 9], [4, 1, 6], [1, 2.5, 9]]
    legal = np.ones((4, 3), bool)
    legal[2, 1] = False
    transfer = [[1, 0, 0]] * 4
    for speedup in (1.0, 20.0):
        seeded = batch(infer, transfer=transfer, legal=legal, backlog=[0, 1, 0], speedup=[speedup] * 3)
        assert memetic.earliest_finish(seeded, np.array([2, 0, 1, 3])).tolist() == [1, 0, 0, 1]


def test_a_first_population_is_one_load_aware_chromosome_and_random_legal_ones() -> None:
    drawn = random_tables(3, 3, 5)._replace(
        legal=np.array([[1, 1, 1, 0, 1], [0, 0, 1, 0, 1], [0, 1, 0, 0, 0]]) > 0
    )
    legal, fixed = memetic.legal_sets(drawn.legal), BatchEvaluator(drawn).bounds
    order = np.array([2, 0, 1])
    population = memetic.first_population(drawn, order, legal, fixed, PUBLISHED, 4001, words(1))
    genes = population.genes
    assert genes[0].tolist() == memetic.earliest_finish(drawn, order).tolist()
    assert is_legal(drawn, genes)
    first = np.bincount(genes[1:, 0], minlength=5)[[0, 1, 2, 4]]
    assert chi_square(first, np.full(4, 1 / 4)) < 16.3  # three degrees
    together = np.bincount((genes[1:, 0] * 5 + genes[1:, 1]), minlength=25).reshape(5, 5)
    assert chi_square(together[[0, 1, 2, 4]][:, [2, 4]], np.full((4, 2), 1 / 8)) < 24.4  # seven degrees
    assert population.terms.tolist() == BatchEvaluator(drawn).terms(genes).tolist()


# What a population is worth


@given(tables(), st.integers(0, 2**32))
def test_scores_are_normalised_within_the_population_or_by_the_fixed_bounds(
    drawn: BatchTables, seed: int
) -> None:
    evaluator = BatchEvaluator(drawn)
    terms = evaluator.terms(random_legal(drawn, np.random.default_rng(seed), 5))
    low, high = terms.min(axis=0), terms.max(axis=0)
    unit = np.divide(terms - low, high - low, out=np.zeros_like(terms), where=high > low)
    within = memetic.scores(terms, evaluator.bounds, drawn.weights, PUBLISHED)
    np.testing.assert_allclose(within, unit @ drawn.weights, atol=1e-12)
    fixed = memetic.scores(terms, evaluator.bounds, drawn.weights, FIXED)
    assert memetic.bounds_within(terms).tolist() == np.stack((low, high), axis=1).tolist()
    np.testing.assert_allclose(
        fixed, evaluator.objective(random_legal(drawn, np.random.default_rng(seed), 5)), atol=1e-12
    )


# Selection


@pytest.mark.parametrize("entrants", [1, 2, 3, 5])
def test_a_tournament_is_won_by_the_fittest_of_those_drawn(entrants: int) -> None:
    """With replacement, the k-th fittest of n wins in ((n-k)^e - (n-k-1)^e) of n^e draws."""
    fitness = np.array([0.3, 0.1, 0.5, 0.2, 0.4])
    random = words(entrants)
    wins = np.bincount([memetic.tournament(fitness, entrants, random) for _ in range(8000)], minlength=5)
    rank = np.array([2, 0, 4, 1, 3])
    shares = ((5 - rank) ** entrants - (4 - rank) ** entrants) / 5**entrants
    assert chi_square(wins, shares) < 18.5  # four degrees


def test_ties_of_a_tournament_go_to_the_lowest_index() -> None:
    random = words(7)
    wins = np.bincount([memetic.tournament(np.full(4, 0.5), 3, random) for _ in range(8000)], minlength=4)
    assert chi_square(wins, (np.arange(4, 0, -1) ** 3 - np.arange(3, -1, -1) ** 3) / 64) < 16.3


# Crossover and mutation


@given(SEEDS, st.integers(1, 9))
def test_crossover_exchanges_one_segment(seed: int, count: int) -> None:
    first, second = np.arange(count), np.arange(count) + 100
    memetic.two_point_crossover(first, second, words(seed))
    swapped = first >= 100
    assert swapped.any()
    assert np.abs(np.diff(np.concatenate(([0], swapped, [0])))).sum() == 2
    assert first.tolist() == np.where(swapped, np.arange(count) + 100, np.arange(count)).tolist()
    assert second.tolist() == np.where(swapped, np.arange(count), np.arange(count) + 100).tolist()


def test_all_segments_are_as_likely() -> None:
    random = words(8)
    counts = dict.fromkeys(itertools.combinations(range(5), 2), 0)
    for _ in range(5000):
        first, second = np.zeros(4, np.int64), np.ones(4, np.int64)
        memetic.two_point_crossover(first, second, random)
        where = np.flatnonzero(first)
        counts[where[0], where[-1] + 1] += 1
    assert chi_square(list(counts.values()), np.full(10, 1 / 10)) < 27.9  # nine degrees


@given(tables(), SEEDS, st.floats(0, 1))
def test_a_mutant_is_legal(drawn: BatchTables, seed: int, rate: float) -> None:
    chromosome = random_legal(drawn, np.random.default_rng(seed), 1)[0]
    memetic.mutate(chromosome, memetic.legal_sets(drawn.legal), rate, words(seed))
    assert is_legal(drawn, chromosome)


@pytest.mark.parametrize("rate", [0.0, 0.1, 1.0])
def test_each_gene_changes_at_the_rate_to_any_other_legal_destination(rate: float) -> None:
    drawn = np.array([[1, 1, 0, 1], [0, 0, 1, 0], [1, 1, 1, 1]]) > 0
    legal, random = memetic.legal_sets(drawn), words(9)
    counts, tries = np.zeros((3, 4)), 6000
    for _ in range(tries):
        chromosome = np.array([1, 2, 3])
        memetic.mutate(chromosome, legal, rate, random)
        counts[np.arange(3), chromosome] += 1
    assert counts[1].tolist() == [0, 0, tries, 0]  # it has nowhere else to go
    wanted = np.array([[rate / 2, 1 - rate, 0, rate / 2], [rate / 3] * 3 + [1 - rate]])
    deviation = np.sqrt(wanted * (1 - wanted) * tries)
    assert (np.abs(counts[[0, 2]] - wanted * tries) <= 4.5 * deviation).all()


# Repair


@pytest.mark.parametrize(
    ("speedup", "transfer", "last"),
    [
        (1.0, [0, 0, 0], 2),  # finish at 2, 4 and 6
        (4.0, [0, 0, 0], 0),  # all at 2, as 6/4 is less: the first
        (4.0, [0, 1, 0], 1),
        (1.0, [5, 0, 0], 0),
    ],
)
def test_the_last_to_finish_by_hand(speedup: float, transfer: list[float], last: int) -> None:
    drawn = batch([[2, 9]] * 3, transfer=np.outer(transfer, [1, 1]), speedup=[speedup, 1])
    assert memetic.last_to_finish(drawn, np.zeros(3, np.int64), np.empty(2)) == last


def moves(drawn: BatchTables, chromosome: np.ndarray) -> list[list[int]]:
    """Return all moves that a repair may try: each destination of the last request, each legal swap."""
    finish = BatchEvaluator(drawn).finish_parts(chromosome).finish
    last = int(np.argmax(finish))
    found = []
    for d in np.flatnonzero(drawn.legal[last]):
        found.append([*chromosome[:last].tolist(), int(d), *chromosome[last + 1 :].tolist()])
    for a, b in itertools.combinations(range(len(chromosome)), 2):
        swapped = chromosome.copy()
        swapped[[a, b]] = chromosome[[b, a]]
        if is_legal(drawn, swapped):
            found.append(swapped.tolist())
    return found


def values(drawn: BatchTables, bounds: np.ndarray, chromosomes: Any) -> np.ndarray:
    """Return J within bounds (4, 2), by the kernel's own arithmetic: ties are exact."""
    terms = population_terms(drawn, np.array(chromosomes))
    return memetic.scores(terms, bounds, drawn.weights, FIXED)


@given(tables(), SEEDS, st.booleans())
def test_with_enough_trials_repair_makes_the_best_move_there_is(
    drawn: BatchTables, seed: int, population: bool
) -> None:
    rng = np.random.default_rng(seed)
    some = population_terms(drawn, random_legal(drawn, rng, 4))
    bounds = memetic.bounds_within(some) if population else BatchEvaluator(drawn).bounds
    before = random_legal(drawn, rng, 1)[0]
    after = before.copy()
    memetic.repair(drawn, memetic.legal_sets(drawn.legal), bounds, after, 600, words(seed))
    least = values(drawn, bounds, [before.tolist(), *moves(drawn, before)]).min()
    assert values(drawn, bounds, [after])[0] == least
    if values(drawn, bounds, [before])[0] == least:
        assert after.tolist() == before.tolist()


@given(tables(), SEEDS, st.sampled_from([0, 2, 8]))
def test_repair_makes_one_move_or_none_and_never_worsens(drawn: BatchTables, seed: int, trials: int) -> None:
    bounds = BatchEvaluator(drawn).bounds
    before = random_legal(drawn, np.random.default_rng(seed), 1)[0]
    after = before.copy()
    memetic.repair(drawn, memetic.legal_sets(drawn.legal), bounds, after, trials, words(seed))
    if after.tolist() != before.tolist():
        assert trials > 0
        assert after.tolist() in moves(drawn, before)
        better = values(drawn, bounds, [before, after])
        assert better[1] < better[0]


def test_repair_tries_half_its_trials_elsewhere_without_replacement() -> None:
    """All six other destinations improve, each by another sum: of three drawn, the best is kept.

    The k-th best of six is the best of three in C(6 - k - 1, 2) of C(6, 3) = 20 cases.
    """
    drawn = batch([[9, 6, 5, 4, 3, 2, 1]])
    legal, bounds, random = memetic.legal_sets(drawn.legal), BatchEvaluator(drawn).bounds, words(4)
    counts = np.zeros(7)
    for _ in range(6000):
        chromosome = np.array([0])
        memetic.repair(drawn, legal, bounds, chromosome, 6, random)
        counts[chromosome[0]] += 1
    assert counts[[0, 1, 2]].tolist() == [0, 0, 0]
    assert chi_square(counts[3:], np.array([1, 3, 6, 10]) / 20) < 16.3  # three degrees


def test_repair_passes_over_swaps_that_are_not_legal() -> None:
    """Only the pair (0, 1) may swap, and it improves; it is drawn in a third of all draws."""
    drawn = batch(
        [[9, 1, 9], [1, 9, 9], [9, 9, 1]],
        legal=[[1, 1, 0], [1, 1, 0], [0, 0, 1]],
        cost=[[9, 1, 9], [1, 9, 9], [9, 9, 1]],
    )
    alone = drawn._replace(weights=np.array([0, 1.0, 0, 0]))
    legal, bounds, random = memetic.legal_sets(drawn.legal), BatchEvaluator(drawn).bounds, words(2)
    swapped, tries = 0, 3000
    for _ in range(tries):
        chromosome = np.array([0, 1, 2])
        memetic.repair(alone, legal, bounds, chromosome, 2, random)
        assert chromosome[2] == 2
        swapped += chromosome.tolist() == [1, 0, 2]
    assert abs(swapped - tries / 3) < 4.5 * np.sqrt(tries * 2 / 9)


def test_repair_s_score_is_not_clipped_to_the_bounds() -> None:
    """Clipped, all of these would be worth 1 each: no move would improve."""
    drawn = batch([[9, 8, 7]])
    chromosome, bounds = np.array([0]), np.array([[0.0, 1.0]] * 4)
    memetic.repair(drawn, memetic.legal_sets(drawn.legal), bounds, chromosome, 4, words(0))
    assert chromosome.tolist() == [2]


# A generation


def as_population(drawn: BatchTables, genes: np.ndarray, operators: Operators) -> Population:
    terms = population_terms(drawn, genes)
    return Population(
        genes, terms, memetic.scores(terms, BatchEvaluator(drawn).bounds, drawn.weights, operators)
    )


@given(tables(), st.integers(0, 2**32), st.booleans(), st.integers(1, 6))
def test_survivors_are_the_best_of_the_union_and_parents_win_ties(
    drawn: BatchTables, seed: int, within: bool, size: int
) -> None:
    operators, rng = PUBLISHED._replace(population_bounds=within), np.random.default_rng(seed)
    fixed = BatchEvaluator(drawn).bounds
    parents = as_population(drawn, random_legal(drawn, rng, size), operators)
    children = random_legal(drawn, rng, size + 1)
    union = np.concatenate((parents.genes, children))
    worth = memetic.scores(population_terms(drawn, union), fixed, drawn.weights, operators).tolist()
    best = sorted(range(len(union)), key=lambda k: (worth[k], k))[:size]
    memetic.survive(parents, children, population_terms(drawn, children), fixed, drawn.weights, operators)
    assert parents.genes.tolist() == union[best].tolist()
    again = as_population(drawn, parents.genes, operators)
    assert parents.terms.tolist() == again.terms.tolist()
    assert parents.fitness.tolist() == again.fitness.tolist()


@given(tables(), SEEDS, st.integers(1, 7))
def test_offspring_are_legal_and_come_in_pairs(drawn: BatchTables, seed: int, size: int) -> None:
    population = as_population(drawn, random_legal(drawn, np.random.default_rng(seed), size), PUBLISHED)
    before = population.genes.tolist()
    children = memetic.offspring(
        drawn,
        memetic.legal_sets(drawn.legal),
        BatchEvaluator(drawn).bounds,
        PUBLISHED,
        population,
        words(seed),
    )
    assert children.shape == (size + size % 2, len(drawn.infer))
    assert is_legal(drawn, children)
    assert population.genes.tolist() == before


@pytest.mark.parametrize(
    ("operators", "shares"),
    [
        (PUBLISHED._replace(crossover=0.0, mutation=0.0), 0.0),
        (PUBLISHED._replace(crossover=1.0, mutation=0.0, repair=0.0), 2 / 3),
        (PUBLISHED._replace(crossover=0.3, mutation=0.0, repair=0.0), 0.3 * 2 / 3),
    ],
)
def test_pairs_are_crossed_at_the_rate(operators: Operators, shares: float) -> None:
    """Two genes of unlike parents are parted by two of the three segments; both parents differ in half."""
    drawn = batch([[1, 1], [1, 1]])
    genes = np.array([[0, 0], [1, 1]])
    population = Population(genes, population_terms(drawn, genes), np.array([0.5, 0.5]))
    legal, fixed, random = memetic.legal_sets(drawn.legal), BatchEvaluator(drawn).bounds, words(3)
    alike = operators._replace(tournament=1)
    mixed, tries = 0, 4000
    for _ in range(tries):
        child = memetic.offspring(drawn, legal, fixed, alike, population, random)[0]
        mixed += child[0] != child[1]
    share = shares / 2
    assert abs(mixed - tries * share) <= 4.5 * np.sqrt(tries * share * (1 - share))


@pytest.mark.parametrize("rate", [0.0, 0.5, 1.0])
def test_crossed_pairs_are_repaired_at_the_rate_and_both_of_them(rate: float) -> None:
    """A single request that finishes at 9 or at 1 is moved by every repair; copies are never repaired."""
    drawn = batch([[9, 1]])
    genes = np.zeros((2, 1), np.int64)
    population = Population(genes, population_terms(drawn, genes), np.zeros(2))
    legal, fixed, random = memetic.legal_sets(drawn.legal), BatchEvaluator(drawn).bounds, words(3)
    operators = FIXED._replace(mutation=0.0, repair=rate, crossover=0.6)
    moved, tries = 0, 4000
    for _ in range(tries):
        first, second = memetic.offspring(drawn, legal, fixed, operators, population, random)[:, 0]
        assert first == second
        moved += first
    share = 0.6 * rate
    assert abs(moved - tries * share) <= 4.5 * np.sqrt(tries * share * (1 - share))
