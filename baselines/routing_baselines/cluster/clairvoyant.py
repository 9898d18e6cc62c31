"""A yardstick that sees the future: what could be had by a router that knew every request in advance."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from routing_baselines.cluster.router import default
from routing_baselines.cluster.work import DeadlineAware
from routing_gym.cluster.config import ClusterConfig
from routing_gym.cluster.engine import decide, run
from routing_gym.cluster.state import FAILURE, NEVER, NONE, RECOVERY, SLOWDOWN, is_eligible
from routing_gym.common.jit import njit
from routing_gym.policy import Policy

PLANNED = np.dtype([("request", "i4"), ("action", "i4"), ("arrival", "f8")])


class Clairvoyant(Policy):
    """Plans by beam search over the true demands, arrivals and events, and follows the plan.

    A replica serves in order, so when a request will be done is known once it is assigned. The
    search goes through the pending requests and the next `horizon` arrivals one by one. At each it
    extends every state by every eligible replica (and by rejection, under admission) and keeps the
    `width` best by: requests on time, less `price` · Σ g(b_i)/m_i. Here b_i is the time until
    replica i is idle, m_i its mean service, g(b) = b²/2D up to the deadline D and D/2 + D·ln(b/D)
    beyond: a replica that is given up serves as the dump, so more backlog there costs little more.
    Of states with nearly equal backlogs only the best is kept, so that different plans survive.
    Only where the look-ahead reaches the last arrival do requests on time alone choose the plan.

    The plan is then played in the true model, against `deadline_aware` over the same arrivals; the
    one with more requests on time is followed for a share of the horizon (half, as shipped in
    `configs/routers/cluster.yaml`). It plans anew after that, and
    whenever the environment asks or did something else than planned. A request that a failure will
    send back counts for nothing until it is; then it is planned for like any other.

    What it does can be done, so its attainment can be had; it is no upper bound.

    Attributes:
        horizon: arrivals to look ahead.
        width: states that the search keeps.
        price: what the search takes off for backlog, in requests on time per request of mean size (at b = D).
    """

    family: ClassVar[str] = "cluster"
    role: ClassVar[Literal["router", "yardstick"]] = "yardstick"
    max_rows: ClassVar[int] = 16

    def __init__(
        self,
        horizon: int | None = None,
        margin: float | None = None,
        width: int | None = None,
        price: float | None = None,
    ) -> None:
        """Set the search, and the margin of the `deadline_aware` to beat; by default as shipped.

        Raises:
            ValueError: a negative horizon, or a margin or width that is not positive.
        """
        horizon = int(default("clairvoyant", "horizon")) if horizon is None else horizon
        margin = default("clairvoyant", "margin") if margin is None else margin
        width = int(default("clairvoyant", "width")) if width is None else width
        if horizon < 0:
            raise ValueError(f"horizon = {horizon}: must not be negative")
        if width < 1:
            raise ValueError(f"width = {width}: must be at least 1")
        self.horizon = horizon
        self.width = width
        self.price = default("clairvoyant", "price") if price is None else price
        self._cells = float(default("clairvoyant", "cells"))
        self._replan = default("clairvoyant", "replan")
        self._base = DeadlineAware(margin)
        self._demand: NDArray[np.float64] | None = None
        self._envs: Any = None

    def configure(self, configs: Sequence[ClusterConfig]) -> None:
        """Take over demand coefficients."""
        self._base.configure(configs)
        columns = [np.broadcast_to(np.ravel(c), len(configs)) for c in self._base.demand]
        self._demand = np.stack(columns, axis=-1).astype(np.float64)

    def attach(self, envs: Any) -> None:
        """Look into the vector environment that it acts in."""
        self._envs = envs.unwrapped
        rows = len(self._envs.state.rows)
        self._plans = np.zeros((rows, max(1, int(self.horizon * self._replan))), PLANNED)
        # Per row, how far it is in its plan and how long that is.
        self._progress = np.zeros((rows, 2), np.int64)

    def predict(
        self,
        observation: Mapping[str, NDArray[Any]],
        state: Any = None,
        episode_start: Any = None,
        deterministic: bool = True,
        action_masks: NDArray[Any] | None = None,
    ) -> tuple[NDArray[np.int64], Any]:
        """Choose by looking into the attached environment, not at the observation.

        Raises:
            RuntimeError: it was not configured, or no environment was attached.
        """
        if self._envs is None or self._demand is None:
            raise RuntimeError("clairvoyant looks into the environment: configure and attach it first")
        cluster = self._envs.state
        actions = np.zeros(len(cluster.rows), np.int64)
        _follow(
            (cluster.rows, cluster.replicas, cluster.requests, cluster.events),
            (self._plans, self._progress),
            (self._demand, self._base.margin, self.horizon, self.width, self.price, self._cells),
            actions,
        )
        return actions, state


@njit
def deadline_aware(row: Any, replicas: Any, requests: Any, demand: Any, margin: float) -> int:
    """Return what the `deadline_aware` router answers; demand is (a, b, c)."""
    request = requests[row.current]
    # Observations are float32.
    age = np.float64(np.float32(row.tick * row.step_ms - request.arrival))
    least, most, best, worst = np.inf, -np.inf, NONE, NONE
    for i in range(len(replicas)):
        replica = replicas[i]
        if not is_eligible(row, replica):
            continue
        outstanding = replica.waiting + (replica.in_flight != NONE)
        prompt = np.float64(np.float32(replica.prompt_tokens)) + request.prompt
        predicted = np.float64(np.float32(replica.predicted_tokens)) + request.predicted
        work = demand[0] * (outstanding + 1.0) + demand[1] * prompt + demand[2] * predicted
        work = work * np.float64(np.float32(replica.speed_ewma))
        if work < least:
            least, best = work, i
        if work > most:
            most, worst = work, i
    if age + least <= margin * row.deadline_ms:
        return best
    return len(replicas) if row.admission else worst


@njit
def _follow(cluster: Any, plans: Any, settings: Any, actions: Any) -> None:
    """Write each row's next planned action, planning where no plan holds."""
    rows, replicas, requests, events = cluster
    demand, margin, horizon, width, price, cells = settings
    for e in range(len(rows)):
        row, plan, progress = rows[e], plans[0][e], plans[1][e]
        if row.current == NONE:
            continue
        if not _holds(row, replicas[e], requests[e], plan, progress):
            order = _order(row, requests[e], horizon)
            trial = (rows[e : e + 1], replicas[e], requests[e], events[e], order)
            found = _search(row, replicas[e], requests[e], events[e], (order, width, price, cells))
            base = np.full(len(order), NONE)
            on_time = _play(trial, found, demand[e], margin)
            if _play(trial, base, demand[e], margin) > on_time:
                found = base
            progress[0], progress[1] = 0, min(len(order), len(plan))
            for k in range(progress[1]):
                plan[k].request, plan[k].action = order[k], found[k]
                plan[k].arrival = requests[e, order[k]].arrival
        actions[e] = plan[progress[0]].action


