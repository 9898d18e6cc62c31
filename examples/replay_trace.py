"""Replay a trace of real requests through several routers, at a load of your choice.

    pip install routing-gym
    python examples/replay_trace.py requests.csv --load 0.9
    python examples/replay_trace.py requests.csv --load 0.7 --routers round_robin least_work deadline_aware

The CSV has the columns arrival_s, prompt_tokens and output_tokens (times in order, from any start), or those
of the Azure LLM inference traces. Without one, a bursty minute is made up. `load` scales the trace's time so
that the cluster would be that busy. Each seed replays a window of 15 s, or with `--full` the whole trace, the
same for every router. A router sees a request's prompt and a prediction of its output, with the error
`--sigma` in logarithms.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import tempfile
from pathlib import Path

import numpy as np

from routing_gym.cluster.config import ClusterConfig
from routing_gym.common.trace import read_trace
from routing_gym.evaluation.runner import Condition, Router, make_jobs, run_jobs

ROUTERS = ("round_robin", "least_queue", "adaptive", "least_work", "deadline_aware")
FIRST_SEED = 10_000


def make_up_trace(path: Path) -> None:
    """Write a minute of requests that come in bursts: two seconds of many, two of half as many."""
    rng = np.random.default_rng(0)
    seconds = np.arange(60)
    counts = rng.poisson(np.where(seconds // 2 % 2, 70, 140))
    arrivals = np.sort(np.repeat(seconds, counts) + rng.random(counts.sum()))
    prompts = np.exp(rng.normal(5.2, 0.8, len(arrivals))).astype(int) + 1
    outputs = np.exp(rng.normal(4.1, 0.7, len(arrivals))).astype(int) + 1
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["arrival_s", "prompt_tokens", "output_tokens"])
        writer.writerows(zip(arrivals.round(6), prompts, outputs, strict=True))


def replay(path: Path, load: float, sigma: float, full: bool, names: list[str], seeds: int) -> None:
    """Play the episodes and print a row per router."""
    trace = read_trace(path)
    condition = ClusterConfig.create(trace=str(path), trace_full=full, load=load, prediction_sigma=sigma)
    print(f"{path.name}: {len(trace.arrival_ms)} requests, load {load:g}, {seeds} episodes")

    routers = [Router(name, f"cluster/{name}") for name in names]
    found: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    jobs = make_jobs(routers, [Condition("trace", condition)], range(FIRST_SEED, FIRST_SEED + seeds))
    for result in run_jobs(jobs):
        found[result.job.router.label].append(result.metrics)

    print(
        f"{'router':<16}{'% on time':>14}{'p50 ms':>14}{'p99 ms, all':>14}{'largest 5 %':>14}{'% shed':>14}"
    )
    for name, metrics in found.items():
        columns = (
            100 * statistics.fmean(row["attainment"] for row in metrics),
            statistics.median(row["p50_all_ms"] for row in metrics),
            statistics.median(row["p99_all_ms"] for row in metrics),  # infinite where 1 % is not answered
            100 * statistics.fmean(row["attainment_largest_5pct"] for row in metrics),
            100 * statistics.fmean(row["shed_rate"] for row in metrics),
        )
        print(f"{name:<16}" + "".join(f"{value:>14.2f}" for value in columns))


parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("trace", type=Path, nargs="?", help="CSV file; made up by default")
parser.add_argument("--load", type=float, default=0.9, help="default: %(default)s")
parser.add_argument("--sigma", type=float, default=0.5, help="of predicted outputs (default: %(default)s)")
parser.add_argument("--full", action="store_true", help="replay the whole trace, not windows of 15 s")
parser.add_argument("--routers", nargs="+", default=ROUTERS, metavar="NAME")
parser.add_argument("--seeds", type=int, default=8, help="episodes (default: %(default)s)")
args = parser.parse_args()
if args.seeds < 1:
    parser.error(f"--seeds = {args.seeds}: must be at least 1")

with tempfile.TemporaryDirectory() as folder:
    path = args.trace
    if path is None:
        path = Path(folder) / "made_up.csv"
        make_up_trace(path)
    try:
        replay(path, args.load, args.sigma, args.full, list(args.routers), args.seeds)
    except ValueError as error:  # a bad trace, field or name; the message says which
        raise SystemExit(f"error: {error}") from None
