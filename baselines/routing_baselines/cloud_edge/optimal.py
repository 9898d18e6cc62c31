"""The exact optimum of one window, by mixed-integer program, with a proof (DESIGN 5)."""

from __future__ import annotations

from time import perf_counter
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from routing_baselines.cloud_edge.local_search import LocalSearch
from routing_baselines.cloud_edge.relaxation import Relaxation, relax
from routing_baselines.cloud_edge.router import BatchRouter, default
from routing_gym.cloud_edge.evaluator import BatchEvaluator, BatchTables, Floats

PROOF = 1e-9
"""An assignment is proven when its J is above a lower bound by at most this, relative to max(1, J)."""

FEASIBILITY = 1e-9
"""HiGHS takes reduced costs of a tenth of it for 0; it knows no tolerance below 1e-10."""

SCALE = 10.0
"""By how much the program's objective exceeds J: HiGHS drops what is better by less than `FEASIBILITY`."""


class Solution(NamedTuple):
    """The best assignment found for a batch, and what is proven about it."""

    assignment: NDArray[np.int64]  # (R,)
    objective: float  # J of the assignment, by `BatchEvaluator`
    bound: float  # no assignment has a lower J than this, less `PROOF`; never above `objective`
    proven: bool  # whether the two are the same but for `PROOF`
    seconds: float
    status: str  # "optimal" if proven; else "time limit", or "not proven" where HiGHS gave up
    convergence: Floats  # (n, 2), s since the start and the best J from then on


class _Search:
    """The best assignment and the best bound so far."""

    def __init__(self, evaluator: BatchEvaluator) -> None:
        self.started = perf_counter()
        self.evaluator = evaluator
        self.assignment = np.zeros(0, np.int64)
        self.objective = np.inf
        self.bound = -np.inf
        self.status = "not proven"
        self.convergence: list[tuple[float, float]] = []

    @property
    def seconds(self) -> float:
        return perf_counter() - self.started

    @property
    def proven(self) -> bool:
        return bool(self.bound >= self.objective - PROOF * max(1.0, self.objective))

    def try_assignment(self, assignment: ArrayLike) -> None:
        objective = float(self.evaluator.objective(assignment))
        if objective < self.objective:
            self.assignment, self.objective = np.array(assignment, np.int64), objective
            self.convergence.append((self.seconds, objective))

    def solution(self) -> Solution:
        return Solution(
            self.assignment,
            self.objective,
            min(self.bound, self.objective),
            self.proven,
            self.seconds,
            "optimal" if self.proven else self.status,
            np.array(self.convergence).reshape(-1, 2),
        )


def solve(
    tables: BatchTables, incumbent: ArrayLike | None = None, time_limit_s: float | None = None
) -> Solution:
    """Find the assignment of a batch with the least J, and prove that it is.

    Where a relaxation without queues already meets an assignment, that is the proof, in well under a
    millisecond. Otherwise HiGHS solves the mixed-integer program over the pairs that can still improve J.

    Args:
        tables: the batch.
        incumbent: an assignment (R,) to do better than.
        time_limit_s: how long HiGHS may take, s; by default the router's.

    Raises:
        ValueError: tables that do not fit together, or a negative weight of the completion time.
        ImportError: highspy is needed, and is not installed.
    """
    evaluator = BatchEvaluator(tables)
    search = _Search(evaluator)
    limit = default("optimal", "time_limit_s") if time_limit_s is None else time_limit_s
    if not len(tables.infer):
        search.try_assignment(np.zeros(0, np.int64))
        search.bound = 0.0
        return search.solution()
    relaxation = relax(tables, evaluator.bounds)
    # J is never negative, while next to bounds that nearly coincide the relaxation's rounding may be large.
    search.bound = max(relaxation.bound, 0.0) if (tables.backlog >= 0.0).all() else relaxation.bound
    search.try_assignment(relaxation.assignment())
    if incumbent is not None:
        search.try_assignment(incumbent)
    if not search.proven:
        _branch_and_bound(search, relaxation, limit)
    return search.solution()


def proven_bound(
    tables: BatchTables, incumbent: ArrayLike | None = None, time_limit_s: float | None = None
) -> float:
    """Return a lower bound of J of every assignment of a batch: the `bound` of `solve`; raises as it."""
    return solve(tables, incumbent, time_limit_s).bound


