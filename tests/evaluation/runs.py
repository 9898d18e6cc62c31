"""What the tests of the evaluation share: short conditions, made-up results, routers that tell tales."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import pytest

from routing_gym import policy as registry
from routing_gym.cluster.config import ClusterConfig
from routing_gym.cluster.metrics import METRICS
from routing_gym.evaluation.results import make_plan
from routing_gym.evaluation.runner import Condition, Job, Result, Router, make_jobs
from routing_gym.policy import GROUP, Policy, Yardstick

SHORT = {"warmup_s": 0.125, "measured_s": 0.375}
# The registry as the package brings it, whatever else is installed beside it.
CLUSTER_ROUTERS = [
    name for name in registry.list_policies("cluster") if registry.policy_class(name).role == "router"
]
CLUSTER_YARDSTICKS = [
    name for name in registry.list_policies("cluster") if registry.policy_class(name).role == "yardstick"
]


def condition(name: str = "steady", **fields: Any) -> Condition:
    """Return a condition of short episodes, with the columns that the command line gives."""
    config = ClusterConfig.create(**{**SHORT, **fields})
    return Condition(name, config, {"scenario": config.scenario, "rate_per_s": config.rate_per_s})


def router(name: str, label: str = "", **params: Any) -> Router:
    """Return a router of the cluster by its bare name."""
    return Router(label or name, f"cluster/{name}", params)


def same(a: Any, b: Any) -> bool:
    """Tell whether two metrics are the same, bit for bit, arrays and lists alike."""
    if isinstance(a, (np.ndarray, list)) or isinstance(b, (np.ndarray, list)):
        return a is not None and b is not None and np.array_equal(np.asarray(a), np.asarray(b))
    return type(a) is type(b) and a == b


def assert_same_metrics(a: Mapping[str, Any], b: Mapping[str, Any]) -> None:
    """Assert that two episodes have the same metrics, exactly."""
    assert a.keys() == b.keys()
    different = {name: (a[name], b[name]) for name in a if not same(a[name], b[name])}
    assert not different


# Results that were never played, for what only keeps or shows them.


def plan_of(
    routers: Sequence[Router],
    conditions: Sequence[Condition],
    seeds: Sequence[int],
    reference: str = "",
    curves: bool = True,
) -> dict[str, Any]:
    """Return the plan that `compare` would make."""
    return make_plan(
        "cluster",
        routers,
        conditions,
        seeds,
        roles=[r.role for r in routers],
        reference=reference or routers[0].label,
        curves=curves,
    )


def made_up(job: Job, curves: bool = True, **metrics: Any) -> Result:
    """Return a result whose metrics follow from the job's key, awkward to write down as they are."""
    rng = np.random.default_rng([ord(letter) for letter in "".join(map(str, job.key))])
    values = dict.fromkeys(METRICS)
    values |= {name: float(rng.random()) for name in METRICS if name.startswith(("attainment", "p"))}
    values |= {
        "arrivals": int(rng.integers(1, 2**40)),
        "mean_latency_ms": 0.1 + 0.2,
        "max_latency_ms": 1e300,
        "p99_all_ms": float("inf"),
        "shed_rate": 5e-324,
        "goodput_per_s": 1.0,
        "replica_shares": rng.dirichlet(np.ones(3)),
    }
    lines = {"latency_cdf": rng.random(3).round(6).tolist(), "outstanding": rng.integers(9, size=3).tolist()}
    return Result(job, {**values, **metrics}, lines if curves and job.router.role == "router" else {})


def made_up_run(routers: int = 2, conditions: int = 2, seeds: int = 2) -> tuple[dict[str, Any], list[Job]]:
    """Return a plan and its jobs; the last router is a yardstick."""
    listed = [*map(router, ["least_queue", "round_robin", "adaptive"][: routers - 1]), router("bound")]
    places = [condition(f'place {k}, "quoted", 5/s', rate_per_s=float(k + 1)) for k in range(conditions)]
    chosen = [30_000 + k for k in range(seeds)]
    return plan_of(listed, places, chosen), make_jobs(listed, places, chosen)


# Routers made for tests, and what makes them known.


class Spy(Policy):
    """Sends everything to the first eligible replica, and keeps what the runner gave it."""

    seen: ClassVar[list[Spy]] = []

    def __init__(self) -> None:
        self.attached: list[Any] = []
        self.configured: list[Any] = []
        self.seeds: list[int] = []
        self.starts: list[np.ndarray] = []
        self.seen.append(self)

    def predict(
        self,
        observation: Mapping[str, Any],
        state: Any = None,
        episode_start: Any = None,
        deterministic: bool = True,
        action_masks: Any = None,
    ) -> tuple[np.ndarray, Any]:
        self.starts.append(np.array(episode_start))
        return np.asarray(action_masks).argmax(axis=-1), (state or 0) + 1

    def initial_state(self, seeds: Sequence[int]) -> Any:
        self.seeds += seeds
        return 0

    def configure(self, configs: Sequence[Any]) -> None:
        self.configured += configs

    def attach(self, envs: Any) -> None:
        self.attached.append(envs)


class SpyYardstick(Spy):
    """A spy that may look into the environment."""

    role: ClassVar[Literal["router", "yardstick"]] = "yardstick"


class Stubborn(Policy):
    """Names replica 0, eligible or not."""

    def predict(
        self,
        observation: Mapping[str, Any],
        state: Any = None,
        episode_start: Any = None,
        deterministic: bool = True,
        action_masks: Any = None,
    ) -> tuple[np.ndarray, Any]:
        return np.zeros(np.shape(observation["eligible"])[:-1], np.int64), state


class Half(Yardstick):
    """Claims that half of the arrivals can be on time."""

    def measure(self, episode: Any) -> dict[str, Any]:
        return {"arrivals": len(episode.arrivals.arrival_ms), "attainment": 0.5}


def install(
    monkeypatch: pytest.MonkeyPatch, module: str = __name__, family: str = "cluster", **classes: str
) -> None:
    """Register routers `FAMILY/NAME` for a test, given as the names of their classes, by default here."""
    known = registry._registered()
    for name, cls in classes.items():
        known[f"{family}/{name}"] = EntryPoint(f"{family}/{name}", f"{module}:{cls}", GROUP)
    monkeypatch.setattr(registry, "_registered", lambda: known)
    Spy.seen.clear()


def hide_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make matplotlib as good as not installed."""
    import sys

    for name in [*sys.modules, "matplotlib", "matplotlib.figure"]:
        if name.partition(".")[0] == "matplotlib":
            monkeypatch.setitem(sys.modules, name, None)


def read_bytes(folder: Path, *names: str) -> list[bytes]:
    """Return what the files of a folder hold."""
    return [(folder / name).read_bytes() for name in names]


def table_cells(line: str) -> list[str]:
    """Return the cells of a line of a Markdown table; escaped bars are part of a cell."""
    assert line.startswith("| ") and line.endswith(" |"), line
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
