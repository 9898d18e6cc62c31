"""What a study is: parts that each play routers under conditions, on seeds that nothing was chosen by."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, field_validator, model_validator

from routing_gym.cloud_edge.config import CloudEdgeConfig
from routing_gym.cluster.config import ClusterConfig
from routing_gym.cluster.workload import make_workload
from routing_gym.common.config import ConfigError, FrozenModel, load_yaml, merge, validate
from routing_gym.evaluation.arguments import routers_of, seeds_of
from routing_gym.evaluation.runner import (
    DEVELOPMENT_SEEDS,
    TRAINING_SEEDS_FROM,
    VALIDATION_SEEDS,
    Condition,
    Router,
)
from routing_gym.policy import full_name

VALIDATION = "validation"
# Folders in a study's own, or in a part's.
RESERVED = ("figures", "selection", "shards")

Values = Annotated[tuple[Any, ...], Field(min_length=1)]
Grid = dict[str, Values]


def _kind_of(entry: Any) -> str:
    return "grid" if isinstance(entry, Mapping) else "router"


# A router as one types it, or {NAME: {PARAMETER: [VALUES]}} for every combination of the values.
Entry = Annotated[
    Annotated[str, Tag("router")] | Annotated[dict[str, Grid], Tag("grid")], Discriminator(_kind_of)
]
Entries = tuple[Entry, ...]


def expand(entry: Entry, family: str) -> list[Router]:
    """Return the routers that an entry stands for.

    Raises:
        ConfigError: its parameters cannot be read.
        ValueError: there is no such router.
    """
    if isinstance(entry, str):
        return routers_of(entry, family)
    routers = []
    for name, grid in entry.items():
        full = full_name(name, family)
        bare = full.partition("/")[2]
        for values in itertools.product(*grid.values()):
            params = dict(zip(grid, values, strict=True))
            label = ":".join([bare, *(f"{parameter}={value}" for parameter, value in params.items())])
            routers.append(Router(label, full, params))
    return routers


class Groups(FrozenModel):
    """Routers by what they are to the study, in the order of its tables.

    Attributes:
        documented: the sources' own; scores are normalised to the best of them.
        fixed: others that nobody trained.
        trained: learned ones.
        yardsticks: what knows more than a router can, and bounds.
    """

    documented: Entries = ()
    fixed: Entries = ()
    trained: Entries = ()
    yardsticks: Entries = ()


class Part(FrozenModel):
    """Routers that are compared under the same conditions.

    Attributes:
        title: of its section.
        note: what else there is to say of it.
        family: of environments.
        config: name of a shipped config of the family, or a YAML path.
        fields: laid over it.
        conditions: fields and the values to cross, or several such grids one after another. A dotted name
            is a field of a field, `config` a config by name, a `trace` a file in the folder of data.
        routers: what plays.
        candidates: routers of which the best on development seeds becomes the reference.
        reference: what differences are taken to, where there are no candidates.
        seeds: `validation`, or as `--seeds` of a comparison.
        load_of_replicas: the load is what the rate gives with so many replicas.
        curves: keep each episode's curves, for figures; of `cloud_edge` they always are kept.
        gap: hold each cloud–edge decision against the proven optimum of its batch.
        axis: the condition's label that the score is drawn against.
        published: what a source reports as a router's mean score over the conditions.
        pictures: names of the figures that a page of docs shows.
        report: what a report of one's own needs to know; kept beside the results.
    """

    title: str
    note: str = ""
    family: Literal["cluster", "cloud_edge"]
    config: str
    fields: dict[str, Any] = Field(default={})
    conditions: Annotated[tuple[Grid, ...], Field(min_length=1)] = ({},)
    routers: Groups
    candidates: Entries = ()
    reference: str | None = None
    seeds: str = VALIDATION
    load_of_replicas: int | None = Field(default=None, ge=1)
    curves: bool = False
    gap: bool = False
    axis: str | None = None
    published: dict[str, float] = Field(default={})
    pictures: tuple[str, ...] = ()
    report: dict[str, Any] = Field(default={})

    @field_validator("conditions", mode="before")
    @classmethod
    def _one_of_several(cls, value: Any) -> Any:
        return (value,) if isinstance(value, Mapping) else value

    @model_validator(mode="after")
    def _consistent(self) -> Part:
        self.seeds_played()
        if not (self.candidates or self.reference):
            raise ValueError("reference is missing: name a router, or candidates")
        if self.candidates and self.reference:
            raise ValueError(f"reference = {self.reference!r}: the candidates choose it; name one of the two")
        if self.gap and self.family != "cloud_edge":
            raise ValueError("gap = true: is of cloud_edge")
        if self.load_of_replicas is not None and self.family != "cluster":
            raise ValueError(f"load_of_replicas = {self.load_of_replicas}: is of the cluster")
        return self

    @property
    def traces(self) -> list[str]:
        """Names of the files that it needs."""
        return [str(name) for grid in self.conditions for name in grid.get("trace", ())]

    def seeds_played(self, asked: str | None = None) -> list[int]:
        """Return the seeds to play.

        Args:
            asked: how many of the part's own, or FIRST-LAST, or seeds by comma, instead.

        Raises:
            ConfigError: seeds that routers are trained on or chosen by.
        """
        seeds = list(VALIDATION_SEEDS) if self.seeds == VALIDATION else seeds_of(self.seeds)
        if asked is not None:
            listed = seeds_of(asked)
            seeds = seeds[: len(listed)] if asked.strip().isdecimal() else listed
        spent = [seed for seed in seeds if seed in DEVELOPMENT_SEEDS or seed >= TRAINING_SEEDS_FROM]
        if spent:
            given = f"seeds = {self.seeds}" if asked is None else f"--seeds {asked}"
            raise ConfigError(
                f"{given}: {spent[0]} may have been seen in training or selection; take others than "
                f"{DEVELOPMENT_SEEDS[0]} to {DEVELOPMENT_SEEDS[-1]}, below {TRAINING_SEEDS_FROM}"
            )
        return seeds

    def selection_seeds(self, asked: str | None = None) -> list[int]:
        """Return the development seeds that the best candidate is chosen on, cut short as the others are."""
        short = asked is not None and asked.strip().isdecimal()
        return list(DEVELOPMENT_SEEDS[: int(str(asked))] if short else DEVELOPMENT_SEEDS)

    def conditions_played(self, data: Path | None = None) -> list[Condition]:
        """Return every combination, with the crossed fields and the load, or the destinations, as labels.

        Args:
            data: the folder that traces are in.

        Raises:
            ConfigError: a field that is not there, or a value that is not allowed.
        """
        return [
            self._condition(dict(zip(grid, values, strict=True)), data)
            for grid in self.conditions
            for values in itertools.product(*grid.values())
        ]

    def _condition(self, crossed: dict[str, Any], data: Path | None) -> Condition:
        fields = self.fields
        for name, value in crossed.items():
            if name != "config":
                fields = merge(fields, _nested(name, value))
        if "trace" in crossed:
            fields["trace"] = str((data or Path()) / str(crossed["trace"]))
        name = ", ".join(f"{field} {value}" for field, value in crossed.items()) or self.config
        base, labels = crossed.get("config", self.config), dict(crossed)
        if self.family == "cloud_edge":
            batches = CloudEdgeConfig.create(base, **fields)
            return Condition(name, batches, labels | {"destinations": batches.destination_count})
        config = ClusterConfig.create(base, **fields)
        if self.load_of_replicas is not None:
            usual = make_workload(config.replace(replicas=self.load_of_replicas))
            config = config.replace(load=usual.offered_load)
        workload = make_workload(config)
        labels["load"] = round(workload.offered_load, 4)
        if workload.length_ms is not None:
            labels |= {
                "cutoff_s": workload.cutoff_ms / 1000.0,
                "trace_s": round(workload.length_ms / 1000.0, 3),
            }
        return Condition(name, config, labels)

    def groups(self, reference: Router | None = None) -> dict[str, list[Router]]:
        """Return the routers of each group; one that several entries name is in the first only.

        Args:
            reference: what differences are taken to; behind the other fixed ones where it is in no group.
        """
        seen: set[str] = set()
        grouped: dict[str, list[Router]] = {}
        for group in Groups.model_fields:
            entries = getattr(self.routers, group)
            listed = [router for entry in entries for router in expand(entry, self.family)]
            fresh = {router.label: router for router in listed if router.label not in seen}
            seen |= fresh.keys()
            grouped[group] = list(fresh.values())
        if reference is not None and reference.label not in seen:
            grouped["fixed"].append(reference)
        return grouped

    def candidates_played(self) -> list[Router]:
        """Return the routers of which one is chosen."""
        return [router for entry in self.candidates for router in expand(entry, self.family)]


class Study(FrozenModel):
    """Parts by name, in the order of the report.

    Attributes:
        title: of the report.
        about: what it asks, and of which source.
        parts: by name.
    """

    title: str
    about: str = ""
    parts: Annotated[dict[str, Part], Field(min_length=1)]

    @field_validator("parts")
    @classmethod
    def _names_are_folders(cls, parts: dict[str, Part]) -> dict[str, Part]:
        for name in parts:
            if not re.fullmatch(r"[A-Za-z0-9][\w.-]*", name) or name in RESERVED:
                raise ValueError(
                    f"{name!r} is the name of a folder: letters, digits, '_', '-' and '.', and not "
                    f"{', '.join(RESERVED)}"
                )
        return parts

    @classmethod
    def create(cls, name: str | Path) -> Study:
        """Read a study: a name in configs/studies, or a YAML path.

        Raises:
            ConfigError: names each bad field, its value and what is allowed.
        """
        return validate(cls, load_yaml("studies", name))


def choose_parts(parts: Mapping[str, Part], names: Sequence[str] | None) -> dict[str, Part]:
    """Return the parts of these names; all of None.

    Raises:
        ConfigError: there is no such part.
    """
    for name in names or ():
        if name not in parts:
            raise ConfigError(f"--parts {name}: must be of {', '.join(parts)}")
    return {name: part for name, part in parts.items() if names is None or name in names}


def is_number(value: Any) -> bool:
    """Return whether a value is a number, which true and false are not."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _nested(name: str, value: Any) -> dict[str, Any]:
    """Return a field's value as a mapping; a dotted name is a field of a field."""
    first, _, rest = name.partition(".")
    return {first: _nested(rest, value) if rest else value}
