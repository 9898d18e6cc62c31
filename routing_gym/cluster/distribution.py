"""Distributions of cluster conditions for training, and what a user may give as `config` (DESIGN 3)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field, field_validator, model_validator

from routing_gym.cluster.config import ClusterConfig, Event
from routing_gym.common.config import (
    ConfigError,
    FrozenModel,
    load_yaml,
    merge,
    packaged,
    validate,
)
from routing_gym.rewards import cluster_weights

Range = tuple[float, float]
Weighting = str | tuple[float, float, float, float, float]


class ClusterDistribution(FrozenModel):
    """A distribution of conditions: each reset of an environment samples a whole `ClusterConfig`.

    Ranges are uniform. Fields left out take the values of `configs/cluster/training.yaml`. A scenario's
    events keep their order and are stretched over [start, start + duration]. Between two `rewards` an
    episode pays (1 - w) · first + w · second, w uniform on [0, 1).
    """

    base: ClusterConfig
    rate_per_s: Range
    load: Range | None
    heterogeneity: Range
    scenarios: tuple[str, ...] = Field(min_length=1)
    event_start_s: Range
    event_duration_s: Range
    any_replica: bool
    shuffle_replicas: bool
    rewards: tuple[Weighting, Weighting] | None

    @model_validator(mode="before")
    @classmethod
    def _fill_in(cls, data: Any) -> Any:
        return merge(packaged("cluster", "training"), data) if isinstance(data, Mapping) else data

    @field_validator("rate_per_s", "load", "heterogeneity", "event_start_s", "event_duration_s")
    @classmethod
    def _ordered(cls, value: Range | None) -> Range | None:
        if value is not None and value[0] > value[1]:
            raise ValueError("the first number of a range must not exceed the second")
        return value

    @field_validator("rewards", mode="before")
    @classmethod
    def _known_weightings(cls, value: Any) -> Any:
        for weighting in value if isinstance(value, (list, tuple)) else ():
            ClusterConfig.create(reward=weighting)
        return value

    @model_validator(mode="after")
    def _samples_are_valid(self) -> ClusterDistribution:
        for name in ("event_start_s", "event_duration_s"):
            if min(getattr(self, name)) < 0:
                raise ValueError(f"{name} = {getattr(self, name)}: must not be negative")
        # Sampling skips validation, so every corner is validated here, once.
        for scenario in self.scenarios:
            for corner in (0, 1):
                self.base.replace(
                    scenario=scenario,
                    rate_per_s=self.rate_per_s[corner],
                    heterogeneity=self.heterogeneity[corner],
                    load=self.load[corner] if self.load else self.base.load,
                )
        return self

    @classmethod
    def create(
        cls, name: str | Path | Mapping[str, Any] = "training", **overrides: Any
    ) -> ClusterDistribution:
        """Build a distribution from a shipped name, a YAML path or a mapping.

        Overrides that are not fields of the distribution go to its `base`.

        Raises:
            ConfigError: names each bad field, its value and what is allowed.
        """
        data = dict(name if isinstance(name, Mapping) else load_yaml("cluster", name))
        if "scenario" in overrides:
            raise ConfigError(
                f"scenario = {overrides['scenario']!r}: a distribution draws it; name those it may draw in "
                "`scenarios`"
            )
        own = {key: value for key, value in overrides.items() if key in cls.model_fields}
        rest = {key: value for key, value in overrides.items() if key not in cls.model_fields}
        if "reward" in rest and own.get("rewards", data.get("rewards")):
            raise ConfigError(
                f"reward = {rest['reward']!r}: the distribution draws it; name those it may draw between in "
                "`rewards`, or set that to null"
            )
        base = data.get("base", {})
        if isinstance(base, ClusterConfig):
            base = base.model_dump()
        data["base"] = validate(ClusterConfig, merge(base, rest))
        return validate(cls, merge(data, own))

    def sample(self, rng: np.random.Generator) -> ClusterConfig:
        """Draw a condition; always the same number of draws, one more with `rewards`, whatever the ranges."""
        rate, load, heterogeneity, start, duration = rng.random(5).tolist()
        scenario = self.scenarios[int(rng.integers(len(self.scenarios)))]
        offset = int(rng.integers(self.base.replicas))
        order = rng.permutation(self.base.replicas)
        pattern = self.base.service_ms
        if self.shuffle_replicas:
            pattern = tuple(pattern[i % len(pattern)] for i in order)
        # Last, so that all else is as without it.
        reward: Any = self._mixed(self.rewards, rng.random()) if self.rewards else self.base.reward
        return self.base.model_copy(
            update={
                "rate_per_s": _within(self.rate_per_s, rate),
                "load": _within(self.load, load) if self.load else self.base.load,
                "heterogeneity": _within(self.heterogeneity, heterogeneity),
                "service_ms": pattern,
                "reward": reward,
                "scenario": scenario,
                "scenarios": {
                    **self.base.scenarios,
                    scenario: self._moved(
                        self.base.scenarios[scenario],
                        _within(self.event_start_s, start),
                        _within(self.event_duration_s, duration),
                        offset if self.any_replica else 0,
                    ),
                },
            }
        )

    def _mixed(self, rewards: tuple[Weighting, Weighting], w: float) -> tuple[float, ...]:
        first, second = (cluster_weights(reward, self.base.deadline_ms) for reward in rewards)
        return tuple((1.0 - w) * one + w * other for one, other in zip(first, second, strict=True))

    def _moved(
        self, events: tuple[Event, ...], start: float, duration: float, offset: int
    ) -> tuple[Event, ...]:
        if not events:
            return events
        times = [event.time_s for event in events]
        span = max(times) - min(times) or 1.0
        return tuple(
            event.model_copy(
                update={
                    "time_s": start + duration * (event.time_s - min(times)) / span,
                    "replica": None
                    if event.replica is None
                    else (event.replica + offset) % self.base.replicas,
                }
            )
            for event in events
        )

    @property
    def slowest_pace(self) -> float:
        """The slowest that a replica can become in any sample, as `ClusterConfig.slowest_pace`."""
        return max(
            self.base.replace(scenario=scenario, heterogeneity=h).slowest_pace
            for scenario in self.scenarios
            for h in self.heterogeneity
        )


def _within(bounds: Range, fraction: float) -> float:
    return bounds[0] + (bounds[1] - bounds[0]) * fraction


Conditions = ClusterConfig | ClusterDistribution


def resolve(config: Conditions | str | Path | Mapping[str, Any] = "default", **overrides: Any) -> Conditions:
    """Turn what a user gives as `config` into a condition or a distribution of them.

    Args:
        config: a config, the name of a shipped one, a YAML path, or a mapping. A mapping or file with a
            `base` describes a `ClusterDistribution`.
        overrides: fields laid over it.

    Raises:
        ConfigError: names each bad field, its value and what is allowed.
    """
    if isinstance(config, ClusterConfig):
        return config.replace(**overrides) if overrides else config
    if isinstance(config, ClusterDistribution):
        return ClusterDistribution.create(config.model_dump(), **overrides) if overrides else config
    if not isinstance(config, (str, Path, Mapping)):
        raise ConfigError(f"config = {config!r}: must be a config, a name, a path or a mapping")
    data = config if isinstance(config, Mapping) else load_yaml("cluster", config)
    kind = ClusterDistribution.create if "base" in data else ClusterConfig.create
    return kind(data, **overrides)