def _highspy() -> Any:
    try:
        import highspy
    except ImportError as error:
        raise ImportError(
            'the exact optimum needs highspy, which is not installed: pip install "routing-gym[optimal]"',
            name=error.name,
        ) from error
    return highspy


def _branch_and_bound(search: _Search, relaxation: Relaxation, limit: float) -> None:
    highspy = _highspy()
    program = _Program(search, relaxation)
    solver = highspy.Highs()
    options = {
        "output_flag": False,
        "threads": 1,
        "time_limit": limit,
        "mip_rel_gap": 0.0,
        "mip_abs_gap": FEASIBILITY,
        "mip_feasibility_tolerance": FEASIBILITY,
        "primal_feasibility_tolerance": FEASIBILITY,
    }
    for name, value in options.items():
        solver.setOptionValue(name, value)
    solver.passModel(program.model(highspy))
    start = highspy.HighsSolution()
    start.col_value = program.start
    solver.setSolution(start)
    if solver.run() == highspy.HighsStatus.kError:
        # Another solver in this process has set up HiGHS's threads, of which there can be one number only.
        highspy.Highs.resetGlobalScheduler(True)
        solver.run()
    status, info = solver.getModelStatus(), solver.getInfo()
    if status == highspy.HighsModelStatus.kTimeLimit:
        search.status = "time limit"
    if status in (highspy.HighsModelStatus.kOptimal, highspy.HighsModelStatus.kTimeLimit):
        search.bound = max(search.bound, float(info.mip_dual_bound) / SCALE - relaxation.rounding)
        if info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible:
            search.try_assignment(program.assignment(np.array(solver.getSolution().col_value)))


