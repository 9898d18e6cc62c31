"""The memetic search of "CEMA-Router" (Wang, He and Goudarzi), Algorithms 1 to 3, operator by operator.

A chromosome (R,) holds a destination per request; a population has shape (P, R). What the source leaves open
is settled here, and is ours:

- A tournament draws with replacement, and both of a pair's parents may be the same.
- The two cuts of a crossover are distinct, among the R + 1 boundaries before, between and after the genes.
- A mutated gene changes: it becomes another legal destination, if there is one.
- A swap exchanges the destinations of two distinct requests. A drawn pair that may not be swapped, or whose
  swap changes nothing, is passed over; no other is drawn for it, as the source says "up to" L/2 pairs.
- Ties go to the lowest index: in a tournament, among survivors (parents before offspring), of the request
  that finishes last and of the chromosome that is returned. A move must improve, and the first best one wins.
- P' is filled by pairs, so with an odd P it holds P + 1 chromosomes.
- What is returned is best by the bounds of the final population (line 21), not by those of its union with P'.

Random numbers come from SplitMix64, whose state is an array (1,) of uint64 that every draw advances.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from routing_gym.cloud_edge.evaluator import (
    BatchTables,
    Floats,
    assignment_terms,
    finish_time,
    objective,
    population_terms,
)
from routing_gym.common.jit import njit

Ints = NDArray[np.int64]
Words = NDArray[np.uint64]

_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_MIX = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
_SHIFTS = (np.uint64(30), np.uint64(27), np.uint64(31), np.uint64(11))


class Legal(NamedTuple):
    """The legal sets D_r: of request r, the first `sizes[r]` entries of `destinations[r]`, ascending."""

    destinations: Ints  # (R, M)
    sizes: Ints  # (R,)


class Operators(NamedTuple):
    """How the operators of a generation are set (source, Table IV)."""

    crossover: float  # p_c
    mutation: float  # p_m, per gene
    tournament: int
    repair: float  # p_LS, per crossed pair
    repair_trials: int  # L, even
    population_bounds: bool  # normalise within the population, as published; or by the fixed bounds


class Population(NamedTuple):
    """P chromosomes, what they are worth, and J within the population's or the fixed bounds."""

    genes: Ints  # (P, R)
    terms: Floats  # (P, 4)
    fitness: Floats  # (P,), lower is better


@njit
def next_word(random: Words) -> np.uint64:
    """Advance SplitMix64 (Steele, Lea and Flood, 2014) and return its output."""
    random[0] += _GAMMA
    z = random[0]
    z = (z ^ (z >> _SHIFTS[0])) * _MIX[0]
    z = (z ^ (z >> _SHIFTS[1])) * _MIX[1]
    return z ^ (z >> _SHIFTS[2])


@njit
def uniform(random: Words) -> float:
    """Return a number on [0, 1), made of the upper 53 bits of a word."""
    return np.float64(next_word(random) >> _SHIFTS[3]) * 2.0**-53


@njit
def below(count: int, random: Words) -> int:
    """Return a whole number from 0 to count - 1, each as likely."""
    return int(uniform(random) * count)


@njit
def distinct_pair(count: int, random: Words) -> tuple[int, int]:
    """Return two distinct whole numbers from 0 to count - 1 (count above 1), each ordered pair as likely."""
    first = below(count, random)
    second = below(count - 1, random)
    return first, second + (second >= first)


@njit
def legal_sets(legal: NDArray[np.bool_]) -> Legal:
    """List each request's legal destinations (Algorithm 1, line 4)."""
    destinations = np.zeros(legal.shape, np.int64)
    sizes = np.zeros(len(legal), np.int64)
    for r in range(len(legal)):
        for d in range(legal.shape[1]):
            if legal[r, d]:
                destinations[r, sizes[r]] = d
                sizes[r] += 1
    return Legal(destinations, sizes)


