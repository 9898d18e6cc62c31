"""Percentiles of values of which some are infinite."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def nearest_rank(ordered: NDArray[np.float64], percent: int, count: int) -> float | None:
    """Return the nearest-rank percentile of `count` values, of which `ordered` holds all finite ones.

    The index is ceil(percent/100 · count) - 1; the values not in `ordered` are infinite. None of 0 values.
    """
    if count == 0:
        return None
    index = -(-percent * count // 100) - 1  # whole numbers: no rounding can shift the rank
    return float(ordered[index]) if index < len(ordered) else float("inf")
