"""A plain, slow reference of the cloud–edge model (DESIGN section 4), one window at a time.

It shares no code with the package, so that the two can be compared. The first part scores one batch:
lists of floats, every formula spelled out. The second plays a whole episode on given draws. Times are
in seconds.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

Observation = dict[str, Any]
Rows = list[list[float]]


class Destination(NamedTuple):
    """A model on a node, and the way to it."""

    parameters: float
    single: float  # F1, FLOP/s
    saturated: float  # FB, FLOP/s
    power_w: float
    utilisation: float
    up_mbit_s: float
    down_mbit_s: float
    transmit_w: float
    receive_w: float
    price_in: float  # USD per 1M tokens
    price_out: float
    fee: float  # USD per request
    price_gb: float  # USD per 1e9 bytes
    edge: bool

    @property
    def speedup(self) -> float:
        """S_d: how much faster a full batch goes than its requests one by one."""
        return self.saturated / self.single

    @property
    def token_price(self) -> float:
        """The price of a token in or out, on average, USD per 1M."""
        return (self.price_in + self.price_out) / 2


class Pair(NamedTuple):
    """One request on one destination, on its own."""

    infer: float
    transfer: float
    cost: float
    energy: float


@dataclass
class Tables:
    """A batch, in dispatch order: everything an assignment of it is scored by."""

    loss: Rows
    cost: Rows
    energy: Rows
    infer: Rows
    transfer: Rows
    legal: list[list[bool]]
    backlog: list[float]
    speedup: list[float]
    weights: list[float]


class Parts(NamedTuple):
    """When a request finishes, and of what that is made."""

    infer: float
    transfer: float
    queue: float
    finish: float


def pair(d: Destination, n_in: float, n_out: float, rtt: float) -> Pair:
    """Return T_infer, T_trans, C and E of a request on a destination."""
    bytes_up, bytes_down = 4 * n_in, 4 * n_out
    up = bytes_up * 8 / (1e6 * d.up_mbit_s)
    down = bytes_down * 8 / (1e6 * d.down_mbit_s)
    infer = 2 * d.parameters * (n_in / d.saturated + n_out / d.single)
    gigabytes = (bytes_up + bytes_down) / 1e9
    return Pair(
        infer=infer,
        transfer=rtt + up + down,
        cost=(n_in * d.price_in + n_out * d.price_out) / 1e6 + d.fee + gigabytes * d.price_gb,
        energy=infer * d.power_w * d.utilisation + up * d.transmit_w + down * d.receive_w,
    )


def finish_parts(tables: Tables, assignment: list[int]) -> list[Parts]:
    """Return each request's T_infer, T_trans, T_queue and finish."""
    parts = []
    for r, d in enumerate(assignment):
        infer, transfer = tables.infer[r][d], tables.transfer[r][d]
        work = sum(tables.infer[s][d] for s in range(r + 1) if assignment[s] == d)
        finish = tables.backlog[d] + max(infer, work / tables.speedup[d]) + transfer
        parts.append(Parts(infer, transfer, finish - infer - transfer, finish))
    return parts


def terms(tables: Tables, assignment: list[int]) -> list[float]:
    """Return Q, C, E and T of an assignment; all are 0 of an empty batch."""
    chosen = list(enumerate(assignment))
    if not chosen:
        return [0.0] * 4
    return [
        sum(tables.loss[r][d] for r, d in chosen) / len(chosen),
        sum(tables.cost[r][d] for r, d in chosen),
        sum(tables.energy[r][d] for r, d in chosen),
        max(parts.finish for parts in finish_parts(tables, assignment)),
    ]


def bounds(tables: Tables) -> list[tuple[float, float]]:
    """Return (lo, hi) of Q, C, E and T over legal pairs, as if nothing were carried over."""
    count = len(tables.legal)
    if not count:
        return [(0.0, 0.0)] * 4

    def legal_of(r: int) -> list[int]:
        return [d for d, legal in enumerate(tables.legal[r]) if legal]

    def sums(rows: Rows) -> tuple[float, float]:
        return (
            sum(min(rows[r][d] for d in legal_of(r)) for r in range(count)),
            sum(max(rows[r][d] for d in legal_of(r)) for r in range(count)),
        )

    loss = sums(tables.loss)
    low = max(min(tables.infer[r][d] + tables.transfer[r][d] for d in legal_of(r)) for r in range(count))
    high = 0.0
    for d, speedup in enumerate(tables.speedup):
        on = [r for r in range(count) if tables.legal[r][d]]
        if on:
            infer = [tables.infer[r][d] for r in on]
            transfer = [tables.transfer[r][d] for r in on]
            high = max(high, max(*infer, sum(infer) / speedup) + max(transfer))
    return [(loss[0] / count, loss[1] / count), sums(tables.cost), sums(tables.energy), (low, high)]


