"""A plain, slow reference of the inference cluster (DESIGN section 3), one boundary at a time.

It shares no code with the compiled engine, so that the two can be compared bit for bit. It visits
every boundary n = 0, 1, 2, ... up to the cutoff, keeps queues as lists and finds things by
scanning them. Times are in milliseconds; floats are never rounded. The workload is an input: rate
changes act on the arrival times, hence before this file.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

Observation = dict[str, Any]
Choose = Callable[[Observation], int]

ON_TIME, LATE, SHED, LATENCY, OUTSTANDING = range(5)


@dataclass
class Request:
    """One request: the workload, as given, then what became of it."""

    arrival: float
    prompt: int
    output: int  # never read by the cluster
    predicted: int
    demand: float
    jitter: float
    replica: int = -1  # last accepted replica; -1: never accepted
    shed: bool = False  # lost, for want of an eligible replica or by rejection
    rejected: bool = False  # lost by the router's own choice
    start: float | None = None  # boundary at which service started
    completion: float | None = None  # boundary at which it completed
    reroutes: int = 0  # times it joined the re-route list
    invalid: int = 0  # its decisions that named an ineligible replica


@dataclass
class Event:
    """A change of one replica: `kind` is slowdown (to `factor`), failure or recovery."""

    time: float
    kind: str
    replica: int
    factor: float = 1.0


@dataclass
class Settings:
    """The constants of one cluster."""

    means: list[float]  # m_i, mean service of a reference request
    capacity: int  # waiting places per replica, the one in service not counted
    cutoff: float  # a multiple of q
    q: float = 0.5
    deadline: float = 50.0
    alpha: float = 0.15
    ceiling: float = 60.0  # L, a service time that earns no completion reward
    reference: float = 11.0  # demand of the reference request
    signal_interval: float = 0.0  # a multiple of q; 0: live
    admission: bool = False  # whether action N rejects the request
    hidden_prediction: float | None = None  # shown in place of every predicted value


@dataclass
class Replica:
    """One replica: its condition, its waiting queue and its one slot."""

    mean: float
    slow: float = 1.0
    healthy: bool = True
    waiting: list[Request] = field(default_factory=list)
    in_flight: Request | None = None
    finish_tick: int = -1
    last_completion: float | None = None

    def outstanding(self) -> list[Request]:
        """Return the requests it holds: the one in service, then those waiting."""
        return ([] if self.in_flight is None else [self.in_flight]) + self.waiting

    def in_flight_age(self, now: float) -> float:
        """Return how long the request in service has been served, 0 when idle."""
        if self.in_flight is None or self.in_flight.start is None:
            return 0.0
        return now - self.in_flight.start


class ReferenceCluster:
    """Plays one episode of the inference cluster.

    Attributes:
        requests: Own copies of the requests given; outcomes are filled in by `run`.
        decisions: (observation, action) of each decision, in order.
        terms: Reward terms [on_time, late, shed, latency_sum, outstanding_integral] of each
            decision, up to the next one; one entry if no decision is asked.
        closing: The closing observation.
        invalid_actions: Decisions that named an ineligible replica.
        service_ewma, reward_ewma, speed_ewma, completed: The router's statistics, per replica.
        counters: Slowdowns, effective failures and recoveries; requests re-routed (each time),
            shed (rejected ones included), rejected and completed.
    """

    def __init__(self, settings: Settings, events: list[Event], requests: list[Request]) -> None:
        """Set the scene at time 0.

        Args:
            settings: The cluster's constants.
            events: Events in any order; equal times act in list order.
            requests: The workload, sorted by arrival.

        Raises:
            ValueError: If the requests are not sorted by arrival.
        """
        if any(a.arrival > b.arrival for a, b in pairwise(requests)):
            raise ValueError("requests must be sorted by arrival")
        self.settings = settings
        self.requests = [
            Request(r.arrival, r.prompt, r.output, r.predicted, r.demand, r.jitter) for r in requests
        ]
        self.replicas = [Replica(mean) for mean in settings.means]
        count = len(self.replicas)
        self.service_ewma = [settings.reference] * count
        self.reward_ewma = [1.0 - settings.reference / settings.ceiling] * count
        self.speed_ewma = [1.0] * count
        self.completed = [0] * count
        self.decisions: list[tuple[Observation, int]] = []
        self.terms: list[list[float]] = [[0.0] * 5]
        self.closing: Observation = {}
        self.invalid_actions = 0
        names = ["slowdown", "failure", "recovery", "rerouted", "shed", "rejected", "completed"]
        self.counters = dict.fromkeys(names, 0)
        self._tick = 0
        self._now = 0.0
        self._events = sorted(events, key=lambda event: event.time)
        self._arrived = 0
        self._arrival_gap = 0.0
        self._reroute: list[Request] = []
        self._reported: dict[str, list[float]] = {}
        self._reported_at = 0.0

    def run(self, choose: Choose) -> None:
        """Play the whole episode.

        Args:
            choose: Called with the observation at each decision; returns the action.

        Raises:
            ValueError: If an action is outside the space, or an event's kind is unknown.
            RuntimeError: If the episode was already played.
        """
        if self.closing:
            raise RuntimeError("the episode was already played; make a new ReferenceCluster")
        for tick in range(round(self.settings.cutoff / self.settings.q) + 1):
            self._tick = tick
            self._now = tick * self.settings.q
            self._finish()  # part 1
            self._apply_events()  # part 2
            self._report()
            self._route(choose)  # part 3
            self._start()  # part 4
            outstanding = sum(len(replica.outstanding()) for replica in self.replicas)
            self.terms[-1][OUTSTANDING] += outstanding
        for terms in self.terms:
            terms[OUTSTANDING] *= self.settings.q
        self.closing = self._observe(None)

    def _finish(self) -> None:
        settings = self.settings
        for i, replica in enumerate(self.replicas):
            request = replica.in_flight
            if request is None or replica.finish_tick != self._tick:
                continue
            assert request.start is not None
            request.completion = self._now
            replica.in_flight = None
            replica.last_completion = self._now
            self.completed[i] += 1
            self.counters["completed"] += 1
            latency = request.completion - request.arrival
            self.terms[-1][ON_TIME if latency <= settings.deadline else LATE] += 1
            self.terms[-1][LATENCY] += latency
            service = request.completion - request.start
            reward = max(0.0, 1.0 - service / settings.ceiling)
            self.service_ewma[i] = self._mix(self.service_ewma[i], service)
            self.reward_ewma[i] = self._mix(self.reward_ewma[i], reward)
            self.speed_ewma[i] = self._mix(self.speed_ewma[i], service / request.demand)

    def _mix(self, average: float, sample: float) -> float:
        return average + self.settings.alpha * (sample - average)

    def _apply_events(self) -> None:
        while self._events and self._events[0].time <= self._now:
            event = self._events.pop(0)
            replica = self.replicas[event.replica]
            if event.kind == "slowdown":
                replica.slow = event.factor
            elif event.kind == "failure":
                if not replica.healthy:
                    continue
                replica.healthy = False
                for request in replica.waiting:
                    request.reroutes += 1
                    self.counters["rerouted"] += 1
                self._reroute += replica.waiting
                replica.waiting = []
            elif event.kind == "recovery":
                if replica.healthy:
                    continue
                replica.healthy = True
            else:
                raise ValueError(f"event kind {event.kind!r} is not slowdown, failure or recovery")
            self.counters[event.kind] += 1

    def _report(self) -> None:
        """Take the replicas' snapshot, between parts 2 and 3 at multiples of the interval."""
        every = round(self.settings.signal_interval / self.settings.q)
        if every > 0 and self._tick % every == 0:
            self._reported = self._replica_fields()
            self._reported_at = self._now

    def _replica_fields(self) -> dict[str, list[float]]:
        return {
            "waiting": [float(len(r.waiting)) for r in self.replicas],
            "in_flight": [float(r.in_flight is not None) for r in self.replicas],
            "in_flight_age": [r.in_flight_age(self._now) for r in self.replicas],
        }

    def _route(self, choose: Choose) -> None:
        if self._tick == 0:
            return
        while self._reroute:
            self._dispatch(self._reroute.pop(0), choose)
        while self._arrived < len(self.requests):
            request = self.requests[self._arrived]
            if request.arrival > self._now:
                break
            if self._arrived > 0:
                gap = request.arrival - self.requests[self._arrived - 1].arrival
                first = self._arrived == 1
                self._arrival_gap = gap if first else self._mix(self._arrival_gap, gap)
            self._arrived += 1
            self._dispatch(request, choose)

    def _eligible(self, replica: Replica) -> bool:
        return replica.healthy and len(replica.waiting) < self.settings.capacity

    def _dispatch(self, request: Request, choose: Choose) -> None:
        count = len(self.replicas)
        if not any(self._eligible(replica) for replica in self.replicas):
            self._shed(request)
            return
        observation = self._observe(request)
        action = int(choose(observation))
        if not 0 <= action < count + self.settings.admission:
            raise ValueError(f"action {action} is outside 0..{count + self.settings.admission - 1}")
        if self.decisions:
            self.terms.append([0.0] * 5)
        self.decisions.append((observation, action))
        if action == count:
            request.rejected = True
            self.counters["rejected"] += 1
            self._shed(request)
            return
        if not self._eligible(self.replicas[action]):
            request.invalid += 1
            self.invalid_actions += 1
        while not self._eligible(self.replicas[action]):
            action = (action + 1) % count
        request.replica = action
        self.replicas[action].waiting.append(request)

    def _shed(self, request: Request) -> None:
        request.shed = True
        self.terms[-1][SHED] += 1
        self.counters["shed"] += 1

    def _start(self) -> None:
        for replica in self.replicas:
            if replica.in_flight is not None or not replica.waiting:
                continue
            request = replica.waiting.pop(0)
            base = (request.demand * replica.mean) / self.settings.reference
            service = (base * replica.slow) * request.jitter
            request.start = self._now
            replica.in_flight = request
            replica.finish_tick = self._tick + math.ceil(service / self.settings.q)

    def _predicted(self, request: Request) -> float:
        hidden = self.settings.hidden_prediction
        return float(request.predicted) if hidden is None else float(hidden)

    def _observe(self, request: Request | None) -> Observation:
        """Return the observation shown for `request`, or the closing one for None."""
        now, replicas, settings = self._now, self.replicas, self.settings
        held = [replica.outstanding() for replica in replicas]
        eligible = [int(self._eligible(replica)) for replica in replicas]
        mask = ([1] * len(replicas) if request is None else eligible) + [1] * settings.admission
        live = settings.signal_interval == 0
        reported = self._replica_fields() if live else self._reported
        shown = [0.0, 0.0, 0.0]
        if request is not None:
            shown = [float(request.prompt), self._predicted(request), now - request.arrival]
        return {
            "outstanding": [float(len(h)) for h in held],
            "outstanding_prompt_tokens": [float(sum(r.prompt for r in h)) for h in held],
            "outstanding_predicted_tokens": [float(sum(self._predicted(r) for r in h)) for h in held],
            "service_ewma": list(self.service_ewma),
            "speed_ewma": list(self.speed_ewma),
            "reward_ewma": list(self.reward_ewma),
            "completed": [float(completed) for completed in self.completed],
            "oldest_age": [now - min(r.arrival for r in h) if h else 0.0 for h in held],
            "since_completion": [
                now if r.last_completion is None else now - r.last_completion for r in replicas
            ],
            "healthy": [int(replica.healthy) for replica in replicas],
            "eligible": list(eligible),
            **{name: list(values) for name, values in reported.items()},
            "request": shown,
            "arrival_gap": self._arrival_gap,
            "deadline": settings.deadline,
            "signal_age": 0.0 if live else now - self._reported_at,
            "mask": list(mask),
        }