@njit
def earliest_finish(tables: BatchTables, order: Ints) -> Ints:
    """Return the load-aware chromosome (R,): in this order, each request where it finishes first.

    Algorithm 2, lines 5 to 11: A_d = L_d + T_infer + T_trans, and from B_d on L_d grows by T_infer, without
    the speed-up of continuous batching, as published.
    """
    chromosome = np.zeros(len(order), np.int64)
    load = tables.backlog.copy()
    for r in order:
        best = np.inf
        for d in range(len(load)):
            if tables.legal[r, d]:
                finish = load[d] + tables.infer[r, d] + tables.transfer[r, d]
                if finish < best:
                    best = finish
                    chromosome[r] = d
        load[chromosome[r]] += tables.infer[r, chromosome[r]]
    return chromosome


@njit
def bounds_within(terms: Floats) -> Floats:
    """Return the least and the greatest of each term (P, 4) in a population: (4, 2)."""
    bounds = np.empty((4, 2))
    for k in range(4):
        bounds[k, 0] = terms[:, k].min()
        bounds[k, 1] = terms[:, k].max()
    return bounds


@njit
def scores(terms: Floats, fixed: Floats, weights: Floats, operators: Operators) -> Floats:
    """Return J (P,) of terms (P, 4), normalised within themselves or by the fixed bounds (4, 2)."""
    bounds = bounds_within(terms) if operators.population_bounds else fixed
    values = np.empty(len(terms))
    for p in range(len(terms)):
        values[p] = objective(terms[p], bounds, weights)
    return values


@njit
def first_population(
    tables: BatchTables,
    order: Ints,
    legal: Legal,
    fixed: Floats,
    operators: Operators,
    size: int,
    random: Words,
) -> Population:
    """Return one load-aware and `size` - 1 random legal chromosomes (Algorithm 2), scored.

    `order` (R,) is that in which the load-aware one sends requests: the longest first.
    """
    genes = np.empty((size, len(legal.sizes)), np.int64)
    genes[0] = earliest_finish(tables, order)
    for p in range(1, size):
        for r in range(len(legal.sizes)):
            genes[p, r] = legal.destinations[r, below(legal.sizes[r], random)]
    terms = population_terms(tables, genes)
    return Population(genes, terms, scores(terms, fixed, tables.weights, operators))


@njit
def tournament(fitness: Floats, entrants: int, random: Words) -> int:
    """Return the index of the lowest fitness (P,) among that many drawn with replacement."""
    best = below(len(fitness), random)
    for _ in range(entrants - 1):
        k = below(len(fitness), random)
        if fitness[k] < fitness[best] or (fitness[k] == fitness[best] and k < best):
            best = k
    return best


@njit
def two_point_crossover(first: Ints, second: Ints, random: Words) -> None:
    """Exchange the genes of two chromosomes (R,) between two random cuts, in place."""
    a, b = distinct_pair(len(first) + 1, random)
    for r in range(min(a, b), max(a, b)):
        first[r], second[r] = second[r], first[r]


@njit
def other_destination(legal: Legal, r: int, current: int, k: int) -> int:
    """Return the k-th legal destination of request r but for the current one."""
    d = legal.destinations[r, k]
    return d if d < current else legal.destinations[r, k + 1]


@njit
def mutate(chromosome: Ints, legal: Legal, rate: float, random: Words) -> None:
    """Change each gene with probability `rate`, in place; all other legal destinations are as likely."""
    for r in range(len(chromosome)):
        if uniform(random) < rate and legal.sizes[r] > 1:
            k = below(legal.sizes[r] - 1, random)
            chromosome[r] = other_destination(legal, r, chromosome[r], k)


@njit
def last_to_finish(tables: BatchTables, chromosome: Ints, work: Floats) -> int:
    """Return the bottleneck r* = argmax T_infer + T_trans + T_queue; `work` (M,) is scratch."""
    work[:] = 0.0
    last, latest = 0, -np.inf
    for r in range(len(chromosome)):
        d = chromosome[r]
        infer = tables.infer[r, d]
        work[d] += infer
        finish = finish_time(tables.backlog[d], work[d], tables.speedup[d], infer, tables.transfer[r, d])
        if finish > latest:
            last, latest = r, finish
    return last


