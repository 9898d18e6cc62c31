"""Flat observation buffers: how kernels lay fields out, and how they become a dictionary."""

from __future__ import annotations

from collections.abc import Container, Mapping
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from routing_gym.common.jit import njit

Observation = dict[str, NDArray[np.float32]]


@njit
def block_size(rows: int, size: int) -> int:
    """Return how many numbers a field of `size` per row takes in a buffer of `rows`.

    Blocks of many rows are a whole number of cache lines and one line more: without it, blocks of 1024 rows
    lie a multiple of 4096 bytes apart, fall on the same few places of the cache, and cost twice the time.
    """
    numbers = rows * size
    return numbers if rows == 1 else (numbers + 15) // 16 * 16 + 16


class BufferLayout:
    """Turns a kernel's flat float32 buffer into an observation, without copying.

    A block per field, in order, each of `block_size` numbers that start with the field's (rows, size).
    """

    def __init__(self, rows: int, sizes: Mapping[str, int], hidden: Container[str] = ()) -> None:
        """Lay out fields of the given sizes per row; `hidden` ones are written but not shown."""
        self.names = tuple(name for name in sizes if name not in hidden)
        self._shapes = tuple((rows, sizes[name]) for name in self.names)
        slices, first = [], 0
        for name, size in sizes.items():
            if name not in hidden:
                slices.append(slice(first, first + rows * size))
            first += int(block_size(rows, size))
        self.size = first
        # One call that takes all slices is the cheapest way to many views.
        self._views = itemgetter(*slices)

    def single(self, buffer: NDArray[np.float32]) -> Observation:
        """Return the observation of the one row that `buffer` holds."""
        return dict(zip(self.names, self._views(buffer)))  # noqa: B905 (strict costs a tenth of a step)

    def batch(self, buffer: NDArray[Any]) -> Observation:
        """Return the observations of all rows, each field with a leading axis of rows."""
        views = zip(self.names, self._views(buffer), self._shapes, strict=True)
        return {name: view.reshape(shape) for name, view, shape in views}
