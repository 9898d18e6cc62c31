"""Settings of a router that differ in one of its parameters, or in two."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from routing_gym.common.config import packaged
from routing_gym.studies.config import is_number

# Fewer values show no course.
LEAST_VALUES = 3

Settings = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Sweep:
    """Settings of one router that differ in one number, or in two, of which the second tells lines apart.

    Attributes:
        name: of the router.
        parameter: along the axis.
        second: the other number; None where there is one line.
        fixed: what else is set, and not as shipped.
        lines: by value of the second, labels by value of the parameter, both ascending.
        shipped: values of the parameter and the second, where known.
    """

    name: str
    parameter: str
    second: str | None
    fixed: Mapping[str, Any]
    lines: Mapping[float | None, Mapping[float, str]]
    shipped: Mapping[str, float]

    @property
    def labels(self) -> set[str]:
        """Labels of all its settings."""
        return {label for line in self.lines.values() for label in line.values()}

    @property
    def longest(self) -> int:
        """Number of values on its longest line."""
        return max(map(len, self.lines.values()))

    @property
    def held(self) -> list[str]:
        """What is fixed, as labels of routers have it."""
        return [f"{key}={value}" for key, value in self.fixed.items()]

    def called(self, second: float | None) -> str:
        """Return what a line is called; empty where it is the only one."""
        return "" if second is None else f"{self.second}={second}"


def sweeps(routers: Sequence[Mapping[str, Any]], family: str) -> list[Sweep]:
    """Return the sweeps that routers make up.

    What a setting leaves open has the value that ships. Two numbers that were varied together make one
    sweep, along the one with more values; what another sweep shows already is left out.

    Args:
        routers: of the run's plan: `label`, `name` and `params`.
        family: of environments.
    """
    found = []
    for name in dict.fromkeys(router["name"] for router in routers):
        short = name.partition("/")[2]
        shipped = packaged("routers", family).get(short, {})
        settings = {one["label"]: {**shipped, **one["params"]} for one in routers if one["name"] == name}
        possible = _possible(short, shipped, settings)
        seen: set[str] = set()
        kept = []
        for sweep in sorted(possible, key=lambda one: (-len(one.labels), -one.longest)):
            if not sweep.labels <= seen:
                seen |= sweep.labels
                kept.append(sweep)
        found += [sweep for sweep in possible if sweep in kept]
    return found


def _possible(name: str, shipped: Mapping[str, Any], settings: Settings) -> list[Sweep]:
    """Return all sweeps over a router's settings, which are by label."""
    keys = list(dict.fromkeys(key for params in settings.values() for key in params))
    found = []
    for parameter, second in [(a, b) for a in keys for b in (None, *keys) if a != b]:
        varied = [parameter] if second is None else [parameter, second]
        groups: dict[str, dict[float | None, dict[float, str]]] = {}
        rest = {}
        for label, params in settings.items():
            if all(is_number(params.get(key)) for key in varied):
                kept = {key: value for key, value in params.items() if key not in varied}
                plain = {key: float(value) if is_number(value) else value for key, value in kept.items()}
                group = json.dumps(plain, sort_keys=True)
                rest[group] = kept
                line = groups.setdefault(group, {}).setdefault(params[second] if second else None, {})
                line.setdefault(params[parameter], label)
        for group, lines in groups.items():
            long = {
                value: dict(sorted(line.items()))
                for value, line in sorted(lines.items(), key=lambda item: item[0] or 0.0)
                if len(line) >= LEAST_VALUES
            }
            if len(long) >= len(varied):
                fixed = {key: value for key, value in rest[group].items() if value != shipped.get(key, ...)}
                usual = {key: shipped[key] for key in varied if is_number(shipped.get(key))}
                found.append(Sweep(name, parameter, second, fixed, long, usual))
    return found
