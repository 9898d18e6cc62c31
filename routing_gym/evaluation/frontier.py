"""Cost against quality: the non-decreasing convex hull and AIQ of RouterBench (Hu et al., 2024, section 3).

Two routers can be mixed: each request goes to one of them by chance, and in expectation cost and quality lie
on the line between the two. What a router can reach by mixing its settings is their hull.
Source: arXiv 2403.12031.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]


def non_decreasing_hull(cost: ArrayLike, quality: ArrayLike) -> Floats:
    """Return the corners of the least concave function above the points that never falls (Hu et al., 2024).

    It begins at the least cost and ends at the largest. Beyond the best point it is level: paying more need
    not make anything worse.

    Args:
        cost: (n,) of each setting, n ≥ 1, in any unit.
        quality: (n,) of each, more is better.

    Returns:
        (k, 2) cost, strictly rising, and quality.

    Raises:
        ValueError: the shapes differ, there is no point, or one is not finite.
    """
    x, y = np.asarray(cost, np.float64), np.asarray(quality, np.float64)
    if x.shape != y.shape or x.ndim != 1 or not len(x):
        raise ValueError(f"cost has shape {x.shape}, quality {y.shape}: both must be (n,), n ≥ 1")
    if not (np.isfinite(x).all() and np.isfinite(y).all()):
        raise ValueError("cost and quality must be finite")
    order = np.lexsort((-y, x))
    x, y = x[order], np.maximum.accumulate(y[order])
    hull: list[tuple[float, float]] = []
    for point in zip(x.tolist(), y.tolist(), strict=True):
        if hull and point[0] == hull[-1][0]:
            continue
        while len(hull) > 1 and not _turns_down(hull[-2], hull[-1], point):
            hull.pop()
        hull.append(point)
    return np.array(hull)


def _turns_down(first: tuple[float, float], corner: tuple[float, float], last: tuple[float, float]) -> bool:
    before = (corner[1] - first[1]) * (last[0] - corner[0])
    return before > (last[1] - corner[1]) * (corner[0] - first[0])


def hull_quality(hull: ArrayLike, at: ArrayLike) -> Floats:
    """Return the quality of mixtures along a hull, linear between its corners.

    Args:
        hull: (k, 2) cost, strictly rising, and quality.
        at: costs, of any shape.

    Returns:
        Of that shape: NaN below the least cost, where there is nothing to mix; level beyond the largest.
    """
    corners = np.asarray(hull, np.float64)
    return np.asarray(
        np.interp(np.asarray(at, np.float64), corners[:, 0], corners[:, 1], left=np.nan), np.float64
    )


def aiq(hull: ArrayLike, low: float, high: float) -> float:
    """Return the average improvement in quality, AIQ (Hu et al., 2024, section 3).

    AIQ = 1/(high - low) · ∫ q(c) dc from low to high, q being the hull's quality at cost c: its mean quality
    over the range. Values compare only where the ranges are the same.

    Args:
        hull: (k, 2) cost, strictly rising, and quality.
        low: least cost of the range, not below the hull's.
        high: largest; beyond the hull's it is level. Where it equals `low`, the quality there.

    Raises:
        ValueError: the range begins below the hull or ends before it begins.
    """
    corners = np.asarray(hull, np.float64)
    least = float(corners[0, 0])
    if not least <= low <= high < np.inf:
        raise ValueError(
            f"AIQ from {low:g} to {high:g}: must be a rising range from {least:g}, the hull's least"
        )
    if low == high:
        return float(hull_quality(corners, low))
    inside = corners[(corners[:, 0] > low) & (corners[:, 0] < high), 0]
    costs = np.array([low, *inside, high])
    qualities = hull_quality(corners, costs)
    area = (np.diff(costs) * (qualities[1:] + qualities[:-1]) / 2.0).sum()
    return float(area / (high - low))