@njit
def repair(
    tables: BatchTables, legal: Legal, bounds: Floats, chromosome: Ints, trials: int, random: Words
) -> None:
    """Write the single best improving move back into a chromosome (R,), in place.

    Algorithm 3, lines 8 to 12. Half of the trials are other legal destinations of the request that finishes
    last, drawn without replacement; half are random pairs that swap. J is by these bounds (4, 2), and not
    clipped to them.
    """
    count = len(chromosome)
    work, terms = np.empty(len(tables.backlog)), np.empty(4)
    assignment_terms(tables, chromosome, work, terms)
    least = objective(terms, bounds, tables.weights)
    # The best move so far gives one or two requests new destinations.
    a = b = last_to_finish(tables, chromosome, work)
    new_a = new_b = current = chromosome[a]

    last, left = a, legal.sizes[a] - 1
    others = np.arange(left)
    for _ in range(min(trials // 2, left)):
        k = below(left, random)
        chromosome[last] = other_destination(legal, last, current, others[k])
        left -= 1
        others[k] = others[left]
        assignment_terms(tables, chromosome, work, terms)
        value = objective(terms, bounds, tables.weights)
        if value < least:
            least, new_a, new_b = value, chromosome[last], chromosome[last]
    chromosome[last] = current

    for _ in range(trials // 2 if count > 1 else 0):
        i, j = distinct_pair(count, random)
        to_i, to_j = chromosome[j], chromosome[i]
        if to_i == to_j or not (tables.legal[i, to_i] and tables.legal[j, to_j]):
            continue
        chromosome[i], chromosome[j] = to_i, to_j
        assignment_terms(tables, chromosome, work, terms)
        value = objective(terms, bounds, tables.weights)
        if value < least:
            least, a, b, new_a, new_b = value, i, j, to_i, to_j
        chromosome[i], chromosome[j] = to_j, to_i

    chromosome[a], chromosome[b] = new_a, new_b


@njit
def offspring(
    tables: BatchTables,
    legal: Legal,
    fixed: Floats,
    operators: Operators,
    population: Population,
    random: Words,
) -> Ints:
    """Return P' (P or P + 1, R): selected, crossed, repaired and mutated (Algorithm 1, lines 10 to 16)."""
    size, count = population.genes.shape
    bounds = bounds_within(population.terms) if operators.population_bounds else fixed
    children = np.empty((size + size % 2, count), np.int64)
    for k in range(0, size, 2):
        first, second = children[k], children[k + 1]
        first[:] = population.genes[tournament(population.fitness, operators.tournament, random)]
        second[:] = population.genes[tournament(population.fitness, operators.tournament, random)]
        if uniform(random) < operators.crossover:
            two_point_crossover(first, second, random)
            if uniform(random) < operators.repair:
                repair(tables, legal, bounds, first, operators.repair_trials, random)
                repair(tables, legal, bounds, second, operators.repair_trials, random)
        mutate(first, legal, operators.mutation, random)
        mutate(second, legal, operators.mutation, random)
    return children


@njit
def survive(
    population: Population, genes: Ints, terms: Floats, fixed: Floats, weights: Floats, operators: Operators
) -> None:
    """Keep the best P of the population and its offspring (P', R) with terms (P', 4), in place.

    J is normalised within the union to choose them, then within those chosen (Algorithm 1, lines 18, 19, 9).
    """
    every = np.concatenate((population.genes, genes))
    worth = np.concatenate((population.terms, terms))
    chosen = np.argsort(scores(worth, fixed, weights, operators), kind="mergesort")
    for p in range(len(population.fitness)):
        population.genes[p] = every[chosen[p]]
        population.terms[p] = worth[chosen[p]]
    population.fitness[:] = scores(population.terms, fixed, weights, operators)


@njit
def generation(
    tables: BatchTables,
    legal: Legal,
    fixed: Floats,
    operators: Operators,
    population: Population,
    random: Words,
) -> None:
    """Carry a population through one generation, in place (Algorithm 1, lines 8 to 19)."""
    children = offspring(tables, legal, fixed, operators, population, random)
    survive(population, children, population_terms(tables, children), fixed, tables.weights, operators)


@njit
def best_of(population: Population, fixed: Floats, weights: Floats) -> tuple[int, float]:
    """Return the index of the fittest chromosome, and its J by the fixed bounds."""
    best = int(np.argmin(population.fitness))
    return best, objective(population.terms[best], fixed, weights)
