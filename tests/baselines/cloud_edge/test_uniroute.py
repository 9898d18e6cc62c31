"""UniRoute, worked by hand and against its formula."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing_baselines.cloud_edge.uniroute import UniRoute
from tests.cloud_edge.observations import Observation, batches, make_observation, pairs, row

ERRORS = [[0.25, 0.375, 0.5], [0.75, 0.625, 0.25], [0.25, 0.25, 0.25]]
PRICES = [20.0, 2.0, 1.0]
SHAPES = st.sampled_from([(), (1,), (2, 2)])


def choices(observation: Observation, price_weight: float | None = None) -> list[int]:
    return UniRoute(price_weight).predict(observation)[0].tolist()


@pytest.mark.parametrize(
    ("price_weight", "expected"),
    # Error + λ · price, by request.
    [
        (0.0, [0, 2, 0]),  # the errors alone; a tie goes to the lowest index
        (0.005, [0, 2, 2]),  # .35 .385 .505, .85 .635 .255, .35 .26 .255
        (0.05, [1, 2, 2]),  # 1.25 .475 .55, 1.75 .725 .30, 1.25 .35 .30
        (0.2, [2, 2, 2]),  # 4.25 .775 .70, 4.75 1.025 .45, 4.25 .65 .45
    ],
)
def test_errors_and_prices_are_weighed(price_weight: float, expected: list[int]) -> None:
    batch = make_observation(3, 3, 5, cluster_error=ERRORS, token_price=PRICES)
    assert choices(batch, price_weight) == [*expected, 0, 0]


def test_the_shipped_weight_is_the_source_s() -> None:
    assert UniRoute().price_weight == 0.05


def test_only_legal_destinations_count() -> None:
    legal = [[1, 0, 1], [1, 1, 0], [1, 0, 0]]
    assert choices(make_observation(3, 3, legal=legal, cluster_error=ERRORS, token_price=PRICES)) == [2, 1, 0]


def test_neither_loads_nor_predictions_of_the_single_request_count() -> None:
    batch = make_observation(3, 3, cluster_error=ERRORS, token_price=PRICES)
    other = make_observation(
        3,
        3,
        cluster_error=ERRORS,
        token_price=PRICES,
        quality=[1, 0, 0],
        cost=[0, 1, 1],
        energy=[0, 9, 9],
        infer_s=[0, 9, 9],
        backlog_s=[0, 9, 9],
        outstanding=[0, 9, 9],
        weights=[1, 0, 0, 0],
    )
    assert choices(batch) == choices(other)


@given(batches(SHAPES), st.floats(0, 1))
def test_it_minimises_its_formula(drawn: tuple[Observation, tuple[int, ...]], price_weight: float) -> None:
    batch, shape = drawn
    actions = UniRoute(price_weight).predict(batch)[0]
    for index in np.ndindex(shape):
        one = row(batch, index)
        for r in range(int(one["active"].sum())):
            scores = {
                d: float(pairs(one, "cluster_error")[r, d]) + price_weight * float(one["token_price"][d])
                for d in np.flatnonzero(pairs(one, "legal")[r]).tolist()
            }
            assert actions[index][r] == min(scores, key=lambda d: (scores[d], d))


def test_a_negative_weight_is_refused() -> None:
    with pytest.raises(ValueError, match=r"price_weight = -0\.1: must be a number, and must not"):
        UniRoute(-0.1)
