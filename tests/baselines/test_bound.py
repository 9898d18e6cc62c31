"""The on-time bound: optimal on the pooled machine, and above whatever the replicas can do."""

from __future__ import annotations

import copy
import itertools
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from routing_baselines.cluster.bound import max_on_time, on_time_bound, pooled_speed

GRID = 0.5
RELAXED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

Job = tuple[float, float, float]
Event = tuple[float, str, int, float]


def kise_ibaraki_mine(jobs: list[Job]) -> int:
    """`max_on_time` of a list of (release, due, processing)."""
    release, due, processing = np.array(jobs, dtype=np.float64).reshape(-1, 3).T.copy()
    return int(max_on_time(release, due, processing))


def in_time(sequence: tuple[Job, ...]) -> bool:
    """Whether all are in time when served in this order."""
    free = -np.inf
    for release, due, processing in sequence:
        free = max(free, release) + processing
        if free > due:
            return False
    return True


def brute_force(jobs: list[Job], *, any_order: bool) -> int:
    """Try every subset, in job order or in every order."""
    for size in range(len(jobs), 0, -1):
        for subset in itertools.combinations(jobs, size):
            orders = itertools.permutations(subset) if any_order else [subset]
            if any(map(in_time, orders)):
                return size
    return 0


@st.composite
def agreeable_jobs(draw: st.DrawFn, most: int) -> list[Job]:
    """Small integers, so that ties and idle gaps are common; equal windows in half of the cases."""
    size = draw(st.integers(0, most))
    span = draw(st.sampled_from([3, 8, 20]))
    release = sorted(draw(st.lists(st.integers(0, span), min_size=size, max_size=size)))
    window = st.just(draw(st.integers(1, 10))) if draw(st.booleans()) else st.integers(0, 12)
    due = list(itertools.accumulate([r + draw(window) for r in release], max))
    processing = draw(st.lists(st.integers(0, 6), min_size=size, max_size=size))
    return [(float(r), float(d), float(p)) for r, d, p in zip(release, due, processing, strict=True)]


@settings(RELAXED, max_examples=400)
@given(agreeable_jobs(9))
def test_is_optimal_among_subsets(jobs: list[Job]) -> None:
    """No subset served in arrival order is larger."""
    assert kise_ibaraki_mine(jobs) == brute_force(jobs, any_order=False)


@settings(RELAXED, max_examples=150)
@given(agreeable_jobs(5))
def test_is_optimal_among_all_orders(jobs: list[Job]) -> None:
    """Nor is one served in another order."""
    assert kise_ibaraki_mine(jobs) == brute_force(jobs, any_order=True)


def test_hand_worked_jobs() -> None:
    """A gap at 9; the long first job is given up, the one after the gap must not be."""
    # 0-6 and 6-8 are in time; the third would end at 11 > 9, and without the first it ends at 6.
    jobs = [(0.0, 7.0, 6.0), (1.0, 8.0, 2.0), (2.0, 9.0, 3.0)]
    assert kise_ibaraki_mine(jobs) == 2
    # Only with the first job gone is there room for the fourth: 1-3, 3-6, 6-9.
    jobs.append((3.0, 10.0, 3.0))
    assert kise_ibaraki_mine(jobs) == 3
    # The machine waits from 9 to 20. The last job fits into no window; giving up others is no help.
    jobs += [(20.0, 27.0, 4.0), (21.0, 28.0, 8.0)]
    assert kise_ibaraki_mine(jobs) == 4


def test_jobs_beyond_their_own_window_and_empty_input() -> None:
    """What cannot be in time alone is left out, at no cost to the others."""
    assert kise_ibaraki_mine([(0.0, 5.0, 6.0), (0.0, 5.0, 5.0)]) == 1
    assert kise_ibaraki_mine([]) == 0


# The replicas themselves: every way to route a few requests, by the rules of section 3.


