"""Choosing among the candidates of a mask."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from routing_baselines.choice import lowest, nth_eligible


@given(st.lists(st.booleans(), min_size=1, max_size=9).filter(any), st.integers(0, 8))
def test_nth_eligible(mask: list[bool], n: int) -> None:
    n %= sum(mask)
    assert nth_eligible(np.array(mask), np.array(n)) == [i for i, each in enumerate(mask) if each][n]


def test_lowest_is_the_first_of_the_lowest_eligible() -> None:
    score = np.array([[1.0, 0.0, 0.0], [5.0, 7.0, 6.0], [-1.0, 3.0, 3.0]])
    eligible = np.array([[True, True, True], [False, True, True], [False, True, True]])
    assert lowest(score, eligible).tolist() == [1, 2, 1]
