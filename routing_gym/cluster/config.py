"""Configs of the inference cluster: one condition, or a distribution of them (DESIGN 3)."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from functools import cached_property
from numbers import Real
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from routing_gym.common.config import (
    FrozenModel,
    load_yaml,
    merge,
    packaged,
    validate,
)
from routing_gym.rewards import CLUSTER_TERMS, CLUSTER_WEIGHTINGS, cluster_weights

MAX_REPLICAS = 256


class TokenDistribution(FrozenModel):
    """Bounded log-normal token counts: clip(rint(median · exp(sigma · z)), minimum, maximum)."""

    median: float = Field(gt=0)
    sigma: float = Field(ge=0)
    minimum: int = Field(ge=0)
    maximum: int = Field(ge=1, le=2**24)

    @model_validator(mode="after")
    def _ordered(self) -> TokenDistribution:
        if self.minimum > self.maximum:
            raise ValueError(f"minimum {self.minimum} must not exceed maximum {self.maximum}")
        return self

    @property
    def exact_median(self) -> float:
        """The median of the bounded, rounded distribution, tokens."""
        return float(min(max(round(self.median), self.minimum), self.maximum))

    @cached_property
    def mean(self) -> float:
        """The exact mean of the bounded, rounded distribution, tokens."""
        if self.sigma == 0:
            return self.exact_median

        def exceeds(count: int) -> float:
            z = math.log((count + 0.5) / self.median) / self.sigma
            return 0.5 * math.erfc(z / math.sqrt(2.0))

        return self.minimum + math.fsum(map(exceeds, range(self.minimum, self.maximum)))


class Demand(FrozenModel):
    """A request's base service demand, d = base + prompt · tokens + output · tokens, in ms."""

    base_ms: float = Field(ge=0)
    prompt_ms: float = Field(ge=0)
    output_ms: float = Field(ge=0)

    @model_validator(mode="after")
    def _positive(self) -> Demand:
        if self.base_ms == 0:
            raise ValueError("base_ms must be above 0, so that every request takes time")
        return self

    @property
    def coefficients(self) -> tuple[float, float, float]:
        """(a, b, c): ms per request, per prompt token and per output token."""
        return self.base_ms, self.prompt_ms, self.output_ms


class Jitter(FrozenModel):
    """The factor on each service time, low + width · U with U uniform on [0, 1)."""

    low: float = Field(gt=0)
    width: float = Field(ge=0)


class Event(FrozenModel):
    """Something that happens at a fixed simulated time, the same for every router.

    `rate` multiplies the base arrival rate by `factor`; `slowdown` sets a replica's slowness to
    `factor` (absolute, so 1 ends it); `failure` and `recovery` take a replica out and bring it back.
    """

    time_s: float = Field(ge=0)
    kind: Literal["rate", "slowdown", "failure", "recovery"]
    replica: int | None = Field(default=None, ge=0)
    factor: float | None = Field(default=None, ge=0)

    @model_validator(mode="after")
    def _complete(self) -> Event:
        if (self.replica is None) != (self.kind == "rate"):
            needs = "takes no" if self.kind == "rate" else "needs a"
            raise ValueError(f"a {self.kind} event {needs} replica")
        if (self.factor is not None) != (self.kind in ("rate", "slowdown")):
            needs = "needs a" if self.kind in ("rate", "slowdown") else "takes no"
            raise ValueError(f"a {self.kind} event {needs} factor")
        if self.kind == "slowdown" and not self.factor:
            raise ValueError("a slowdown event's factor must be above 0")
        return self

    @property
    def time_ms(self) -> float:
        """When it happens, ms: 2.007 s is 2007 ms, not the next float above it."""
        return round(self.time_s * 1000.0, 6)