def normalised(values: list[float], limits: list[tuple[float, float]]) -> list[float]:
    """Return (term − lo)/(hi − lo) of each term; 0 where the bounds coincide."""
    return [
        0.0 if high == low else (value - low) / (high - low)
        for value, (low, high) in zip(values, limits, strict=True)
    ]


def weighted(values: list[float], limits: list[tuple[float, float]], weights: list[float]) -> float:
    """Return Σ ω·(term − lo)/(hi − lo)."""
    return sum(w * share for w, share in zip(weights, normalised(values, limits), strict=True))


def objective(tables: Tables, assignment: list[int]) -> float:
    """Return J of an assignment."""
    return weighted(terms(tables, assignment), bounds(tables), tables.weights)


def new_work(tables: Tables, assignment: list[int]) -> list[float]:
    """Return, for each destination, how long what it is given keeps it busy."""
    new = []
    for d, speedup in enumerate(tables.speedup):
        infer = [tables.infer[r][d] for r, chosen in enumerate(assignment) if chosen == d]
        new.append(max(*infer, sum(infer) / speedup) if infer else 0.0)
    return new


def next_backlog(backlog: list[float], new: list[float], window: float) -> list[float]:
    """Return the backlog one window on."""
    return [max(0.0, b + n - window) for b, n in zip(backlog, new, strict=True)]


def cross_router(batches: list[Rows], weights: list[float]) -> list[float]:
    """Return the source's J of each router: min–max over the routers per batch, then averaged.

    Args:
        batches: For each batch, the terms [Q, C, E, T] of each router.
        weights: ω.
    """
    routers = len(batches[0])
    total = [0.0] * routers
    for batch in batches:
        limits = [(min(column), max(column)) for column in zip(*batch, strict=True)]
        for i, values in enumerate(batch):
            total[i] += weighted(values, limits, weights)
    return [value / len(batches) for value in total]


@dataclass
class Request:
    """One request: the draws, as given, then what became of it."""

    arrival: float
    input_tokens: int
    predicted_output: int
    output: list[int]  # on each destination
    quality: list[float]
    predicted_quality: list[float]
    cluster_error: list[float]
    edge_only: bool = False
    predicted_by_destination: list[int] = field(default_factory=list)  # empty: `predicted_output` everywhere
    window: int = -1  # at whose end it was dispatched; -1: never
    destination: int = -1
    set_aside: bool = False  # had no legal destination at some dispatch
    invalid: bool = False  # an illegal destination was chosen for it
    predicted: Parts | None = None
    actual: Parts | None = None
    predicted_pair: Pair | None = None
    actual_pair: Pair | None = None


@dataclass
class Settings:
    """The constants of one episode."""

    destinations: list[Destination]
    rtt: Rows  # of each window and destination, s
    up: list[list[bool]]  # of each window and destination
    weights: list[float]
    max_requests: int
    window: float = 1.0  # Δ
    reward_on: str = "actual"


@dataclass
class Batch:
    """What became of one window."""

    requests: list[Request]
    assignment: list[int]
    predicted_terms: list[float]
    actual_terms: list[float]
    predicted_objective: float
    actual_objective: float
    reward: float
    reward_terms: list[float]  # minus the normalised terms that are paid
    backlog: list[float]  # B_d that it leaves


@dataclass
class _Monitor:
    """The request monitor's record of one destination."""

    backlog: float = 0.0
    finishes: list[float] = field(default_factory=list)  # of all that was dispatched, as clock times

    def outstanding(self, now: float) -> int:
        return sum(finish > now for finish in self.finishes)


