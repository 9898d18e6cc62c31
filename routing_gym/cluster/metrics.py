"""What an episode of the inference cluster is worth, from its request log (DESIGN 3)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from routing_gym.cluster.state import OUTCOME
from routing_gym.cluster.workload import Workload
from routing_gym.common.jit import njit
from routing_gym.common.percentiles import nearest_rank

PERCENTILES = (50, 95, 99)
COUNTS = (
    "arrivals",
    "completed",
    "shed",
    "unfinished",
    "on_time",
    "late",
    "rejected",
    "invalid_actions",
)
METRICS = (
    *COUNTS,
    "attainment",
    "goodput_per_s",
    "slo_miss_rate",
    "shed_rate",
    "throughput_per_s",
    "token_goodput_per_s",
    "mean_latency_ms",
    "max_latency_ms",
    "share_over_10_deadlines",
    *(f"p{percent}{of}_ms" for percent in PERCENTILES for of in ("", "_all")),
    *(f"attainment_q{quarter}" for quarter in range(1, 5)),
    "attainment_largest_5pct",
    "jain_demand_deciles",
    "replica_shares",
)

# Grids of the curves that plots are made of: latency in ms, and how many instants of the episode.
CDF_GRID_MS = np.geomspace(1.0, 20_000.0, 173)
TIMELINE_POINTS = 301
TENTHS = 10


Floats = NDArray[np.float64]


class Horizon(NamedTuple):
    """What metrics need to know of an episode: times in ms, and the number of replicas."""

    warmup_ms: float
    cutoff_ms: float
    deadline_ms: float
    replicas: int

    @classmethod
    def of(cls, workload: Workload) -> Horizon:
        """Return the horizon of a workload's episodes."""
        config = workload.config
        return cls(config.warmup_ms, workload.cutoff_ms, config.deadline_ms, config.replicas)


def episode_metrics(
    log: Mapping[str, NDArray[Any]], horizon: Horizon, invalid_actions: int
) -> dict[str, Any]:
    """Return every metric of an episode that has reached its cutoff.

    The cohort are the arrivals in (warm-up, cutoff]; `arrivals = completed + shed + unfinished`.

    Args:
        log: the episode's request log, or the columns of it that `state.OUTCOME` names, shape (n,) each.
        horizon: when the cohort begins and ends, the deadline, the number of replicas.
        invalid_actions: decisions of the whole episode that named a replica that was not eligible.

    Returns:
        Counts (int): `arrivals`, `completed`, `shed`, `unfinished`, `on_time`, `late`, `rejected` (part of
        `shed`), `invalid_actions`. Rates in [0, 1]: `attainment` (on time / arrivals), `slo_miss_rate`
        (late / completed), `shed_rate`, `share_over_10_deadlines` (of arrivals; shed and unfinished count
        as infinitely late), `attainment_q1` … `q4` (quarters of the cohort by demand, q4 the largest),
        `attainment_largest_5pct`, `jain_demand_deciles` (Jain's index of the ten deciles' attainment).
        Per second of measured time: `goodput_per_s`, `throughput_per_s` (all completions in it, those that
        arrived in the warm-up included), `token_goodput_per_s` (output tokens on time). Latency, ms:
        `mean_latency_ms`, `p50_ms`, `p95_ms`, `p99_ms`, `max_latency_ms` over completed requests, and
        `p50_all_ms`, `p95_all_ms`, `p99_all_ms` over all arrivals, infinite where it falls on a request
        that was not completed. `replica_shares`: (N,), share of the accepted requests by the replica that
        accepted them last. None where undefined.
    """
    columns = tuple(np.ascontiguousarray(log[name], np.float64) for name in OUTCOME)
    counts, latency, groups, accepted = _tally(columns, horizon)
    arrivals, completed, shed, on_time, rejected, very_late, throughput, tokens = counts.tolist()
    measured_s = (horizon.cutoff_ms - horizon.warmup_ms) / 1000.0
    latency.sort()
    metrics: dict[str, Any] = {
        "arrivals": arrivals,
        "completed": completed,
        "shed": shed,
        "unfinished": arrivals - completed - shed,
        "on_time": on_time,
        "late": completed - on_time,
        "rejected": rejected,
        "invalid_actions": invalid_actions,
        "attainment": _ratio(on_time, arrivals),
        "goodput_per_s": on_time / measured_s,
        "slo_miss_rate": _ratio(completed - on_time, completed),
        "shed_rate": _ratio(shed, arrivals),
        "throughput_per_s": throughput / measured_s,
        "token_goodput_per_s": tokens / measured_s,
        "mean_latency_ms": float(latency.mean()) if completed else None,
        "max_latency_ms": float(latency[-1]) if completed else None,
        "share_over_10_deadlines": _ratio(very_late + arrivals - completed, arrivals),
    }
    for percent in PERCENTILES:
        metrics[f"p{percent}_ms"] = nearest_rank(latency, percent, completed)
        metrics[f"p{percent}_all_ms"] = nearest_rank(latency, percent, arrivals)
    shares = [_ratio(*group) for group in groups.tolist()]
    metrics |= {f"attainment_q{k + 1}": shares[k] for k in range(4)}
    metrics["attainment_largest_5pct"] = shares[4]
    metrics["jain_demand_deciles"] = jain_index(shares[5:])
    total = accepted.sum()
    metrics["replica_shares"] = accepted / total if total else None
    return metrics