class _Program:
    """The assignments that can have a lower J than the incumbent, as a mixed-integer program.

    Columns: x(r, d) in {0, 1} for every pair whose bound is below the incumbent; λ = SCALE · rate ·
    (T − floor), where no better assignment completes before `floor`; and y(d) in {0, 1} for each destination
    too far behind to finish anything by then. With W_k(d) = Σ_{r <= k} T_infer(r, d)/S_d · x(r, d):

        Σ_d x(r, d) = 1
        T >= floor + Σ_d (direct(r, d) − floor)⁺ x(r, d)                              for each r
        T >= B_d + W_k(d) + t(d) + (T_trans(k, d) − t(d)) x(k, d)                     for each d and k
        T >= floor + (B_d + t(d) − floor) y(d) + … as above,   x(r, d) <= y(d)        with y(d)

    t(d) is the least T_trans on d: whichever request is last in the queue finishes no sooner than with that.
    """

    def __init__(self, search: _Search, relaxation: Relaxation) -> None:
        tables = search.evaluator.tables
        best, rate = search.objective, SCALE * relaxation.rate
        count, width = tables.infer.shape
        # The incumbent stays in: the bounds of its pairs, and of its T, lie below its J by some rounding.
        keep = relaxation.pair_bounds() < best
        completion = float(search.evaluator.terms(search.assignment)[3])
        reach = relaxation.values - relaxation.rounding < best
        self.floor = float(relaxation.caps[reach].min())
        self.keep = keep
        self.column = np.full(keep.shape, -1)
        self.column[keep] = np.arange(keep.sum())
        self.late = int(keep.sum())
        self.cost = [*(SCALE * relaxation.pair[keep]), 1.0]
        self.offset = rate * (self.floor - relaxation.origin)
        chosen = np.zeros(keep.shape)
        chosen[np.arange(count), search.assignment] = 1.0
        self.start = [*chosen[keep], rate * (completion - self.floor)]
        most = SCALE * (best - float(relaxation.least[-1].sum())) - self.offset
        self.upper = [*np.ones(self.late), most]
        self.rows: list[tuple[NDArray[Any], NDArray[Any], float, float]] = []
        for r in range(count):
            mine = self.column[r, keep[r]]
            self.rows.append((mine, np.ones(len(mine)), 1.0, 1.0))
            overrun = rate * (relaxation.direct[r, keep[r]] - self.floor)
            self._at_least(mine[overrun > 0.0], overrun[overrun > 0.0], 0.0)
        for d in range(width):
            self._queue(tables, d, rate, bool((search.assignment == d).any()))

    def _at_least(self, columns: NDArray[Any], values: NDArray[Any], constant: float) -> None:
        """Demand λ >= values · columns + constant."""
        if len(columns):
            row = np.append(columns, self.late), np.append(values, -1.0)
            self.rows.append((*row, -np.inf, -constant))

    def _queue(self, tables: BatchTables, d: int, rate: float, used: bool) -> None:
        """Demand that T is not before the queue of d is served."""
        queue = np.flatnonzero(self.keep[:, d])
        if len(queue) < 2:
            return
        transfer = tables.transfer[queue, d]
        work = tables.infer[queue, d] / tables.speedup[d]
        nearest = transfer.min()
        idle = tables.backlog[d] + nearest - self.floor
        columns, constant = self.column[queue, d], rate * idle
        extra, lead = columns[:0], np.zeros(0)
        if idle > 0.0:
            extra, lead, constant = np.array([len(self.cost)]), np.array([rate * idle]), 0.0
            self.cost.append(0.0)
            self.upper.append(1.0)
            self.start.append(float(used))
            for column in columns:
                self.rows.append((np.append(extra, column), np.array([-1.0, 1.0]), -np.inf, 0.0))
        for k in range(1, len(queue)):
            # Of the requests with the least transfer only the last in the queue can add anything.
            if transfer[k] > nearest or k == len(queue) - 1:
                values = work[: k + 1].copy()
                values[k] += transfer[k] - nearest
                self._at_least(np.append(columns[: k + 1], extra), np.append(rate * values, lead), constant)

    def model(self, highspy: Any) -> Any:
        """Return the program for HiGHS."""
        model = highspy.HighsLp()
        model.num_col_, model.num_row_ = len(self.cost), len(self.rows)
        model.offset_ = self.offset
        model.col_cost_ = np.array(self.cost)
        model.col_lower_ = np.zeros(len(self.cost))
        model.col_upper_ = np.array(self.upper)
        model.row_lower_ = np.array([row[2] for row in self.rows])
        model.row_upper_ = np.array([row[3] for row in self.rows])
        model.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        model.a_matrix_.start_ = np.cumsum([0, *(len(row[0]) for row in self.rows)])
        model.a_matrix_.index_ = np.concatenate([row[0] for row in self.rows])
        model.a_matrix_.value_ = np.concatenate([row[1] for row in self.rows])
        whole = [highspy.HighsVarType.kInteger] * len(self.cost)
        whole[self.late] = highspy.HighsVarType.kContinuous
        model.integrality_ = whole
        return model

    def assignment(self, values: Floats) -> NDArray[np.int64]:
        """Return the assignment of a solution of the program."""
        chosen = np.full(self.keep.shape, -1.0)
        chosen[self.keep] = values[: self.late]
        return chosen.argmax(axis=1)


class Optimal(BatchRouter):
    """The best assignment of each window on what the router sees, and a proof of it (DESIGN 5).

    It is optimal for a window, not for an episode: it does not mind what backlog it leaves behind. HiGHS is
    started from what `LocalSearch` finds, where that is not proven by the relaxation already.

    Args:
        time_limit_s: how long HiGHS may take over a batch, s; the best assignment by then is taken.

    Raises:
        ImportError: highspy is not installed.
        ValueError: a time limit that is not positive.
    """

    role: ClassVar[Any] = "yardstick"

    def __init__(self, time_limit_s: float | None = None) -> None:
        _highspy()
        self.time_limit_s = default("optimal", "time_limit_s") if time_limit_s is None else time_limit_s
        if not (isinstance(self.time_limit_s, (int, float)) and self.time_limit_s > 0.0):
            raise ValueError(f"time_limit_s = {self.time_limit_s!r}: must be a number above 0")
        self._search = LocalSearch()

    def assign(
        self, tables: BatchTables, random: np.uint64
    ) -> tuple[NDArray[np.int64], np.uint64, dict[str, Any]]:
        """Solve one batch; see `BatchRouter.assign`."""
        begun = perf_counter()
        incumbent, random, _ = self._search.assign(tables, random)
        searched = perf_counter() - begun
        solution = solve(tables, incumbent, self.time_limit_s)
        told = {
            "status": solution.status,
            "bound": solution.bound,
            "convergence": solution.convergence + np.array([searched, 0.0]),
        }
        return solution.assignment, random, told
