"""Choosing one of the candidates that a mask names, for any number of rows at once."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Bools = NDArray[np.bool_]


def nth_eligible(eligible: Bools, n: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the n-th eligible candidate (…,) of (…, N), n counted from 0 and below their number."""
    position = np.cumsum(eligible, axis=-1) - 1
    return (eligible & (position == n[..., None])).argmax(axis=-1)


def lowest(score: NDArray[np.float64], eligible: Bools) -> NDArray[np.int64]:
    """Return the eligible candidate of (…, N) with the lowest score (…,); ties go to the lowest index."""
    return np.where(eligible, score, np.inf).argmin(axis=-1)