@njit
def _holds(row: Any, replicas: Any, requests: Any, plan: Any, progress: Any) -> bool:
    """Go on in the plan to the pending request; tell whether all went as planned so far."""
    count = len(replicas)
    k = progress[0]
    while k < progress[1] and plan[k].request != row.current:
        # Nobody asks where to send a request that is shed.
        passed, action = requests[plan[k].request], plan[k].action
        if passed.shed == 0 if action == count else passed.replica != action:
            return False
        k += 1
    if k == progress[1] or plan[k].arrival != requests[row.current].arrival:
        return False
    progress[0] = k
    action = plan[k].action
    return row.admission != 0 if action == count else action != NONE and is_eligible(row, replicas[action])


@njit
def _order(row: Any, requests: Any, horizon: int) -> Any:
    """Return the requests to plan for, in the order in which they will be routed."""
    arrivals = min(row.request_count - row.next_request, horizon)
    order = [row.current]
    r = row.reroute_head
    while r != NONE:
        order.append(r)
        r = requests[r].next
    for k in range(arrivals):
        order.append(row.next_request + k)
    return np.array(order)


@njit
def _play(trial: Any, actions: Any, demand: Any, margin: float) -> float:
    """Play an action per request of the order in a copy of the cluster; return how many are on time.

    `deadline_aware` decides, and its answer is written down, where there is no action or it is impossible.
    """
    rows, replicas, requests, events, order = trial
    rows = rows.copy()
    row = rows[0]
    row.on_time = 0.0
    row.request_count = max(row.next_request, order[-1] + 1)
    replicas, requests = replicas.copy(), requests[: row.request_count].copy()
    k = 0
    while row.done == 0:
        while k < len(order) and order[k] != row.current and requests[order[k]].shed:
            actions[k] = len(replicas)
            k += 1
        ours = k < len(order) and order[k] == row.current
        action = actions[k] if ours else NONE
        if action == NONE or action >= len(replicas) + row.admission:
            action = deadline_aware(row, replicas, requests, demand, margin)
        if ours:
            actions[k] = action
            k += 1
        decide(row, replicas, requests, action)
        run(row, replicas, requests, events)
    return rows[0].on_time


@njit
def _serve(context: Any, events: Any, i: int, request: Any, start: int) -> Any:
    """Return when a service that starts on replica i at `start` ends, and whether it is on time."""
    row, event, mean, slow = context
    pace, fails = slow[i], False
    while event < row.event_count and events[event].tick <= start:
        if events[event].replica == i:
            if events[event].kind == SLOWDOWN:
                pace = events[event].factor
            fails |= events[event].kind == FAILURE
        event += 1
    service = ((request.demand * mean[i]) / row.reference_ms * pace) * request.jitter
    end = int(min(start + math.ceil(service / row.step_ms), float(NEVER - 1)))
    latency = end * row.step_ms - request.arrival
    return end, not fails and end <= row.cutoff and latency <= row.deadline_ms