class ReferenceCloudEdge:
    """Plays one episode of the cloud–edge system.

    Attributes:
        requests: Own copies of the requests given, with what became of them.
        decisions: (observation, action) of each decision: of a window, or of a request in `walk`.
        rewards, reward_terms: The reward of each decision, and minus the normalised terms behind it.
        batches: What became of each window, empty ones included.
        closing: The closing observation.
        backlog: B_d, on actual durations.
        invalid_actions: Choices that named an illegal destination.
    """

    def __init__(self, settings: Settings, requests: list[Request]) -> None:
        """Set the scene at time 0.

        Args:
            settings: The episode's constants.
            requests: What arrives within the episode's windows, sorted by arrival.

        Raises:
            ValueError: If the requests are not sorted by arrival or arrive outside the episode.
        """
        end = len(settings.up) * settings.window
        if any(a.arrival > b.arrival for a, b in pairwise(requests)):
            raise ValueError("requests must be sorted by arrival")
        if any(not 0 <= request.arrival < end for request in requests):
            raise ValueError(f"requests must arrive in [0, {end})")
        self.settings = settings
        self.requests = [
            Request(
                r.arrival,
                r.input_tokens,
                r.predicted_output,
                r.output,
                r.quality,
                r.predicted_quality,
                r.cluster_error,
                r.edge_only,
                r.predicted_by_destination,
            )
            for r in requests
        ]
        self.backlog = [0.0] * len(settings.destinations)
        self.decisions: list[tuple[Observation, Any]] = []
        self.rewards: list[float] = []
        self.reward_terms: list[list[float]] = []
        self.batches: list[Batch] = []
        self.closing: Observation = {}
        self.invalid_actions = 0
        self._monitors = [_Monitor() for _ in settings.destinations]

    def run(self, choose: Callable[[Observation], list[int]]) -> None:
        """Play the episode, a window a decision; `choose` names a destination for each slot."""
        for window in range(len(self.settings.up)):
            batch = self._gather(window)
            observation = self._observe(window, batch)
            choices = choose(observation)
            self.decisions.append((observation, choices))
            assignment = [
                self._accept(window, request, choice)
                for request, choice in zip(batch, choices[: len(batch)], strict=True)
            ]
            self._dispatch(window, batch, assignment)
            self.rewards.append(self.batches[-1].reward)
            self.reward_terms.append(self.batches[-1].reward_terms)
        self.closing = self._observe(len(self.settings.up), [])

    def walk(self, choose: Callable[[Observation], int]) -> None:
        """Play the episode, a request a decision: each batch longest predicted output first."""
        for window in range(len(self.settings.up)):
            batch = self._gather(window)
            order = sorted(range(len(batch)), key=lambda r: (-batch[r].predicted_output, r))
            chosen: dict[int, int] = {}
            for r in order:
                observation = self._observe_one(window, batch, r, chosen)
                choice = choose(observation)
                self.decisions.append((observation, choice))
                self.rewards.append(0.0)
                self.reward_terms.append([0.0] * 4)
                chosen[r] = self._accept(window, batch[r], choice)
            self._dispatch(window, batch, [chosen[r] for r in range(len(batch))])
            if batch:
                self.rewards[-1] = self.batches[-1].reward
                self.reward_terms[-1] = self.batches[-1].reward_terms
        self.closing = self._observe_one(len(self.settings.up), [], None, {})

    def _legal(self, window: int, request: Request) -> list[bool]:
        return [
            up and (d.edge or not request.edge_only)
            for d, up in zip(self.settings.destinations, self.settings.up[window], strict=True)
        ]

    def _gather(self, window: int) -> list[Request]:
        """Return the batch dispatched at the end of a window; what cannot go is set aside."""
        end = (window + 1) * self.settings.window
        batch: list[Request] = []
        for request in self.requests:
            if request.arrival >= end or request.window >= 0:
                continue
            if not any(self._legal(window, request)):
                request.set_aside = True
            elif len(batch) < self.settings.max_requests:
                batch.append(request)
        return batch

    def _accept(self, window: int, request: Request, choice: int) -> int:
        legal = self._legal(window, request)
        if not 0 <= choice < len(legal):
            raise ValueError(f"choice {choice} is outside 0..{len(legal) - 1}")
        if not legal[choice]:
            self.invalid_actions += 1
            request.invalid = True
        while not legal[choice]:
            choice = (choice + 1) % len(legal)
        return choice

    def _now(self, window: int) -> float:
        """Return the time at which a window's batch is dispatched."""
        return (window + 1) * self.settings.window

    def _pairs(self, window: int, request: Request, predicted: bool) -> list[Pair]:
        return [
            pair(
                destination,
                request.input_tokens,
                self._output(request, d, predicted),
                self.settings.rtt[window][d],
            )
            for d, destination in enumerate(self.settings.destinations)
        ]

    def _output(self, request: Request, d: int, predicted: bool) -> int:
        """Return an answer's length at a destination, which may be predicted for each or once for all."""
        if not predicted:
            return request.output[d]
        return (
            request.predicted_by_destination[d]
            if request.predicted_by_destination
            else request.predicted_output
        )

    def _monitored(self, now: float) -> list[float]:
        """Return the monitor's backlogs: none where all that was dispatched has completed."""
        for monitor in self._monitors:
            if monitor.outstanding(now) == 0:
                monitor.backlog = 0.0
        return [monitor.backlog for monitor in self._monitors]

    def _tables(self, window: int, batch: list[Request], predicted: bool) -> Tables:
        pairs = [self._pairs(window, request, predicted) for request in batch]
        return Tables(
            loss=[[1 - q for q in (r.predicted_quality if predicted else r.quality)] for r in batch],
            cost=[[p.cost for p in row] for row in pairs],
            energy=[[p.energy for p in row] for row in pairs],
            infer=[[p.infer for p in row] for row in pairs],
            transfer=[[p.transfer for p in row] for row in pairs],
            legal=[self._legal(window, request) for request in batch],
            backlog=self._monitored(self._now(window)) if predicted else list(self.backlog),
            speedup=[d.speedup for d in self.settings.destinations],
            weights=self.settings.weights,
        )

    def _dispatch(self, window: int, batch: list[Request], assignment: list[int]) -> None:
        now = self._now(window)
        predicted = self._tables(window, batch, predicted=True)
        actual = self._tables(window, batch, predicted=False)
        paid = actual if self.settings.reward_on == "actual" else predicted
        foreseen, happened = finish_parts(predicted, assignment), finish_parts(actual, assignment)
        for r, (request, d) in enumerate(zip(batch, assignment, strict=True)):
            request.window, request.destination = window, d
            request.predicted, request.actual = foreseen[r], happened[r]
            request.predicted_pair = self._pairs(window, request, predicted=True)[d]
            request.actual_pair = self._pairs(window, request, predicted=False)[d]
            self._monitors[d].finishes.append(now + happened[r].finish)
        monitored = next_backlog(predicted.backlog, new_work(predicted, assignment), self.settings.window)
        for monitor, backlog in zip(self._monitors, monitored, strict=True):
            monitor.backlog = backlog
        self.backlog = next_backlog(actual.backlog, new_work(actual, assignment), self.settings.window)
        self.batches.append(
            Batch(
                batch,
                assignment,
                terms(predicted, assignment),
                terms(actual, assignment),
                objective(predicted, assignment),
                objective(actual, assignment),
                reward=-objective(paid, assignment),
                reward_terms=[-share for share in normalised(terms(paid, assignment), bounds(paid))],
                backlog=self.backlog,
            )
        )

    def _observe(self, window: int, batch: list[Request]) -> Observation:
        """Return what a batch router is shown; lists are padded to R_max slots."""
        settings, now = self.settings, self._now(window)
        count, slots = len(settings.destinations), settings.max_requests
        rows = {name: [[0.0] * count] * slots for name in ("quality", "cluster_error")}
        rows |= {name: [[0.0] * count] * slots for name in ("cost", "energy", "infer_s", "transfer_s")}
        rows["legal"] = [[1.0] + [0.0] * (count - 1)] * slots
        for r, request in enumerate(batch):
            pairs = self._pairs(window, request, predicted=True)
            rows["quality"][r] = request.predicted_quality
            rows["cluster_error"][r] = request.cluster_error
            rows["cost"][r] = [p.cost for p in pairs]
            rows["energy"][r] = [p.energy for p in pairs]
            rows["infer_s"][r] = [p.infer for p in pairs]
            rows["transfer_s"][r] = [p.transfer for p in pairs]
            rows["legal"][r] = [float(legal) for legal in self._legal(window, request)]
        padding = [0.0] * (slots - len(batch))
        return {
            "active": [1.0] * len(batch) + padding,
            "input_tokens": [float(r.input_tokens) for r in batch] + padding,
            "predicted_output_tokens": [float(r.predicted_output) for r in batch] + padding,
            **rows,
            "backlog_s": self._monitored(now),
            "speedup": [d.speedup for d in settings.destinations],
            "is_cloud": [float(not d.edge) for d in settings.destinations],
            "token_price": [d.token_price for d in settings.destinations],
            "outstanding": [float(monitor.outstanding(now)) for monitor in self._monitors],
            "weights": settings.weights,
        }

    def _observe_one(
        self, window: int, batch: list[Request], r: int | None, chosen: dict[int, int]
    ) -> Observation:
        """Return what a request router is shown: its row, and the load that the batch has made so far.

        All destinations are legal in the closing observation, of no request.
        """
        destinations = self.settings.destinations
        whole, tables = self._observe(window, batch), self._tables(window, batch, predicted=True)
        load, outstanding = list(whole["backlog_s"]), list(whole["outstanding"])
        for d, destination in enumerate(destinations):
            assigned = [s for s, choice in chosen.items() if choice == d]
            outstanding[d] += len(assigned)
            if assigned:
                infer = [tables.infer[s][d] for s in assigned]
                load[d] += max(*infer, sum(infer) / destination.speedup)
        names = ("quality", "cluster_error", "cost", "energy", "infer_s", "transfer_s", "legal")
        if r is None:
            rows = {name: [0.0] * len(destinations) for name in names} | {"legal": [1.0] * len(destinations)}
        else:
            rows = {name: whole[name][r] for name in names}
        ranges = [high - low for low, high in bounds(tables)]
        ranges[0] *= len(batch)
        return {
            **rows,
            **{name: whole[name] for name in ("backlog_s", "speedup", "is_cloud", "token_price", "weights")},
            "outstanding": outstanding,
            "provisional_load_s": load,
            "input_tokens": 0.0 if r is None else float(batch[r].input_tokens),
            "predicted_output_tokens": 0.0 if r is None else float(batch[r].predicted_output),
            "remaining": float(len(batch) - len(chosen)),
            "term_range": ranges,
        }

    def metrics(self) -> dict[str, Any]:
        """Return the episode's metrics; those that are undefined are None."""
        settings = self.settings
        sent = [request for request in self.requests if request.window >= 0]
        busy = [batch for batch in self.batches if batch.requests]
        waited = [r for r in self.requests if r.window < 0 or r.arrival < r.window * settings.window]
        latency = sorted(
            self._now(r.window) - r.arrival + r.actual.finish for r in sent if r.actual is not None
        )
        largest = [max(batch.backlog) for batch in self.batches]

        def mean(values: list[float]) -> float | None:
            return sum(values) / len(values) if values else None

        def percentile(percent: int, values: list[float]) -> float | None:
            return values[math.ceil(percent * len(values) / 100) - 1] if values else None

        def share(of: list[int]) -> float | None:
            return mean([float(request.destination in of) for request in sent])

        destinations = range(len(settings.destinations))
        return {
            "arrivals": len(self.requests),
            "dispatched": len(sent),
            "undispatched": len(self.requests) - len(sent),
            "waited": len(waited),
            "set_aside": sum(request.set_aside for request in self.requests),
            "invalid_actions": self.invalid_actions,
            "windows": len(self.batches),
            "nonempty_windows": len(busy),
            "objective": mean([-batch.reward for batch in busy]),
            "objective_predicted": mean([batch.predicted_objective for batch in busy]),
            "quality_loss": mean([batch.actual_terms[0] for batch in busy]),
            "cost_usd": mean([batch.actual_terms[1] for batch in busy]),
            "energy_j": mean([batch.actual_terms[2] for batch in busy]),
            "completion_s": mean([batch.actual_terms[3] for batch in busy]),
            "quality": mean([request.quality[request.destination] for request in sent]),
            "mean_latency_s": mean(latency),
            "p50_latency_s": percentile(50, latency),
            "p95_latency_s": percentile(95, latency),
            "p99_latency_s": percentile(99, latency),
            "p99_all_latency_s": percentile(99, latency + [math.inf] * (len(self.requests) - len(sent))),
            "cloud_share": share([d for d in destinations if not settings.destinations[d].edge]),
            "mean_backlog_s": mean(largest),
            "max_backlog_s": max(largest),
            "destination_shares": [share([d]) for d in destinations] if sent else None,
        }
