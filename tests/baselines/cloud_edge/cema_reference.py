"""Algorithms 1 to 3 of "CEMA-Router" in plain Python, line by line, and batches to try them on.

It draws its random numbers in the same order as the kernels, so that both must agree exactly.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from routing_gym.cloud_edge.evaluator import BatchEvaluator, BatchTables
from tests.cloud_edge.cases import compiled, random_assignments
from tests.cloud_edge.cases import random_batch as random_case

Chromosome = list[int]
Bounds = list[tuple[float, float]]


def random_tables(seed: int, requests: int, destinations: int) -> BatchTables:
    """Return a batch of realistic sizes; some requests have few legal destinations."""
    return compiled(random_case(np.random.default_rng(seed), requests, destinations).tables)


@st.composite
def tables(draw: st.DrawFn, max_requests: int = 7, max_destinations: int = 5) -> BatchTables:
    """Draw such a batch."""
    shape = draw(st.integers(1, max_requests)), draw(st.integers(1, max_destinations))
    return random_tables(draw(st.integers(0, 2**32)), *shape)


def batch(infer: Any, **fields: Any) -> BatchTables:
    """Return a batch (R, M) with these service times; the rest is nothing unless told."""
    infer = np.array(infer, float)
    zero = np.zeros_like(infer)
    known = {"loss": zero, "cost": zero, "energy": zero, "infer": infer, "transfer": zero}
    known |= {"legal": zero == 0, "backlog": zero[0], "speedup": zero[0] + 1, "weights": np.full(4, 0.25)}
    chosen = {name: np.array(value, known[name].dtype) for name, value in fields.items()}
    return BatchTables(**{**known, **chosen})


def random_legal(batch: BatchTables, rng: np.random.Generator, size: int) -> np.ndarray:
    """Return random legal chromosomes (size, R)."""
    return np.array(random_assignments(rng, batch.legal, size))


def is_legal(batch: BatchTables, chromosomes: np.ndarray) -> bool:
    return bool(batch.legal[np.arange(chromosomes.shape[-1]), chromosomes].all())


class Random:
    """SplitMix64 in whole numbers of any size, reduced by hand."""

    def __init__(self, state: int) -> None:
        self.state = state

    def uniform(self) -> float:
        self.state = z = (self.state + 0x9E3779B97F4A7C15) % 2**64
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
        return ((z ^ (z >> 31)) >> 11) / 2**53

    def below(self, count: int) -> int:
        return int(self.uniform() * count)

    def pair(self, count: int) -> tuple[int, int]:
        """Return two different numbers below count."""
        first = self.below(count)
        rest = [k for k in range(count) if k != first]
        return first, rest[self.below(count - 1)]


class PlainSearch:
    """One batch's search. `population` holds its chromosomes, after a generation best first."""

    def __init__(self, tables: BatchTables, parameters: Any, seed: int) -> None:
        self.evaluator = BatchEvaluator(tables)
        self.parameters = parameters
        self.random = Random(seed)
        self.legal = [[d for d, legal in enumerate(row) if legal] for row in tables.legal.tolist()]
        self.population = [self.load_aware()]
        while len(self.population) < parameters.population:
            self.population.append([legal[self.random.below(len(legal))] for legal in self.legal])

    def load_aware(self) -> Chromosome:
        tables = self.evaluator.tables
        longest = [max(row) for row in tables.infer.tolist()]
        load, chromosome = tables.backlog.tolist(), [-1] * len(longest)
        for r in sorted(range(len(longest)), key=lambda r: (-longest[r], r)):
            at = {d: load[d] + tables.infer[r, d] + tables.transfer[r, d] for d in self.legal[r]}
            d = min(at, key=lambda d: (at[d], d))
            chromosome[r] = d
            load[d] += tables.infer[r, d]
        return chromosome

    def bounds(self, chromosomes: list[Chromosome]) -> Bounds:
        """Return the fixed bounds, or those within these chromosomes."""
        if self.parameters.normalisation == "fixed":
            return self.evaluator.bounds.tolist()
        terms = self.evaluator.terms(np.array(chromosomes)).T.tolist()
        return [(min(values), max(values)) for values in terms]

    def objective(self, chromosome: Chromosome, bounds: Bounds) -> float:
        value = 0.0
        terms, weights = self.evaluator.terms(np.array(chromosome)).tolist(), self.evaluator.tables.weights
        for weight, term, (low, high) in zip(weights.tolist(), terms, bounds, strict=True):
            if high > low:
                value += weight * (term - low) / (high - low)
        return value

    def ranked(self, chromosomes: list[Chromosome]) -> list[Chromosome]:
        """Return them best first; `sorted` is stable."""
        bounds = self.bounds(chromosomes)
        return sorted(chromosomes, key=lambda chromosome: self.objective(chromosome, bounds))

    def best(self) -> Chromosome:
        return self.ranked(self.population)[0]

    def step(self) -> None:
        """Play a generation."""
        bounds = self.bounds(self.population)
        fitness = [self.objective(chromosome, bounds) for chromosome in self.population]
        children: list[Chromosome] = []
        while len(children) < len(self.population):
            pair = [self.select(fitness), self.select(fitness)]
            if self.random.uniform() < self.parameters.crossover:
                self.cross(*pair)
                if self.random.uniform() < self.parameters.repair:
                    pair = [self.repair(child, bounds) for child in pair]
            children += [self.mutate(child) for child in pair]
        self.population = self.ranked(self.population + children)[: len(self.population)]

    def select(self, fitness: list[float]) -> Chromosome:
        entrants = [self.random.below(len(fitness)) for _ in range(self.parameters.tournament)]
        return list(self.population[min(entrants, key=lambda k: (fitness[k], k))])

    def cross(self, first: Chromosome, second: Chromosome) -> None:
        a, b = sorted(self.random.pair(len(first) + 1))
        first[a:b], second[a:b] = second[a:b], first[a:b]

    def mutate(self, chromosome: Chromosome) -> Chromosome:
        mutant = []
        for legal, d in zip(self.legal, chromosome, strict=True):
            hit = self.random.uniform() < self.parameters.mutation
            others = [other for other in legal if other != d]
            mutant.append(others[self.random.below(len(others))] if hit and others else d)
        return mutant

    def repair(self, chromosome: Chromosome, bounds: Bounds) -> Chromosome:
        trials = self.parameters.repair_trials // 2
        finish = self.evaluator.finish_parts(chromosome).finish.tolist()
        last = finish.index(max(finish))
        moves = []
        others = [d for d in self.legal[last] if d != chromosome[last]]
        for _ in range(min(trials, len(others))):
            k = self.random.below(len(others))
            moves.append([*chromosome[:last], others[k], *chromosome[last + 1 :]])
            others[k] = others[-1]
            others.pop()
        for _ in range(trials if len(chromosome) > 1 else 0):
            a, b = self.random.pair(len(chromosome))
            if chromosome[b] in self.legal[a] and chromosome[a] in self.legal[b]:
                swapped = list(chromosome)
                swapped[a], swapped[b] = chromosome[b], chromosome[a]
                moves.append(swapped)
        return min([chromosome, *moves], key=lambda move: self.objective(move, bounds))