@dataclass
class Replica:
    """Mean, condition, FIFO queue, and the slot as (arrival, completion tick)."""

    mean: float
    slow: float = 1.0
    healthy: bool = True
    waiting: list[int] = field(default_factory=list)
    slot: tuple[float, int] | None = None


@dataclass
class Case:
    """A small cluster and its workload."""

    means: list[float]
    arrival: list[float]
    demand: list[float]
    jitter: list[float]
    events: list[Event]
    deadline: float
    cutoff: float

    def bound(self, **changes: Any) -> int:
        """`on_time_bound` of this case, with some arguments replaced."""
        arguments: dict[str, Any] = {
            "arrival": self.arrival,
            "work": np.multiply(self.demand, self.jitter),
            "service_ms": self.means,
            "events": self.events,
            "deadline_ms": self.deadline,
            "cutoff_ms": self.cutoff,
        }
        return on_time_bound(**(arguments | changes))


class Search:
    """The most on-time requests over all routers, tick by tick.

    A search is ended early where a branch cannot beat the best count found so far.
    """

    def __init__(self, case: Case) -> None:
        """Run the search from time 0."""
        self.case = case
        self.best = 0
        self.last_tick = round(case.cutoff / GRID)
        replicas = [Replica(mean) for mean in case.means]
        self.visit(0, replicas, 0, 0, 0)

    def visit(self, tick: int, replicas: list[Replica], arrived: int, happened: int, on_time: int) -> None:
        """Parts 1 and 2 of the step to `tick`, then each way to route what needs a decision."""
        case = self.case
        while tick <= self.last_tick:
            now = tick * GRID
            for replica in replicas:
                if replica.slot and replica.slot[1] == tick:
                    on_time += now - replica.slot[0] <= case.deadline
                    replica.slot = None
            rerouted: list[int] = []
            while happened < len(case.events) and case.events[happened][0] <= now:
                _, kind, index, factor = case.events[happened]
                replica = replicas[index]
                if kind == "slowdown":
                    replica.slow = factor
                else:
                    replica.healthy = kind == "recovery"
                if kind == "failure":
                    rerouted += replica.waiting
                    replica.waiting = []
                happened += 1
            fresh = arrived
            while arrived < len(case.arrival) and case.arrival[arrived] <= now:
                arrived += 1
            pending = rerouted + list(range(fresh, arrived))
            if pending:
                hopes = len(case.arrival) - arrived + len(pending)
                hopes += sum(len(r.waiting) + (r.slot is not None) for r in replicas)
                if on_time + hopes > self.best:
                    self.branch(tick, replicas, arrived, happened, on_time, pending)
                return
            self.start(tick, replicas)
            tick += 1
        self.best = max(self.best, on_time)

    def branch(
        self,
        tick: int,
        replicas: list[Replica],
        arrived: int,
        happened: int,
        on_time: int,
        pending: list[int],
    ) -> None:
        """Parts 3 and 4: each request goes to a healthy replica, or is rejected (last index)."""
        choices = [i for i, replica in enumerate(replicas) if replica.healthy] + [len(replicas)]
        for choice in itertools.product(choices, repeat=len(pending)):
            after = copy.deepcopy(replicas)
            for request, index in zip(pending, choice, strict=True):
                if index < len(after):
                    after[index].waiting.append(request)
            self.start(tick, after)
            self.visit(tick + 1, after, arrived, happened, on_time)

    def start(self, tick: int, replicas: list[Replica]) -> None:
        """Part 4: idle replicas start the head of their queue."""
        case = self.case
        for replica in replicas:
            if replica.slot is None and replica.waiting:
                request = replica.waiting.pop(0)
                service = (case.demand[request] * replica.mean) / 11 * replica.slow
                ticks = int(np.ceil(service * case.jitter[request] / GRID))
                replica.slot = (case.arrival[request], tick + ticks)


KINDS = ("slowdown", "failure", "recovery")
FACTORS = (0.25, 0.5, 1.0, 3.0)


