"""Configs of cloud–edge batches (DESIGN 4)."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, get_args

from pydantic import Field, field_validator, model_validator

from routing_gym.cloud_edge.catalogue import Catalogue, Destination
from routing_gym.cloud_edge.outcomes import OutcomesConfig
from routing_gym.cloud_edge.synthetic import SyntheticConfig
from routing_gym.common.config import ConfigError, FrozenModel, load_yaml, merge, packaged, validate
from routing_gym.rewards import CLOUD_EDGE_TERMS

DEFAULT = "routerbench-5node"
MAX_REQUESTS = 128
_WHOLE = {"catalogue": {"nodes", "models"}, "workload": {"kind", "models"}}


class Outage(FrozenModel):
    """A node that is down for some windows: it gets nothing new, and goes on with what it has."""

    node: str
    window: int = Field(ge=0)
    windows: int = Field(ge=1)


class CloudEdgeConfig(FrozenModel):
    """One condition of the cloud–edge family.

    Fields left out take the values of `configs/cloud_edge/default.yaml`, which describes each of them and
    marks those that are this project's own choice; without a catalogue, that of `routerbench-5node`.
    Mappings merge: `catalogue={"speedup": 5.0}` changes one constant.

    Raises:
        pydantic.ValidationError: on construction; `create` words the same as a `ConfigError`.
    """

    space_fields: ClassVar[tuple[str, ...]] = ("destination_count", "max_requests")

    catalogue: Catalogue
    workload: Annotated[SyntheticConfig | OutcomesConfig, Field(discriminator="kind")]
    drop: tuple[str, ...]
    replicate: int = Field(ge=1, le=64)

    window_s: float = Field(gt=0)
    windows: int = Field(ge=1, le=2**20)
    max_requests: int = Field(ge=1, le=MAX_REQUESTS)

    rate_per_s: float | None = Field(ge=0)
    requests: int | None = Field(ge=0, le=2**16)
    trace: str | None

    weights: tuple[float, float, float, float]
    reward_on: Literal["actual", "predicted"]
    credit: Literal["batch", "decision"]

    rtt_sigma: float = Field(ge=0, le=2)
    edge_only_share: float = Field(ge=0, le=1)
    outages: tuple[Outage, ...]
    outage_probability: float = Field(ge=0, le=1)
    outage_mean_windows: float = Field(ge=1)

    @model_validator(mode="before")
    @classmethod
    def _fill_in(cls, data: Any) -> Any:
        if not isinstance(data, Mapping):
            return data
        base = packaged("cloud_edge", "default")
        for part in ("catalogue", "workload"):
            given = data.get(part)
            # A part of a catalogue or workload changes the default's; a whole one stands for itself.
            if given is None or (isinstance(given, Mapping) and not _WHOLE[part] <= given.keys()):
                base[part] = packaged("cloud_edge", DEFAULT)[part]
        table = _table_defaults(data.get("workload"))
        return merge({**base, "workload": table} if table else base, data)

    @field_validator("trace", mode="before")
    @classmethod
    def _path_as_text(cls, value: Any) -> Any:
        return str(value) if isinstance(value, Path) else value

    @field_validator("weights")
    @classmethod
    def _normalised(cls, value: tuple[float, ...]) -> tuple[float, ...]:
        total = sum(value)
        if min(value) < 0 or not 0 < total < math.inf:
            raise ValueError(
                f"the weights of {', '.join(CLOUD_EDGE_TERMS)} must not be negative, and one must be above 0"
            )
        if abs(total - 1.0) > 1e-9:
            scaled = tuple(weight / total for weight in value)
            shown = ", ".join(f"{weight:.4g}" for weight in scaled)
            warnings.warn(f"weights = {value} sum to {total:g}; normalised to ({shown})", stacklevel=2)
            return scaled
        return value

    @model_validator(mode="after")
    def _consistent(self) -> CloudEdgeConfig:
        if self.requests is not None and self.trace is not None:
            raise ValueError(
                f"requests = {self.requests}: a trace brings its own arrivals; give one of the two"
            )
        if self.requests is None and self.trace is None and self.rate_per_s is None:
            raise ValueError("rate_per_s = None: without a trace or a fixed number of requests, give a rate")
        if self.trace is not None and self.rate_per_s == 0:
            raise ValueError("rate_per_s = 0: a trace needs a rate above 0, or null for its own")
        unknown = [model for model in self.drop if model not in self.catalogue.hosted]
        if unknown:
            raise ValueError(
                f"drop: no node hosts {', '.join(unknown)}; models are {', '.join(self.catalogue.hosted)}"
            )
        if not self.served.nodes:
            raise ValueError(f"drop = {self.drop}: leaves no destination")
        if isinstance(self.workload, OutcomesConfig):
            self.workload.columns_of(self.served.hosted)
            strangers = [name for name in self.workload.stand_ins if name not in self.catalogue.models]
            if strangers and self.workload.kind == "outcomes":  # a known table's are of its own catalogue
                raise ValueError(
                    f"workload.stand_ins: {', '.join(strangers)} is no model of the catalogue, which has "
                    f"{', '.join(self.catalogue.models)}"
                )
        nodes = self.served.node_names(self.replicate)
        double = [name for name in nodes if nodes.count(name) > 1]
        if double:
            raise ValueError(f"replicate = {self.replicate}: would name two nodes {double[0]!r}; rename one")
        if self.edge_only_share and all(d.is_cloud for d in self.destinations):
            raise ValueError(f"edge_only_share = {self.edge_only_share:g}: the catalogue has no edge node")
        for outage in self.outages:
            if outage.node not in nodes:
                raise ValueError(f"outages: no node is named {outage.node!r}; there are {', '.join(nodes)}")
            if outage.window >= self.windows:
                raise ValueError(
                    f"outages: window {outage.window} is after the episode's last, {self.windows - 1}"
                )
        return self

    @classmethod
    def create(cls, name: str | Path | Mapping[str, Any] = DEFAULT, **overrides: Any) -> CloudEdgeConfig:
        """Build a config from a shipped name, a YAML path or a mapping, and fields laid over it.

        Raises:
            ConfigError: names each bad field, its value and what is allowed.
        """
        data = name if isinstance(name, Mapping) else load_yaml("cloud_edge", name)
        return validate(cls, merge(data, overrides))

    def replace(self, **overrides: Any) -> CloudEdgeConfig:
        """Return a validated copy with some fields changed.

        Raises:
            ConfigError: names each bad field, its value and what is allowed.
        """
        return validate(type(self), merge(self.model_dump(), overrides))

    @cached_property
    def served(self) -> Catalogue:
        """The catalogue without the models that `drop` names."""
        return self.catalogue.without(self.drop) if self.drop else self.catalogue

    @cached_property
    def destinations(self) -> tuple[Destination, ...]:
        """The node–model pairs, in the order of the actions."""
        return self.served.destinations(self.replicate)

    @cached_property
    def destination_count(self) -> int:
        """M."""
        return len(self.destinations)

    def files(self) -> dict[str, str]:
        """Return the files that the condition reads, by field."""
        read = self.workload.files() if isinstance(self.workload, OutcomesConfig) else {}
        return read if self.trace is None else {"trace": self.trace, **read}

    @property
    def space_key(self) -> tuple[Any, ...]:
        """What the rows of one vector environment must agree on: it decides the spaces."""
        return tuple(getattr(self, field) for field in self.space_fields)


def _table_defaults(given: Any) -> dict[str, Any]:
    """Return what a workload that reads a table has by default; nothing for other workloads."""
    kind = str(given.get("kind")) if isinstance(given, Mapping) else ""
    if kind not in get_args(OutcomesConfig.model_fields["kind"].annotation):
        return {}
    known = {} if kind == "outcomes" else packaged("workloads", kind)
    return merge(packaged("workloads", "outcomes"), {**known, "kind": kind})


def resolve(
    given: CloudEdgeConfig | str | Path | Mapping[str, Any] = DEFAULT, **overrides: Any
) -> CloudEdgeConfig:
    """Turn what a user may give as `config` into a condition.

    Raises:
        ConfigError: names each bad field, its value and what is allowed.
    """
    if isinstance(given, CloudEdgeConfig):
        return given.replace(**overrides) if overrides else given
    if not isinstance(given, (str, Path, Mapping)):
        raise ConfigError(f"config = {given!r}: must be a config, a name, a path or a mapping")
    return CloudEdgeConfig.create(given, **overrides)
