"""Squashing, and taking flat features apart."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing_gym.common.features import Features, flatten, squash, unflatten


def test_squash_by_hand() -> None:
    values = np.array([0.0, 1.0, 3.0, -1.0, 0.0], np.float32)
    units = np.array([1.0, 1.0, 1.0, 1.0, 0.0], np.float32)
    assert squash(values, units).tolist() == [0.0, 0.5, 0.75, -0.5, 0.0]


numbers = st.floats(-1e9, 1e9, width=32)


@given(numbers, numbers, st.floats(0, 1e9, width=32))
def test_squash_is_bounded_and_rises(a: float, b: float, unit: float) -> None:
    low, high = squash(np.array(sorted((a, b)), np.float32), np.float32(unit))
    assert -1 <= low <= high <= 1


def test_overloads_stay_apart() -> None:
    hopeless = squash(np.array([10.0, 20.0, 40.0], np.float32), np.float32(1.0))
    assert np.diff(hopeless).min() > 0.02


@given(st.sampled_from([(), (4,), (2, 3), (0,)]), st.integers(1, 4), st.integers(1, 3), st.integers(0, 3))
def test_flat_features_come_apart_again(lead: tuple[int, ...], n: int, f: int, g: int) -> None:
    rng = np.random.default_rng(0)
    whole = Features(rng.random((*lead, n, f)), rng.random((*lead, g)))
    flat = flatten(whole)
    assert flat.shape == (*lead, g + n * f)
    parts = unflatten(flat, n, f, g)
    np.testing.assert_array_equal(parts.elements, whole.elements)
    np.testing.assert_array_equal(parts.context, whole.context)


def test_the_order_of_flat_features() -> None:
    """The context first, then element by element."""
    features = Features(np.array([[3.0, 4.0], [5.0, 6.0]]), np.array([1.0, 2.0]))
    assert flatten(features).tolist() == [1, 2, 3, 4, 5, 6]


def test_another_width_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"shape \(5, 9\); the last axis must be 8: 2 of the context and 3 of"
    ):
        unflatten(np.zeros((5, 9)), 2, 3, 2)