@st.composite
def clusters(draw: st.DrawFn) -> Case:
    """Short, overloaded episodes; half of the times lie on the grid."""
    size = draw(st.integers(1, 6))
    moment = st.one_of(
        st.integers(1, 16).map(lambda k: k * GRID), st.floats(0.001, 8.0, allow_subnormal=False)
    )
    events = draw(
        st.lists(
            st.tuples(moment, st.sampled_from(KINDS), st.integers(0, 1), st.sampled_from(FACTORS)),
            max_size=4,
        )
    )
    return Case(
        means=draw(st.lists(st.sampled_from([8.0, 11.0, 16.0, 22.0]), min_size=2, max_size=2)),
        arrival=sorted(draw(st.lists(moment, min_size=size, max_size=size))),
        demand=draw(st.lists(st.sampled_from([1.0, 2.5, 4.0, 7.3]), min_size=size, max_size=size)),
        jitter=draw(st.lists(st.sampled_from([0.9, 1.0, 1.1]), min_size=size, max_size=size)),
        events=sorted(events, key=lambda event: event[0]),
        deadline=draw(st.sampled_from([3.0, 5.0, 8.0])),
        cutoff=draw(st.sampled_from([8.0, 14.0])),
    )


@settings(RELAXED, max_examples=400)
@given(clusters())
def test_no_routing_of_the_replicas_exceeds_the_bound(case: Case) -> None:
    """Over all decisions, rejections included, with events and re-routing."""
    assert Search(case).best <= case.bound()


@settings(RELAXED, max_examples=100)
@given(clusters(), st.lists(st.integers(1, 10), min_size=6, max_size=6))
def test_one_steady_replica_attains_the_bound(case: Case, halves: list[int]) -> None:
    """On the grid, with one replica and no events, nothing is relaxed."""
    case.means, case.events, case.jitter = [11.0], [], [1.0] * len(case.arrival)
    case.arrival = [float(np.ceil(time / GRID) * GRID) for time in case.arrival]
    case.demand = [count * GRID for count in halves[: len(case.arrival)]]
    assert Search(case).best == case.bound()


HAND_WORKED: dict[str, tuple[list[float], list[float], list[Event], float, int]] = {
    # The failing replica finishes the request in flight: 0.5 to 8.5.
    "failure": ([0.5], [8.0], [(1.0, "failure", 0, 0.0)], 8.0, 1),
    # It has failed when the request is routed.
    "failure before": ([0.5], [8.0], [(0.3, "failure", 0, 0.0)], 8.0, 0),
    # It may start one at 0.5, and has no time for a second one after it.
    "failure, two": ([0.5, 0.5], [8.0, 8.0], [(1.0, "failure", 0, 0.0)], 9.0, 1),
    # The slow factor is read at the start; one that arrives later is served at a third.
    "slowdown": ([0.5], [8.0], [(1.0, "slowdown", 0, 3.0)], 8.0, 1),
    "slowdown before": ([1.0], [8.0], [(0.6, "slowdown", 0, 3.0)], 23.0, 0),
    "slowdown before, patient": ([1.0], [8.0], [(0.6, "slowdown", 0, 3.0)], 24.0, 1),
    # Set while failed, read after recovery; an event at 1.7 acts at 2.0, when the request starts.
    "hidden speed-up": (
        [2.0],
        [8.0],
        [(0.0, "failure", 0, 0.0), (1.0, "slowdown", 0, 0.5), (1.7, "recovery", 0, 0.0)],
        4.0,
        1,
    ),
    # Of several events at one boundary only the last state counts.
    "one boundary": (
        [0.5],
        [8.0],
        [(0.1, "slowdown", 0, 0.1), (0.2, "failure", 0, 0.0), (0.3, "slowdown", 0, 2.0)],
        50.0,
        0,
    ),
    "one boundary, fast between": (
        [0.3],
        [8.0],
        [(0.6, "slowdown", 0, 0.1), (0.7, "slowdown", 0, 1.0)],
        6.0,
        0,
    ),
    # Factors replace one another: twice as slow, not six times.
    "absolute": ([0.5], [8.0], [(0.1, "slowdown", 0, 3.0), (0.2, "slowdown", 0, 2.0)], 16.0, 1),
    # No service outlasts the cutoff, 40.
    "cutoff": ([33.0], [8.0], [], 50.0, 0),
}