@njit
def _weight(backlog: float) -> float:
    """Return g(b)/D of a backlog of b/D."""
    return 0.5 * backlog * backlog if backlog <= 1.0 else 0.5 + math.log(backlog)


@njit
def _search(row: Any, replicas: Any, requests: Any, events: Any, task: Any) -> Any:
    """Return the best plan found: an action per request of the order, N to shed or reject."""
    order, width, price_per_request, cells = task
    count = len(replicas)
    scale = row.step_ms / row.deadline_ms
    mean, slow, healthy = replicas["service_ms"], replicas["slow"].copy(), replicas["healthy"].copy()
    price = price_per_request * row.deadline_ms / mean
    # Per state and replica: when it will be idle, how many it took, and the last ones' starts.
    room = min(row.capacity, len(order) + replicas["waiting"].max())
    idle = np.zeros((2, width, count), np.int64)
    took = np.zeros((2, width, count), np.int64)
    starts = np.zeros((2, width, count, room), np.int32)
    on_time = np.zeros((2, width))
    parents = np.zeros((len(order), width), np.int64)
    actions = np.zeros((len(order), width), np.int64)
    scores = np.zeros((width, count + 1))
    seen = np.full(1 << 14, NONE)
    event = row.next_event

    for i in range(count):
        idle[0, 0, i] = replicas[i].finish if replicas[i].in_flight != NONE else row.tick
        r = replicas[i].head
        while r != NONE:
            start = idle[0, 0, i]
            starts[0, 0, i, took[0, 0, i]] = start
            took[0, 0, i] += 1
            idle[0, 0, i], _ = _serve((row, event, mean, slow), events, i, requests[r], start)
            r = requests[r].next

    old, states = 0, 1
    for step in range(len(order)):
        request = requests[order[step]]
        now = max(row.tick, request.tick)
        while event < row.event_count and events[event].tick <= now:
            i, change = events[event].replica, events[event]
            if change.kind == SLOWDOWN:
                slow[i] = change.factor
            healthy[i] = change.kind != FAILURE and (healthy[i] != 0 or change.kind == RECOVERY)
            for s in range(states if change.kind == FAILURE else 0):
                # What waits leaves, and is not followed further.
                k, last = took[old, s, i], max(0, took[old, s, i] - room)
                while k > last and starts[old, s, i, (k - 1) % room] >= change.tick:
                    k -= 1
                    idle[old, s, i] = starts[old, s, i, k % room]
                took[old, s, i] = k
            event += 1
        context = (row, event, mean, slow)

        scores[:] = -np.inf
        for s in range(states):
            value, closed = on_time[old, s], True
            for i in range(count):
                idle[old, s, i] = max(idle[old, s, i], now)
                value -= price[i] * _weight((idle[old, s, i] - now) * scale)
            for i in range(count):
                k = took[old, s, i]
                full = k >= row.capacity and starts[old, s, i, k % room] >= now
                if healthy[i] != 0 and not full:
                    closed = False
                    start = idle[old, s, i]
                    end, gain = _serve(context, events, i, request, start)
                    more = _weight((end - now) * scale) - _weight((start - now) * scale)
                    scores[s, i] = value + gain - price[i] * more
            if row.admission or closed:
                scores[s, count] = value

        new, kept = 1 - old, 0
        for k in np.argsort(-scores[:states].ravel(), kind="mergesort"):
            s, i = k // (count + 1), k % (count + 1)
            if kept == width or scores[s, i] == -np.inf:
                break
            start = idle[old, s, min(i, count - 1)]
            end, gain = _serve(context, events, i, request, start) if i < count else (start, False)
            on_time[new, kept] = on_time[old, s] + gain
            cell = 0
            for j in range(count):
                idle[new, kept, j] = end if j == i else idle[old, s, j]
                took[new, kept, j] = took[old, s, j] + (j == i)
                backlog = (idle[new, kept, j] - now) * scale
                cell = cell * 8191 + int(cells * math.log1p(2.0 * backlog))
            cell = (cell * 2654435761 >> 8) % len(seen)
            if seen[cell] == step:
                continue
            seen[cell] = step
            parents[step, kept], actions[step, kept] = s, i
            for j in range(count):
                for w in range(min(took[old, s, j], room)):
                    starts[new, kept, j, w] = starts[old, s, j, w]
            if i < count:
                starts[new, kept, i, took[old, s, i] % room] = start
            kept += 1
        old, states = new, kept

    # States are in order of score. At the episode's end backlog costs nothing.
    best = np.argmax(on_time[old, :states]) if order[-1] == row.request_count - 1 else 0
    plan = np.zeros(len(order), np.int64)
    for step in range(len(order) - 1, -1, -1):
        plan[step], best = actions[step, best], parents[step, best]
    return plan
