"""The memetic router of "CEMA-Router" (source, Algorithm 1), as published."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from routing_baselines.cloud_edge.memetic import Operators, best_of, first_population, generation, legal_sets
from routing_baselines.cloud_edge.router import BatchRouter
from routing_gym.cloud_edge.evaluator import BatchTables, term_bounds
from routing_gym.common.config import FrozenModel, packaged, validate


class CemaParameters(FrozenModel):
    """The parameters of `Cema`: the section `cema` of `configs/routers/cloud_edge.yaml`."""

    population: int = Field(ge=1)
    generations: int = Field(ge=0)
    crossover: float = Field(ge=0, le=1)
    mutation: float = Field(ge=0, le=1)
    tournament: int = Field(ge=1)
    repair: float = Field(ge=0, le=1)
    repair_trials: int = Field(ge=0, multiple_of=2)
    normalisation: Literal["population", "fixed"]
    time_budget_s: float | None = Field(ge=0)


class Cema(BatchRouter):
    """Evolves whole assignments for a fixed number of generations, and repairs some of them locally.

    Its diagnostics are `convergence`, (generations played + 1, 2): when each population stood, in seconds
    since the decision began, and J by the fixed bounds of the assignment that it would have returned then.
    Normalised within the population, that J may rise: bounds that move order assignments otherwise than
    fixed ones do, and an assignment that was the best may not survive.

    Attributes:
        parameters: what it was set to.
    """

    def __init__(
        self,
        population: int | None = None,
        generations: int | None = None,
        crossover: float | None = None,
        mutation: float | None = None,
        tournament: int | None = None,
        repair: float | None = None,
        repair_trials: int | None = None,
        normalisation: Literal["population", "fixed"] | None = None,
        time_budget_s: float | None = None,
    ) -> None:
        """Set the search; by default as published (Table IV).

        Args:
            population: P, chromosomes that survive a generation.
            generations: G.
            crossover: probability that a pair is crossed.
            mutation: probability that a gene changes.
            tournament: entrants of a tournament.
            repair: probability that a crossed pair is repaired.
            repair_trials: L, moves that a repair tries: half of them other destinations of the request
                that finishes last, half swaps.
            normalisation: `population`, min–max within the population, as published; or `fixed`, the
                bounds of DESIGN 4.
            time_budget_s: no generation begins this long after the decision did; no limit by default.

        Raises:
            ConfigError: a value that is not allowed.
        """
        given = {
            "population": population,
            "generations": generations,
            "crossover": crossover,
            "mutation": mutation,
            "tournament": tournament,
            "repair": repair,
            "repair_trials": repair_trials,
            "normalisation": normalisation,
            "time_budget_s": time_budget_s,
        }
        set_here = {name: value for name, value in given.items() if value is not None}
        self.parameters = validate(CemaParameters, packaged("routers", "cloud_edge")["cema"] | set_here)
        self._operators = Operators(
            self.parameters.crossover,
            self.parameters.mutation,
            self.parameters.tournament,
            self.parameters.repair,
            self.parameters.repair_trials,
            self.parameters.normalisation == "population",
        )

    def assign(
        self, tables: BatchTables, random: np.uint64
    ) -> tuple[NDArray[np.int64], np.uint64, Mapping[str, Any]]:
        """Search for the batch's best assignment; see `BatchRouter.assign`."""
        begun = time.perf_counter()
        budget = np.inf if self.parameters.time_budget_s is None else self.parameters.time_budget_s
        state = np.array([random], np.uint64)
        legal, fixed = legal_sets(tables.legal), term_bounds(tables)
        order = np.argsort(-self.output_tokens, kind="stable")
        size = self.parameters.population
        population = first_population(tables, order, legal, fixed, self._operators, size, state)
        best, value = best_of(population, fixed, tables.weights)
        convergence = [(time.perf_counter() - begun, value)]
        for _ in range(self.parameters.generations):
            if time.perf_counter() - begun >= budget:
                break
            generation(tables, legal, fixed, self._operators, population, state)
            best, value = best_of(population, fixed, tables.weights)
            convergence.append((time.perf_counter() - begun, value))
        return population.genes[best], state[0], {"convergence": np.array(convergence)}
