"""Pure functions of a cluster observation, for routers and for learning alike."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from routing_gym.common.config import packaged
from routing_gym.common.features import TINY, Features, squash, stacked

Floats = NDArray[np.float64]

# Times in [0, 1] or [-1, 1] are squashed with the deadline D as their unit (`common.features.squash`).
REPLICA_FEATURES: tuple[str, ...] = (
    "eligible",  # 0 or 1
    "healthy",  # 0 or 1
    "slack",  # D - age - finish: how long before its deadline the request would be done there
    "certainty",  # the same in units of how far an estimate of so much work may be off
    "finish",  # expected time until it would be done: the work there and its own, less what is served
    "behind_best",  # finish, less that of the best eligible replica
    "before_worst",  # that of the worst eligible replica, less finish
    "backlog",  # expected time until the replica would be idle
    "uncertain",  # the share of outstanding demand that is predicted: output, not prompts
    "own",  # the request's expected service there
    "service",  # average of observed services
    "slowness",  # v̂ in units of the replicas' harmonic mean
    "outstanding",  # o/(o + 1)
    "queue",  # o in units of the shipped queue capacity
    "elapsed",  # how long the request in service has been served
    "overdue",  # the same in units of the expected service of an outstanding request there
    "oldest",  # age of the oldest outstanding request
    "unproven",  # 1/(n + 1), with n completions
)
CONTEXT_FEATURES: tuple[str, ...] = (
    "deadline",  # (D² - D₀²)/(D² + D₀²), with D₀ the shipped deadline
    "demand",  # the request's expected demand
    "uncertain_demand",  # the share of it that is predicted
    "size",  # the demand in units of the mean demand of completed requests
    "size_beside_queued",  # and in units of the mean demand of outstanding ones
    "age",  # of the request
    "best_slack",  # at the best eligible replica
    "best_certainty",  # at the best eligible replica
    "load",  # demand that arrives, in units of what the healthy replicas can serve; 0 before two arrivals
    "capacity_per_arrival",  # demand that they can serve between two arrivals
    "drain",  # time that they would take for all outstanding work together
    "eligible_share",  # of the replicas
)
# The weights of the reward terms, in the order of `rewards.CLUSTER_TERMS`: what a router may be told of what
# is wanted, beside the context. Those of times are per deadline, and absolute values sum to 1.
REWARD_FEATURES: tuple[str, ...] = (
    "weight_on_time",
    "weight_late",
    "weight_shed",
    "weight_latency",
    "weight_outstanding",
)
# Where no replica is eligible the best one is that late, ms.
_NEVER = np.float32(1e9)


def expected_work(
    outstanding: Floats,
    prompt_tokens: Floats,
    predicted_tokens: Floats,
    request: Floats,
    speed: Floats,
    demand: tuple[Any, Any, Any],
) -> Floats:
    """Return the expected time until each replica would be done with the pending request, ms.

    The outstanding requests' tokens and the request's own, in ms by the demand coefficients, times the
    replica's learned slowness. The part of the request in service that is already done counts as undone.

    Args:
        outstanding: (…, N) requests.
        prompt_tokens: (…, N) outstanding prompt tokens.
        predicted_tokens: (…, N) outstanding predicted output tokens.
        request: (…, 3) prompt tokens, predicted output tokens and age of the pending request.
        speed: (…, N) v̂, service time per ms of demand.
        demand: (a, b, c), ms per request, prompt token and output token; numbers, or columns (rows, 1).
    """
    base, per_prompt, per_output = demand
    work = base * (outstanding + 1.0)
    work = work + per_prompt * (prompt_tokens + request[..., 0:1])
    work = work + per_output * (predicted_tokens + request[..., 1:2])
    return work * speed


def reward_features(weights: Any, deadline: Any) -> NDArray[np.float32]:
    """Return the features of a reward's weights, `REWARD_FEATURES`, in [-1, 1].

    They stay the same when all weights are multiplied, or all times and the deadline are measured in another
    unit. Where all weights are 0, so are they.

    Args:
        weights: (…, 5), of `rewards.CLUSTER_TERMS`: three per request, two per ms.
        deadline: ms, a number or (…).
    """
    scaled = np.array(weights, np.float64)
    scaled[..., 3:] *= np.asarray(deadline, np.float64)[..., None]
    total = np.abs(scaled).sum(axis=-1, keepdims=True)
    return np.divide(scaled, total, out=np.zeros_like(scaled), where=total > 0).astype(np.float32)


def cluster_features(
    observation: Mapping[str, NDArray[Any]],
    demand: tuple[Any, Any, Any],
    reward: NDArray[np.float32] | None = None,
) -> Features:
    """Return the features of the replicas, `REPLICA_FEATURES`, and of the rest, `CONTEXT_FEATURES`.

    They come from the router's own records alone, what `observation="router"` shows. All but `deadline` stay
    the same when all times and the deadline are measured in another unit, and none of the context depends
    on the number of replicas as such: at equal load it is much the same for any N.

    Args:
        observation: of `InferenceCluster`, with any leading axes.
        demand: (a, b, c), ms per request, prompt token and output token, which an operator knows: numbers,
            or arrays with the leading axes (…) or as columns (…, 1).
        reward: what `reward_features` made, (…, 5) or (5,), to go after the rest's as `REWARD_FEATURES`.
    """
    # Replicas go first and rows last: sums over replicas are then cheap.
    seen = {name: np.array(np.transpose(observation[name]), np.float32, order="C") for name in _FIELDS}
    base, per_prompt, per_output = (np.asarray(number, np.float32).T for number in demand)
    usual, capacity = _usual()
    prompt, predicted, age = seen["request"]
    (gap,), (deadline,) = seen["arrival_gap"], np.maximum(seen["deadline"], TINY)
    outstanding, speed = seen["outstanding"], np.maximum(seen["speed_ewma"], TINY)
    eligible, pace = seen["eligible"] > 0, 1.0 / speed
    own_output, queued_output = per_output * predicted, per_output * seen["outstanding_predicted_tokens"]
    own_demand = base + per_prompt * prompt + own_output
    queued = base * outstanding + per_prompt * seen["outstanding_prompt_tokens"] + queued_output

    # The request in service is the oldest one, and has been served since the last completion at most.
    elapsed = np.minimum(seen["oldest_age"], seen["since_completion"])
    per_request = speed * queued / np.maximum(outstanding, 1.0)
    backlog = speed * queued - np.minimum(elapsed, per_request)
    own = speed * own_demand
    finish = backlog + own
    slack = deadline - age - finish
    certainty = squash(slack * np.sqrt(outstanding + 1.0), finish)
    best = np.where(eligible, finish, _NEVER).min(axis=0)
    worst = np.where(eligible, finish, 0.0).max(axis=0)
    elements = (
        eligible,
        seen["healthy"],
        squash(slack, deadline),
        certainty,
        squash(finish, deadline),
        squash(finish - best, deadline),
        squash(worst - finish, deadline),
        squash(backlog, deadline),
        queued_output / np.maximum(queued, TINY),
        squash(own, deadline),
        squash(seen["service_ewma"], deadline),
        squash(speed, 1.0 / pace.mean(axis=0)),
        squash(outstanding, np.float32(1.0)),
        squash(outstanding, capacity),
        squash(elapsed, deadline),
        squash(elapsed, per_request),
        squash(seen["oldest_age"], deadline),
        1.0 / (seen["completed"] + 1.0),
    )

    mean_demand = (seen["service_ewma"] * pace).mean(axis=0)
    count = outstanding.sum(axis=0)
    mean_queued = np.where(count > 0, queued.sum(axis=0) / np.maximum(count, 1.0), mean_demand)
    rate = (seen["healthy"] * pace).sum(axis=0)
    context = (
        (deadline**2 - usual**2) / (deadline**2 + usual**2),
        squash(own_demand, deadline),
        own_output / np.maximum(own_demand, TINY),
        squash(own_demand, mean_demand),
        squash(own_demand, mean_queued),
        squash(age, deadline),
        squash(deadline - age - best, deadline),
        np.where(eligible, certainty, np.float32(-1.0)).max(axis=0),
        np.where(gap > 0, squash(mean_demand, gap * rate), 0.0),
        squash(gap * rate, deadline),
        squash((backlog * pace).sum(axis=0), rate * deadline),
        eligible.mean(axis=0, dtype=np.float32),
    )
    features = stacked(elements, context)
    if reward is None:
        return features
    told = np.broadcast_to(reward, (*features.context.shape[:-1], len(REWARD_FEATURES)))
    return features._replace(context=np.concatenate([features.context, told], axis=-1))


_FIELDS = (
    "outstanding",
    "outstanding_prompt_tokens",
    "outstanding_predicted_tokens",
    "service_ewma",
    "speed_ewma",
    "completed",
    "oldest_age",
    "since_completion",
    "healthy",
    "eligible",
    "request",
    "arrival_gap",
    "deadline",
)


@cache
def _usual() -> tuple[np.float32, np.float32]:
    """Return the shipped deadline (ms) and queue capacity: scales that an observation does not hold."""
    config = packaged("cluster", "default")
    return np.float32(config["deadline_ms"]), np.float32(config["queue_capacity"])
