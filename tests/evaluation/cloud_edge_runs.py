"""What the tests of cloud–edge comparisons share: short conditions, and routers that tell tales."""

from __future__ import annotations

import csv
import itertools
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import pytest

from routing_gym.cloud_edge.config import CloudEdgeConfig
from routing_gym.cloud_edge.evaluator import BatchEvaluator, BatchTables
from routing_gym.evaluation import decisions
from routing_gym.evaluation.results import make_plan
from routing_gym.evaluation.runner import Condition, Router
from routing_gym.policy import Policy, Yardstick
from tests.evaluation import runs

# What depends on the machine and on what else runs there.
TIMED_COLUMNS = ("decision_ms_median", "decision_ms_p99")
TIMED_CURVES = ("decision_ms", "convergence")
SOME_ROUTERS = ("round_robin", "uniroute", "cema", "optimal")


def condition(name: str = "batches of 6", **fields: Any) -> Condition:
    """Return a condition of one window with a few requests, with some of the command line's columns."""
    config = CloudEdgeConfig.create(**{"requests": 6, "windows": 1, "max_requests": 8, **fields})
    return Condition(name, config, {"catalogue": "routerbench-5node", "requests": config.requests})


def several(name: str = "several windows", **fields: Any) -> Condition:
    """Return a condition of some windows, of which some are empty, with backlogs and illegal destinations."""
    chosen = {"requests": None, "rate_per_s": 1.5, "windows": 6, "catalogue": {"speedup": 1.0}}
    return condition(name, **{**chosen, "edge_only_share": 0.3, "outage_probability": 0.2, **fields})


def router(name: str, label: str = "", **params: Any) -> Router:
    """Return a batch router by its bare name."""
    return Router(label or name, f"cloud_edge/{name}", params)


def plan_of(
    routers: Sequence[Router],
    conditions: Sequence[Condition],
    seeds: Sequence[int],
    reference: str = "",
    gap: bool = True,
) -> dict[str, Any]:
    """Return the plan that `compare` would make."""
    settings = {"reference": reference or routers[0].label, "curves": True, "gap": gap}
    return make_plan("cloud_edge", routers, conditions, seeds, roles=[r.role for r in routers], **settings)


def install(monkeypatch: pytest.MonkeyPatch, **classes: str) -> None:
    """Register routers `cloud_edge/NAME` for a test, given as the names of their classes here."""
    runs.install(monkeypatch, __name__, "cloud_edge", **classes)
    Spy.seen.clear()


def without_solver(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the optimum's solver as good as not installed."""

    def make(name: str, **params: Any) -> Any:
        raise ImportError(
            "the exact optimum needs highspy, which is not installed: pip install it", name="highspy"
        )

    monkeypatch.setattr(decisions, "make_policy", make)


def without_times(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row or the curves of an episode without what depends on the machine."""
    return {name: value for name, value in record.items() if name not in (*TIMED_COLUMNS, *TIMED_CURVES)}


def cells(folder: Path) -> list[dict[str, str]]:
    """Return the cells of a folder's episodes."""
    with open(folder / "episodes.csv", newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def batch(observation: Mapping[str, Any]) -> BatchTables:
    """Return the batch that a vector environment's only row shows."""
    return BatchTables.from_observation({name: values[0] for name, values in observation.items()})


def best_objective(tables: BatchTables) -> float:
    """Return the least J over every legal assignment of a small batch."""
    legal = [np.flatnonzero(row) for row in tables.legal]
    return float(BatchEvaluator(tables).objective(np.array(list(itertools.product(*legal)))).min())


# Routers made for tests.


class Spy(Policy):
    """Sends every request to its first legal destination, and keeps what it was given."""

    family: ClassVar[str] = "cloud_edge"
    acts_on: ClassVar[Literal["request", "batch"]] = "batch"
    seen: ClassVar[list[Spy]] = []

    def __init__(self) -> None:
        self.attached: list[Any] = []
        self.configured: list[Any] = []
        self.seeds: list[int] = []
        self.starts: list[bool] = []
        self.states: list[Any] = []
        self.sizes: list[int] = []
        self.seen.append(self)

    def predict(
        self,
        observation: Mapping[str, Any],
        state: Any = None,
        episode_start: Any = None,
        deterministic: bool = True,
        action_masks: Any = None,
    ) -> tuple[np.ndarray, Any]:
        self.starts.append(bool(np.all(episode_start)))
        self.states.append(state)
        self.sizes.append(int(observation["active"].sum()))
        slots = np.shape(observation["active"])
        return observation["legal"].reshape(*slots, -1).argmax(axis=-1), state + 1

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


class OneByOne(Policy):
    """Acts on single requests: the destination with the least load that the request may go to."""

    family: ClassVar[str] = "cloud_edge"
    acts_on: ClassVar[Literal["request", "batch"]] = "request"

    def predict(
        self,
        observation: Mapping[str, Any],
        state: Any = None,
        episode_start: Any = None,
        deterministic: bool = True,
        action_masks: Any = None,
    ) -> tuple[np.ndarray, Any]:
        load = np.where(observation["legal"] > 0, observation["provisional_load_s"], np.inf)
        return load.argmin(axis=-1), state


class Stubborn(Spy):
    """Names destination 0 for every request, legal or not."""

    def predict(self, observation: Mapping[str, Any], *args: Any, **kwargs: Any) -> tuple[np.ndarray, Any]:
        _, state = super().predict(observation, *args, **kwargs)
        return np.zeros(np.shape(observation["active"]), np.int64), state


class Slow(Spy):
    """Its first decision in a process takes long, as one that compiles does; others take 2 ms."""

    decided: ClassVar[bool] = False

    def predict(self, observation: Mapping[str, Any], *args: Any, **kwargs: Any) -> tuple[np.ndarray, Any]:
        time.sleep(0.002 if Slow.decided else 0.3)
        Slow.decided = True
        return super().predict(observation, *args, **kwargs)


class Teller(Spy):
    """Tells of every decision how its search went."""

    def diagnostics(self) -> Sequence[Mapping[str, Any]]:
        return [{"convergence": np.array([[0.001, float(self.sizes[-1])], [0.002, 0.25]])}]


class Cautious(Spy):
    """Claims a bound that is right, and that it was not proven to be reached."""

    def diagnostics(self) -> Sequence[Mapping[str, Any]]:
        return [{"bound": -1.0, "status": "time limit"}]


class Certain(Spy):
    """Claims to have proven a bound of 0."""

    role: ClassVar[Literal["router", "yardstick"]] = "yardstick"

    def diagnostics(self) -> Sequence[Mapping[str, Any]]:
        return [{"bound": 0.0, "status": "optimal"}]


class Ruler(Yardstick):
    """Knows how many arrivals there are."""

    family: ClassVar[str] = "cloud_edge"

    def measure(self, episode: Any) -> dict[str, Any]:
        return {"arrivals": len(episode.arrivals.arrival_s), "objective": 0.0}