@pytest.mark.parametrize("name", HAND_WORKED)
def test_hand_worked_clusters(name: str) -> None:
    """One replica of speed 1; the bound is the true optimum in each of these cases."""
    arrival, demand, events, deadline, expected = HAND_WORKED[name]
    case = Case([11.0], arrival, demand, [1.0] * len(demand), events, deadline, 40.0)
    assert case.bound() == Search(case).best == expected


@pytest.mark.parametrize(
    ("kind", "speed"), [("failure", [3.0, 3.0, 1.0, 3.0]), ("slowdown", [3.0, 3.0, 1.25, 3.0])]
)
def test_hand_worked_speed(kind: str, speed: list[float]) -> None:
    """Speeds 1 and 2; the second fails or slows at 10; 9.5 + 4/2 ends its last service before."""
    undo = {"failure": "recovery"}.get(kind, kind)
    events: list[Event] = [(10.0, kind, 1, 8.0), (20.0, undo, 1, 1.0)]
    edges, pooled = pooled_speed(
        [11.0, 5.5], events, [3.0, 12.0], [4.0, 40.0], deadline_ms=50.0, horizon_ms=30.0
    )
    middles = np.array([5.0, 11.0, 16.0, 25.0])
    assert pooled[np.searchsorted(edges, middles) - 1] == pytest.approx(speed)
    assert np.min(np.abs(edges - 11.5)) < 1e-5


@settings(RELAXED, max_examples=200)
@given(clusters(), st.floats(1.0, 3.0))
def test_more_time_or_speed_or_fewer_requests_is_never_worse(case: Case, more: float) -> None:
    """Monotone in the deadline, the replicas and the requests."""
    assert case.bound(deadline_ms=case.deadline * more) >= case.bound()
    # Without events only: after one, a faster replica is done sooner with what it still holds.
    steady = case.bound(events=[])
    assert case.bound(events=[], service_ms=[mean / more for mean in case.means]) >= steady
    assert case.bound(events=[], service_ms=[*case.means, 11.0]) >= steady
    work = np.multiply(case.demand, case.jitter)
    fewer = case.bound(events=[], arrival=case.arrival[1:], work=work[1:])
    assert fewer <= steady <= fewer + 1
    assert case.bound(events=[(2.0, "failure", 0, 0.0)]) <= steady


def test_only_the_cohort_counts() -> None:
    """The warm-up is open at its end, the cutoff closed."""
    case = Case([11.0], [1.0, 3.0, 4.0, 9.0], [1.0] * 4, [1.0] * 4, [], 5.0, 8.5)
    assert case.bound() == 3
    assert case.bound(measured_from_ms=3.0) == 1
    assert case.bound(measured_from_ms=8.5) == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"arrival": [2.0, 1.0]}, r"arrival\[1\] is 1.0"),
        ({"arrival": [2.0]}, "allowed is one"),
        ({"events": [(1.0, "reboot", 0, 1.0)]}, "event kind is 'reboot'"),
        ({"events": [(1.0, "failure", 1, 1.0)]}, "event replica is 1"),
        ({"events": [(1.0, "slowdown", 0, 0.0)]}, "slowdown factor is 0.0"),
        ({"events": [(2.0, "failure", 0, 0.0), (1.0, "recovery", 0, 0.0)]}, "event at 1.0"),
    ],
)
def test_refusals_name_the_value(changes: dict[str, Any], message: str) -> None:
    """An error says what it met and what is allowed."""
    case = Case([11.0], [1.0, 2.0], [1.0, 1.0], [1.0, 1.0], [], 5.0, 8.0)
    with pytest.raises(ValueError, match=message):
        case.bound(**changes)
