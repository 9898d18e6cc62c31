"""What an episode of cloud–edge batches is worth, and the log that says why (DESIGN 4)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from routing_gym.cloud_edge.evaluator import pair_parts
from routing_gym.cloud_edge.state import NONE, CloudEdgeState
from routing_gym.common.jit import njit
from routing_gym.common.percentiles import nearest_rank

PARTS = ("infer", "transfer", "queue", "finish", "cost", "energy", "quality")
ASSIGNMENT_LOG = np.dtype(
    [
        ("arrival", "f8"),
        ("dispatch", "f8"),
        ("window", "i8"),
        ("destination", "i8"),
        ("input_tokens", "i8"),
        ("predicted_output_tokens", "f8"),
        ("output_tokens", "f8"),
        ("edge_only", "?"),
        ("set_aside", "?"),
        ("invalid", "?"),
        *((f"predicted_{part}", "f8") for part in PARTS),
        *((part, "f8") for part in PARTS),
    ]
)
PERCENTILES = (50, 95, 99)
WINDOW_TERMS = ("quality_loss", "cost_usd", "energy_j", "completion_s")  # CLOUD_EDGE_TERMS, with units
METRICS = (
    "arrivals",
    "dispatched",
    "undispatched",
    "waited",
    "set_aside",
    "invalid_actions",
    "windows",
    "nonempty_windows",
    "objective",
    "objective_predicted",
    *WINDOW_TERMS,
    "quality",
    "mean_latency_s",
    *(f"p{percent}_latency_s" for percent in PERCENTILES),
    "p99_all_latency_s",
    "cloud_share",
    "mean_backlog_s",
    "max_backlog_s",
    "destination_shares",
)


def assignment_log(state: CloudEdgeState, e: int) -> NDArray[Any]:
    """Return what became of the requests of row `e` that have arrived so far, in order of arrival.

    Returns:
        A structured array, dtype `ASSIGNMENT_LOG`: arrival and dispatch (s), window and destination (-1
        before dispatch), tokens (`output_tokens` are those of the destination's model), whether it had to
        stay at the edge, was set aside for want of a legal destination, or was given an illegal one; and as
        predicted and as it was: `infer`, `transfer`, `queue` and `finish` (s after dispatch), `cost` (USD),
        `energy` (J), `quality`. NaN before dispatch.
    """
    row = state.rows[e]
    requests = state.requests[e, : row["next_request"]]
    log = np.empty(len(requests), ASSIGNMENT_LOG)
    for name in ("arrival", "window", "destination", "edge_only", "set_aside", "invalid"):
        log[name] = requests[name]
    log["input_tokens"] = requests["input"]
    log["predicted_output_tokens"] = requests["predicted_output"]
    sent = requests["window"] != NONE
    log["dispatch"] = np.where(sent, (requests["window"] + 1) * row["window_s"], np.nan)
    parts = np.full((len(requests), 2 * len(PARTS) + 1), np.nan)
    _parts(requests, state.physics[e], state.pairs[e], state.paths[e], parts)
    names = ["output_tokens", *(f"predicted_{part}" for part in PARTS), *PARTS]
    for name, column in zip(names, parts.T, strict=True):
        log[name] = column
    return log


@njit
def _parts(requests: Any, physics: Any, pairs: Any, paths: Any, parts: NDArray[np.float64]) -> None:
    """Work out again what each dispatched request took, in the order of `assignment_log`."""
    for r in range(len(requests)):
        request = requests[r]
        if request.window == NONE:
            continue
        destination = physics[request.destination]
        pair, rtt = pairs[r, destination.model], paths[request.window, request.destination].rtt_s
        parts[r, 0] = pair.output
        for actual in range(2):
            output = float(pair.output if actual else pair.predicted_output)
            infer, transfer, cost, energy = pair_parts(destination, request.input, output, rtt)
            finish = request.finish if actual else request.predicted_finish
            k = 1 + 7 * actual
            parts[r, k] = infer
            parts[r, k + 1] = transfer
            parts[r, k + 2] = max(0.0, finish - infer - transfer)  # whatever is lost to rounding
            parts[r, k + 3] = finish
            parts[r, k + 4] = cost
            parts[r, k + 5] = energy
            parts[r, k + 6] = pair.quality if actual else pair.predicted_quality


def episode_metrics(state: CloudEdgeState, e: int) -> dict[str, Any]:
    """Return every metric of row `e`'s episode so far; final once it is truncated.

    Returns:
        Counts (int): `arrivals = dispatched + undispatched`; `waited`, those not dispatched at the end of
        the window in which they arrived, and of them `set_aside`, those that had no legal destination at
        some window's end; `invalid_actions`; `windows` over, and `nonempty_windows` of them. Means over the
        windows that were not empty: `objective` (J on the tables that are paid), `objective_predicted`, and
        the raw terms as they were: `quality_loss`, `cost_usd`, `energy_j` (sums over the batch) and
        `completion_s`. Over dispatched requests: `quality`, `mean_latency_s` and nearest-rank percentiles
        `p50_latency_s`, `p95_latency_s`, `p99_latency_s`, from arrival to the answer, the window's wait
        included; `p99_all_latency_s` over all arrivals, with those not dispatched as infinite;
        `cloud_share`; `destination_shares` (array (M,)). Over windows: mean and maximum of the largest
        backlog left behind (s). None where undefined.
    """
    row = state.rows[e]
    over = max(int(row["window"]), 0)
    windows = state.windows[e, :over]
    filled = windows[windows["requests"] > 0]
    requests = state.requests[e, : row["next_request"]]
    latency, quality = np.empty(len(requests)), np.empty(len(requests))
    sent_to = np.zeros(state.destinations.shape[1], np.int64)
    waited, set_aside = _outcomes(
        row, requests, state.destinations[e], state.pairs[e], latency, quality, sent_to
    )
    sent = int(sent_to.sum())
    latency = np.sort(latency[:sent])
    shares = sent_to / max(sent, 1)
    metrics: dict[str, Any] = {
        "arrivals": len(requests),
        "dispatched": sent,
        "undispatched": len(requests) - sent,
        "waited": waited,
        "set_aside": set_aside,
        "invalid_actions": int(row["invalid_actions"]),
        "windows": len(windows),
        "nonempty_windows": len(filled),
        "objective": _mean(filled["objective" if row["on_actual"] else "objective_predicted"]),
        "objective_predicted": _mean(filled["objective_predicted"]),
    }
    metrics |= {name: _mean(filled["terms"][:, k]) for k, name in enumerate(WINDOW_TERMS)}
    metrics |= {"quality": _mean(quality[:sent]), "mean_latency_s": _mean(latency)}
    for percent in PERCENTILES:
        metrics[f"p{percent}_latency_s"] = nearest_rank(latency, percent, sent)
    metrics["p99_all_latency_s"] = nearest_rank(latency, 99, len(requests))
    metrics["cloud_share"] = float(shares @ state.destinations["is_cloud"][e]) if sent else None
    metrics["mean_backlog_s"] = _mean(windows["largest_backlog"])
    metrics["max_backlog_s"] = float(windows["largest_backlog"].max()) if over else None
    metrics["destination_shares"] = shares if sent else None
    return metrics


@njit
def _outcomes(
    row: Any, requests: Any, destinations: Any, pairs: Any, latency: Any, quality: Any, sent_to: Any
) -> tuple[int, int]:
    """Write latencies and qualities of dispatched requests; return how many waited and were set aside."""
    sent = waited = set_aside = 0
    for r in range(len(requests)):
        request = requests[r]
        set_aside += request.set_aside
        if request.window == NONE:
            waited += request.arrival < row.window * row.window_s
            continue
        # Dispatched later than at the end of the window in which it arrived.
        waited += request.arrival < request.window * row.window_s
        latency[sent] = (request.window + 1) * row.window_s - request.arrival + request.finish
        quality[sent] = pairs[r, destinations[request.destination].model].quality
        sent_to[request.destination] += 1
        sent += 1
    return waited, set_aside


def _mean(values: NDArray[Any]) -> float | None:
    return float(values.mean()) if len(values) else None


def episode_curves(state: CloudEdgeState, e: int) -> dict[str, list[float]]:
    """Return a number for each window that is over.

    `requests` (0 where there was nothing to decide, and all that follows but backlog is 0); `objective`,
    `objective_predicted` and the raw terms `quality_loss`, `cost_usd`, `energy_j` and `completion_s`, whose
    means over the other windows are metrics; and `backlog_s`, what is left when the window after the dispatch
    has passed, summed over destinations.
    """
    row = state.rows[e]
    windows = state.windows[e, : max(int(row["window"]), 0)]
    curves: dict[str, list[float]] = {
        "requests": windows["requests"].tolist(),
        "objective": windows["objective" if row["on_actual"] else "objective_predicted"].tolist(),
        "objective_predicted": windows["objective_predicted"].tolist(),
    }
    curves |= {name: windows["terms"][:, k].tolist() for k, name in enumerate(WINDOW_TERMS)}
    return {**curves, "backlog_s": windows["backlog"].tolist()}
