"""What users type, read: lists by comma, NAME=VALUE pairs, routers with parameters, seeds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import yaml

import routing_gym
from routing_gym.common.config import ConfigError
from routing_gym.evaluation.runner import TEST_SEEDS_FROM, Router


def split(text: str) -> list[str]:
    """Split a list by comma."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts:
        raise ConfigError(f"{text!r} lists nothing; give one or more values, separated by commas")
    return parts


def numbers(option: str, text: str | None) -> list[float]:
    """Read numbers by comma; none of None."""
    if text is None:
        return []
    try:
        return [float(part) for part in split(text)]
    except ValueError:
        raise ConfigError(f"{option} {text}: must be numbers, separated by commas") from None


def whole_numbers(option: str, text: str | None) -> list[int]:
    """Read whole numbers by comma; none of None."""
    if text is None:
        return []
    try:
        return [int(part) for part in split(text)]
    except ValueError:
        raise ConfigError(f"{option} {text}: must be whole numbers, separated by commas") from None


def assignments(option: str, pairs: Sequence[str]) -> dict[str, Any]:
    """Read NAME=VALUE pairs, values in YAML."""
    fields = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name.strip():
            raise ConfigError(f"{option}{pair}: must be NAME=VALUE")
        try:
            fields[name.strip()] = yaml.safe_load(value)
        except yaml.YAMLError:
            raise ConfigError(f"{option}{pair}: {value!r} is not valid YAML") from None
    return fields


def routers_of(text: str, family: str) -> list[Router]:
    """Read routers by comma, as NAME:PARAM=VALUE:…; a bare name is looked for in the family first."""
    return [_router(part, family) for part in split(text)]


def _router(text: str, family: str) -> Router:
    name, *parts = text.split(":")
    full = routing_gym.policy.full_name(name, family)
    bare = full.partition("/")[2]
    params = assignments(f"--routers {name}:", parts)
    return Router(":".join([bare, *parts]), full, params)


def seeds_of(text: str) -> list[int]:
    """Read how many seeds, a range or a list."""
    try:
        if "-" in text:
            first, last = (int(part) for part in text.split("-"))
            seeds = list(range(first, last + 1))
        elif "," in text:
            seeds = [int(part) for part in split(text)]
        else:
            seeds = list(range(TEST_SEEDS_FROM, TEST_SEEDS_FROM + int(text)))
    except ValueError:
        seeds = []
    if not seeds or len(set(seeds)) < len(seeds) or min(seeds) < 0:
        raise ConfigError(
            f"--seeds {text}: must be a number of episodes, a range such as 30000-30009, or distinct "
            "seeds by comma"
        )
    return seeds
