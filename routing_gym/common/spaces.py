"""Spaces of rows that differ in their conditions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from gymnasium import spaces


def common_space(all_spaces: list[spaces.Dict]) -> spaces.Dict:
    """Return the space that holds the observations of all rows: the widest bounds of each field.

    Raises:
        ValueError: the rows do not have the same fields and shapes.
    """
    first = all_spaces[0]
    for row, other in enumerate(all_spaces[1:], start=1):
        shapes = {name: box.shape for name, box in other.items()}
        if shapes != {name: box.shape for name, box in first.items()}:
            raise ValueError(f"configs[{row}] has other observations than configs[0]; all rows need the same")
    boxes: dict[str, spaces.Space[Any]] = {
        name: spaces.Box(
            first[name].low,  # type: ignore[attr-defined]
            np.maximum.reduce([np.asarray(space[name].high) for space in all_spaces]),  # type: ignore[attr-defined]
            dtype=np.float32,
        )
        for name in first
    }
    return spaces.Dict(boxes)


def check_fits(configs: Iterable[Any], own: Any) -> None:
    """Refuse a saved state whose episodes have other spaces than the environment's own config.

    Raises:
        ValueError: names the field and both values.
    """
    for config in configs:
        for field in own.space_fields:
            value, needed = getattr(config, field, None), getattr(own, field)
            if value != needed:
                raise ValueError(f"the state has {field} = {value!r}; this environment has {needed!r}")