@njit
def stable_order(values: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return what `np.argsort(values, kind="stable")` does of finite values, several times faster.

    A bucket sort: with as many buckets as values few share one, and what does is sorted by insertion. The
    sort of a cohort's demands would otherwise be the most expensive part of an episode's end.
    """
    count = len(values)
    order = np.arange(count)
    if count == 0:
        return order
    low, high = values.min(), values.max()
    spread = high - low
    # Outside of this range the number of a bucket would overflow; equal values are in order already.
    if 1e-290 < spread < 1e290:
        scale = (count - 1) / spread
        first = np.zeros(count + 1, np.int64)
        for value in values:
            first[int((value - low) * scale) + 1] += 1
        first = np.cumsum(first)
        for r in range(count):
            bucket = int((values[r] - low) * scale)
            order[first[bucket]] = r
            first[bucket] += 1
    for k in range(1, count):
        r = order[k]
        place = k
        while place > 0 and values[order[place - 1]] > values[r]:
            order[place] = order[place - 1]
            place -= 1
        order[place] = r
    return order


@njit
def _tally(
    columns: tuple[Floats, ...], horizon: Horizon
) -> tuple[NDArray[np.int64], Floats, NDArray[np.int64], NDArray[np.int64]]:
    """Count an episode in one pass over the columns of `OUTCOME`.

    Returns:
        Counts (arrivals, completed, shed, on time, rejected, completed later than ten deadlines, completions
        in the measured time whenever they arrived, output tokens on time); latencies of completed requests,
        ms; (on time, arrivals) of groups by rank of demand, ties by arrival: the four quarters, the largest
        twentieth, the ten tenths; accepted requests by replica.
    """
    arrival, completion, demand, output, last_replica, shed, rejected = columns
    warmup_ms, cutoff_ms, deadline_ms, replicas = horizon
    first = np.searchsorted(arrival, warmup_ms, side="right")
    count = len(arrival) - first
    counts = np.zeros(8, np.int64)
    counts[0] = count
    accepted = np.zeros(replicas, np.int64)
    on_time = np.zeros(count, np.int64)
    latencies = np.empty(count)
    for r in range(len(arrival)):
        if warmup_ms < completion[r] <= cutoff_ms:
            counts[6] += 1
        if r < first:
            continue
        counts[2] += shed[r] != 0
        counts[4] += rejected[r] != 0
        if last_replica[r] >= 0:
            accepted[int(last_replica[r])] += 1
        latency = completion[r] - arrival[r]
        if np.isnan(latency):
            continue
        latencies[counts[1]] = latency
        counts[1] += 1
        counts[5] += latency > 10.0 * deadline_ms
        if latency <= deadline_ms:
            on_time[r - first] = 1
            counts[3] += 1
            counts[7] += int(output[r])
    ranked = np.zeros(count + 1, np.int64)
    ranked[1:] = np.cumsum(on_time[stable_order(demand[first:])])
    groups = np.zeros((5 + TENTHS, 2), np.int64)
    for g in range(len(groups)):
        if g < 4:
            low, high = count * g // 4, count * (g + 1) // 4
        elif g == 4:
            low, high = count - (count + 19) // 20, count
        else:
            low, high = count * (g - 5) // TENTHS, count * (g - 4) // TENTHS
        groups[g] = ranked[high] - ranked[low], high - low
    return counts, latencies[: counts[1]], groups, accepted


def episode_curves(log: NDArray[Any], horizon: Horizon) -> dict[str, list[float]]:
    """Return what plots need of an episode.

    Args:
        log: the episode's request log, dtype `state.REQUEST_LOG`.
        horizon: when the cohort begins and ends.

    Returns:
        `latency_cdf`: the share of the cohort's arrivals completed within each latency of `CDF_GRID_MS`;
        it ends below 1 where requests were shed or are unfinished. `outstanding`: requests arrived, not
        shed and not completed, at `TIMELINE_POINTS` instants evenly spread over the episode.
    """
    cohort = log[log["arrival"] > horizon.warmup_ms]
    latency = np.sort(cohort["completion"] - cohort["arrival"])  # NaN goes last
    within = np.searchsorted(latency, CDF_GRID_MS, side="right")
    instants = np.linspace(0.0, horizon.cutoff_ms, TIMELINE_POINTS)
    accepted = log[~log["shed"]]
    arrived = np.searchsorted(accepted["arrival"], instants, side="right")
    left = np.searchsorted(np.sort(accepted["completion"]), instants, side="right")
    return {
        "latency_cdf": (within / max(len(cohort), 1)).round(6).tolist(),
        "outstanding": (arrived - left).tolist(),
    }


def jain_index(shares: list[float | None]) -> float | None:
    """Return Jain's fairness index, (Σx)² / (n Σx²); None where a share is undefined or all are 0."""
    values = [share for share in shares if share is not None]
    squares = sum(value * value for value in values)
    if len(values) < len(shares) or squares == 0:
        return None
    return sum(values) ** 2 / (len(values) * squares)


def _ratio(part: int, whole: int) -> float | None:
    return part / whole if whole else None