class ClusterConfig(FrozenModel):
    """One condition of the inference cluster.

    Fields left out take the values of `configs/cluster/default.yaml`, which describes each of them and
    marks those that are this project's own choice. Mappings merge: `demand={"base_ms": 2.0}` changes one
    coefficient.

    Raises:
        pydantic.ValidationError: on construction; `create` words the same as a `ConfigError`.
    """

    space_fields: ClassVar[tuple[str, ...]] = ("replicas", "admission", "observation")

    replicas: int = Field(ge=1, le=MAX_REPLICAS)
    service_ms: tuple[float, ...] = Field(min_length=1)
    reference_ms: float = Field(gt=0)
    heterogeneity: float
    queue_capacity: int = Field(ge=1, le=2**20)
    admission: bool

    time_step_ms: float = Field(gt=0)
    deadline_ms: float = Field(gt=0)
    warmup_s: float = Field(ge=0)
    measured_s: float = Field(gt=0)

    rate_per_s: float = Field(ge=0)
    load: float | None = Field(gt=0)
    trace: str | None
    trace_full: bool

    prompt_tokens: TokenDistribution
    output_tokens: TokenDistribution
    demand: Demand
    jitter: Jitter
    prediction_sigma: float | None = Field(ge=0)

    ewma_alpha: float = Field(gt=0, le=1)
    service_ceiling_ms: float = Field(gt=0)
    signal_interval_ms: float = Field(ge=0)
    observation: Literal["full", "router"]

    reward: str | tuple[float, float, float, float, float]
    credit: Literal["completion", "decision"]

    scenario: str
    events: tuple[Event, ...]
    scenarios: dict[str, tuple[Event, ...]]

    @model_validator(mode="before")
    @classmethod
    def _fill_in(cls, data: Any) -> Any:
        return merge(packaged("cluster", "default"), data) if isinstance(data, Mapping) else data

    @field_validator("trace", mode="before")
    @classmethod
    def _path_as_text(cls, value: Any) -> Any:
        return str(value) if isinstance(value, Path) else value

    @field_validator("time_step_ms")
    @classmethod
    def _power_of_two(cls, value: float) -> float:
        if math.frexp(value)[0] != 0.5:
            raise ValueError("must be a power of two (such as 0.25, 0.5 or 1), so that boundaries are exact")
        return value

    @field_validator("reward", mode="before")
    @classmethod
    def _known_weighting(cls, value: Any) -> Any:
        five = isinstance(value, (list, tuple)) and len(value) == len(CLUSTER_TERMS)
        numbers = five and all(isinstance(weight, Real) and math.isfinite(weight) for weight in value)
        if not (numbers or (isinstance(value, str) and value in CLUSTER_WEIGHTINGS)):
            raise ValueError(f"must be one of {', '.join(CLUSTER_WEIGHTINGS)}, or five weights")
        return value

    @model_validator(mode="after")
    def _consistent(self) -> ClusterConfig:
        if self.scenario not in self.scenarios:
            near = difflib.get_close_matches(self.scenario, self.scenarios, n=2)
            hint = f" (did you mean {' or '.join(near)}?)" if near else ""
            raise ValueError(
                f"scenario = {self.scenario!r}: must be one of {', '.join(self.scenarios)}{hint}"
            )
        for index, mean in enumerate(self.replica_service_ms):
            if mean <= 0:
                raise ValueError(
                    f"heterogeneity = {self.heterogeneity}: gives replica {index} a mean service of {mean:g} "
                    "ms; every mean must be above 0"
                )
        for event in self.timeline:
            if event.replica is not None and event.replica >= self.replicas:
                raise ValueError(
                    f"events: a {event.kind} event names replica {event.replica}; "
                    f"there are replicas 0 to {self.replicas - 1}"
                )
            if event.kind == "rate" and self.trace is not None:
                raise ValueError(
                    f"trace = {self.trace!r}: brings its own arrivals, so no rate event is allowed; "
                    f"scenario {self.scenario!r} with events has one at {event.time_s:g} s"
                )
        for name, unit_ms in (("signal_interval_ms", 1.0), ("warmup_s", 1000.0), ("measured_s", 1000.0)):
            steps = getattr(self, name) * unit_ms / self.time_step_ms
            if steps >= 2**30:
                raise ValueError(f"{name} = {getattr(self, name):g}: must take fewer than 2^30 time steps")
            # Decimal fractions of a second miss the boundary that they mean by a rounding error.
            if abs(steps - round(steps)) > 1e-6:
                raise ValueError(
                    f"{name} = {getattr(self, name):g}: must be a multiple of the time step, "
                    f"{self.time_step_ms:g} ms"
                )
        if self.service_ceiling_ms < self.reference_ms:
            raise ValueError(
                f"service_ceiling_ms = {self.service_ceiling_ms:g}: must be at least reference_ms, "
                f"{self.reference_ms:g}"
            )
        if self.trace_full and self.trace is None:
            raise ValueError("trace_full = True: needs a trace")
        return self

    @classmethod
    def create(cls, name: str | Path | Mapping[str, Any] = "default", **overrides: Any) -> ClusterConfig:
        """Build a config from a shipped name, a YAML path or a mapping, and fields laid over it.

        Raises:
            ConfigError: names each bad field, its value and what is allowed.
        """
        data = name if isinstance(name, Mapping) else load_yaml("cluster", name)
        return validate(cls, merge(data, overrides))

    def replace(self, **overrides: Any) -> ClusterConfig:
        """Return a validated copy with some fields changed.

        Raises:
            ConfigError: names each bad field, its value and what is allowed.
        """
        return validate(type(self), merge(self.model_dump(), overrides))

    @cached_property
    def replica_service_ms(self) -> tuple[float, ...]:
        """m_i: mean service of a reference request on each replica, ms."""
        pattern, reference = self.service_ms, self.reference_ms
        return tuple(
            reference + self.heterogeneity * (pattern[i % len(pattern)] - reference)
            for i in range(self.replicas)
        )

    @cached_property
    def timeline(self) -> tuple[Event, ...]:
        """All events by time, those at one time in the order in which they are listed."""
        listed = (*self.scenarios[self.scenario], *self.events)
        return tuple(sorted(listed, key=lambda event: event.time_s))

    def files(self) -> dict[str, str]:
        """Return the files that the condition reads, by field."""
        return {} if self.trace is None else {"trace": self.trace}

    @property
    def space_key(self) -> tuple[Any, ...]:
        """What the rows of one vector environment must agree on: it decides the spaces."""
        return tuple(getattr(self, field) for field in self.space_fields)

    @property
    def warmup_ms(self) -> float:
        """Arrivals up to here do not count in the cohort, ms."""
        return self._boundary_ms(self.warmup_s)

    @property
    def cutoff_ms(self) -> float:
        """The episode's last boundary, ms; a full replay of a trace ends with the trace instead."""
        return self._boundary_ms(self.warmup_s + self.measured_s)

    def _boundary_ms(self, time_s: float) -> float:
        return round(time_s * 1000.0 / self.time_step_ms) * self.time_step_ms

    @property
    def capacity_per_ms(self) -> float:
        """Demand that the whole healthy cluster serves, in ms of reference demand per ms: Σ 11/m_i."""
        return math.fsum(self.reference_ms / mean for mean in self.replica_service_ms)

    @property
    def reward_weights(self) -> tuple[float, ...]:
        """Weights of the five reward terms."""
        return cluster_weights(self.reward, self.deadline_ms)

    @property
    def slowest_pace(self) -> float:
        """The slowest that a replica can become: service time per ms of demand, without jitter."""
        slow = (event.factor or 1.0 for event in self.timeline if event.kind == "slowdown")
        return max(self.replica_service_ms) / self.reference_ms * max([1.0, *slow])
