"""What is measured of predictions: AUC against a plain count of pairs, calibration and errors by hand."""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from routing_gym.quality.assessment import POOLED, assess, auc, calibration

Floats = NDArray[np.float64]

steps = st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0])
graded = st.lists(st.tuples(steps, st.sampled_from([0.1, 0.2, 0.3, 0.4])), min_size=2, max_size=40).map(
    lambda rows: np.array(rows).T
)


def count_pairs(scores: Floats, predicted: Floats) -> tuple[float, int]:
    """Count the pairs of different scores in the right order, ties half, and all of them."""
    right, pairs = 0.0, 0
    for i in range(len(scores)):
        for j in range(len(scores)):
            if scores[i] > scores[j]:
                pairs += 1
                right += 1.0 if predicted[i] > predicted[j] else 0.5 * (predicted[i] == predicted[j])
    return right, pairs


# The area under the ROC curve


@given(graded)
def test_auc_is_the_share_of_pairs_in_the_right_order(rows: Floats) -> None:
    scores, predicted = rows
    right, pairs = count_pairs(scores, predicted)
    found = auc(scores, predicted)
    if not pairs:
        assert math.isnan(found.value) and math.isnan(found.low) and not found.enough
        return
    assert found.value == pytest.approx(right / pairs)
    assert 0.0 <= found.low <= found.value <= found.high <= 1.0
    assert auc(scores, -predicted).value == pytest.approx(1.0 - right / pairs)
    assert auc(scores, 7.0 * predicted**3) == found, "only the order counts"


@given(st.lists(graded, min_size=1, max_size=3))
def test_columns_are_pooled_by_pairs_within_them(columns: list[Floats]) -> None:
    rows = max(column.shape[1] for column in columns)
    scores, predicted = np.full((2, rows, len(columns)), np.nan)
    for k, (score, guess) in enumerate(columns):
        scores[: len(score), k], predicted[: len(score), k] = score, guess
    right, pairs = np.sum([count_pairs(*column) for column in columns], axis=0)
    found = auc(scores, predicted)
    assert found.value == pytest.approx(right / pairs) if pairs else math.isnan(found.value)


@given(graded, st.integers(1, 4), st.randoms(use_true_random=False))
def test_only_rows_of_a_stratum_are_compared(rows: Floats, strata: int, random: Any) -> None:
    scores, predicted = rows
    stratum = np.array([random.randrange(strata) for _ in scores])
    right, pairs = np.sum(
        [count_pairs(scores[stratum == k], predicted[stratum == k]) for k in range(strata)], axis=0
    )
    found = auc(scores, predicted, None, stratum)
    assert found.value == pytest.approx(right / pairs) if pairs else math.isnan(found.value)


def test_auc_of_a_worked_case() -> None:
    # Positives .9, .4, .4; negatives .1, .4: right 1 + 1, then (1 + ½) twice, of 6 pairs.
    found = auc([1, 1, 1, 0, 0], [0.9, 0.4, 0.4, 0.1, 0.4])
    assert found.value == 5 / 6
    assert found.effective == 3 * 2 / (3 + 2)


def test_a_perfect_and_a_constant_predictor() -> None:
    scores = np.repeat([0.0, 0.5, 1.0], 20)
    assert auc(scores, scores)[:3] == (1.0, 1.0, 1.0)
    assert auc(scores, -scores)[:3] == (0.0, 0.0, 0.0)
    constant = auc(scores, np.full(60, 0.3))
    assert constant[:3] == (0.5, 0.5, 0.5) and constant.enough and not constant.ranks


def test_the_variance_is_delongs_up_to_its_divisors() -> None:
    rng = np.random.default_rng(5)
    positive, negative = rng.normal(0.5, 1.0, 300), rng.normal(0.0, 1.0, 500)
    wins = positive[:, None] > negative
    parts = (wins.mean(axis=1).var(ddof=1) / 300, wins.mean(axis=0).var(ddof=1) / 500)
    found = auc(np.repeat([1, 0], [300, 500]), np.r_[positive, negative])
    assert found.high - found.value == pytest.approx(1.96 * sum(parts) ** 0.5, rel=0.02)


@pytest.mark.parametrize(("rows", "shift"), [((10, 20), 0.0), ((10, 500), 0.0), ((60, 60), 0.75)])
def test_intervals_hold_the_true_area_19_times_of_20(rows: tuple[int, int], shift: float) -> None:
    true = 0.5 * (1.0 + math.erf(shift / 2.0))
    scores = np.repeat([1, 0], rows)
    rng = np.random.default_rng(1)
    found = [auc(scores, rng.normal(shift * scores)) for _ in range(1500)]
    held = np.mean([one.low <= true <= one.high for one in found])
    assert 0.935 < held < 0.975
    if shift == 0.0:
        assert np.mean([one.ranks for one in found]) < 0.035


def test_copies_of_a_prompt_are_one_observation() -> None:
    rng = np.random.default_rng(2)
    scores = rng.integers(0, 2, 80).astype(float)
    predicted = rng.random(80) + 0.3 * scores
    once = auc(scores, predicted)
    copies = np.tile(np.arange(80), 5)
    five = auc(np.tile(scores, 5), np.tile(predicted, 5), copies)
    assert five == pytest.approx(once)
    assert auc(np.tile(scores, 5), np.tile(predicted, 5)).high < once.high, "as if there were more"
    assert auc(scores, predicted, copies[79::-1]) == pytest.approx(once), "names do not matter"


def test_one_observation_says_nothing_of_the_interval() -> None:
    assert auc([0, 1], [0.1, 0.9], np.array([7, 7]))[:3] == (1.0, 0.0, 1.0)


def test_auc_takes_n_log_n() -> None:
    rng = np.random.default_rng(3)
    auc([0, 1], [0.1, 0.9])
    began = time.perf_counter()
    auc(rng.random(200_000), rng.random(200_000))
    assert time.perf_counter() - began < 5.0, "a count of 4·10¹⁰ pairs takes minutes"


# Calibration


def test_calibration_by_hand() -> None:
    predicted = np.array([0.9, 0.1, 0.6, 0.2])
    scores = np.array([1.0, 0.0, 0.0, 1.0])
    error, bins = calibration(scores, predicted, bins=2)
    assert [tuple(one) for one in bins] == [(2, pytest.approx(0.15), 0.5), (2, pytest.approx(0.75), 0.5)]
    assert error == pytest.approx(0.5 * 0.35 + 0.5 * 0.25)


def test_equal_predictions_are_never_parted() -> None:
    scores = np.array([0.0, 1.0] * 10)
    error, bins = calibration(scores, np.full(20, 0.5))
    assert error == 0.0 and [tuple(one) for one in bins] == [(20, 0.5, 0.5)]


@given(st.integers(1, 60), st.integers(1, 12))
def test_bins_hold_equally_many_distinct_predictions(rows: int, most: int) -> None:
    rng = np.random.default_rng(rows)
    predicted, scores = rng.permutation(rows) / rows, rng.random(rows)
    error, bins = calibration(scores, predicted, most)
    sizes = [one.rows for one in bins]
    assert sum(sizes) == rows and len(sizes) == min(rows, most)
    assert max(sizes) - min(sizes) <= 1
    assert [one.predicted for one in bins] == sorted(one.predicted for one in bins)
    assert 0.0 <= error <= 1.0


def test_nothing_recorded_has_no_calibration() -> None:
    error, bins = calibration(np.empty(0), np.empty(0))
    assert math.isnan(error) and bins == ()


# All of it


def table(rows: int = 240, seed: int = 0) -> tuple[Floats, Floats]:
    """Return scores of two models and predictions: good within task "a" for the first, noise for the rest."""
    rng = np.random.default_rng(seed)
    scores = (rng.random((rows, 2)) < 0.5).astype(float)
    predicted = rng.uniform(0.3, 0.7, (rows, 2))
    good = np.arange(rows) % 2 == 0
    predicted[good, 0] = np.where(scores[good, 0] == 1, 0.7, 0.3)
    return scores, predicted


GROUPS = ["a", "b"] * 120


def test_errors_stand_beside_those_of_always_the_mean() -> None:
    scores = np.array([[1.0, np.nan], [0.0, 1.0], [1.0, 0.0]])
    predicted = np.array([[0.8, np.nan], [0.4, 0.5], [0.6, 0.5]])
    found = assess(scores, predicted, [0.5, 0.25], ["x", "y"], ["", "", ""])
    x, y = found.models
    assert (x.model, x.rows, y.rows, found.pooled.rows) == ("x", 3, 2, 5)
    assert (x.mean_score, y.mean_score) == (pytest.approx(2 / 3), 0.5)
    assert (x.mae, x.mae_of_mean) == (pytest.approx((0.2 + 0.4 + 0.4) / 3), 0.5)
    assert (x.mse, x.mse_of_mean) == (pytest.approx((0.04 + 0.16 + 0.16) / 3), 0.25)
    assert x.gain.value == pytest.approx(0.13)
    assert (y.mse, y.mse_of_mean) == (0.25, pytest.approx((0.5625 + 0.0625) / 2))
    assert found.pooled.mse == pytest.approx((3 * x.mse + 2 * y.mse) / 5)
    assert found.pooled.mse_of_mean == pytest.approx((3 * 0.25 + 2 * y.mse_of_mean) / 5)
    assert x.gain.low < x.gain.value < x.gain.high
    assert found.groups == (), "a prompt of no task is in no group"


def test_signal_is_found_where_it_is_and_nowhere_else() -> None:
    scores, predicted = table()
    found = assess(scores, predicted, scores.mean(axis=0), ["x", "y"], GROUPS)
    assert [(one.group, one.model, one.rows) for one in found.groups] == [
        (group, model, rows) for group in "ab" for model, rows in (("x", 120), ("y", 120), (POOLED, 240))
    ]
    x, y = found.models
    assert x.auc.ranks and x.improves and x.gain.low > 0
    assert not y.auc.ranks and not y.improves
    assert [(one.group, one.model) for one in found.no_signal] == [("a", "y"), ("b", "x"), ("b", "y")]
    assert found.groups[0].auc.value == 1.0
    assert found.pooled.auc.value == auc(scores, predicted).value
    assert found.models[0].auc == auc(scores[:, 0], predicted[:, 0])


def test_what_only_tells_tasks_apart_ranks_nothing_within_them() -> None:
    rng = np.random.default_rng(4)
    hard = np.arange(600) % 2 == 0
    scores = (rng.random((600, 1)) < np.where(hard, 0.2, 0.8)[:, None]).astype(float)
    predicted = np.where(hard, 0.2, 0.8)[:, None]
    groups = ["hard" if one else "easy" for one in hard]
    [model] = assess(scores, predicted, [0.5], ["x"], groups).models
    assert model.auc.ranks and model.improves
    assert model.auc_within_tasks.value == 0.5 and not model.auc_within_tasks.ranks


def test_prompts_of_no_task_are_not_compared_within_one() -> None:
    scores, predicted = table()
    groups = [group if group == "a" else "" for group in GROUPS]
    found = assess(scores, predicted, [0.5, 0.5], ["x", "y"], groups)
    assert {one.group for one in found.groups} == {"a"}
    for figures, of_a in zip((*found.models, found.pooled), found.groups, strict=True):
        assert figures.auc_within_tasks == pytest.approx(of_a.auc)


def test_a_ranking_the_wrong_way_round_is_no_signal() -> None:
    scores, predicted = table()
    found = assess(scores, 1.0 - predicted, scores.mean(axis=0), ["x", "y"], GROUPS)
    assert found.models[0].auc.high < 0.5
    assert ("a", "x") in [(one.group, one.model) for one in found.no_signal]


def test_few_rows_are_not_called_anything() -> None:
    scores, predicted = table(12)
    found = assess(scores, predicted, scores.mean(axis=0), ["x", "y"], GROUPS[:12])
    assert not any(one.auc.enough for one in found.groups) and found.no_signal == ()


def test_a_perfect_ranking_of_a_few_prompts_is_not_trusted() -> None:
    for each, enough in ((19, False), (20, True)):  # n₁·n₀ / (n₁ + n₀) is 9.5, and 10
        found = auc(np.repeat([0.0, 1.0], each), np.repeat([0.0, 1.0], each))
        assert found[:3] == (1.0, 1.0, 1.0) and found.enough == found.ranks == enough


def test_the_gain_is_uncertain_as_prompts_are_few() -> None:
    scores, predicted = table()
    keys = [f"{k}" for k in range(240)]
    once = assess(scores, predicted, [0.5, 0.5], ["x", "y"], GROUPS, keys).models[0].gain
    twice = assess(
        np.tile(scores, (2, 1)), np.tile(predicted, (2, 1)), [0.5, 0.5], ["x", "y"], GROUPS * 2, keys * 2
    )
    assert twice.models[0].gain == pytest.approx(once), "copies add nothing"
    error = (scores[:, 0] - 0.5) ** 2 - (scores[:, 0] - predicted[:, 0]) ** 2
    assert once.high - once.value == pytest.approx(1.96 * error.std() / 240**0.5, rel=0.03)


def test_a_model_without_scores_has_no_figures() -> None:
    scores, predicted = table()
    scores[:, 1] = predicted[:, 1] = np.nan
    found = assess(scores, predicted, [0.5, np.nan], ["x", "y"], GROUPS)
    x, y = found.models
    assert y.rows == 0 and math.isnan(y.mse) and math.isnan(y.auc.value) and not y.improves
    assert (found.pooled.mse, found.pooled.auc.value) == (pytest.approx(x.mse), x.auc.value)


@pytest.mark.parametrize(
    ("scores", "predicted", "means", "words"),
    [
        ([[1.0]], [[0.5, 0.5]], [0.5], r"scores have shape \(1, 1\), predictions \(1, 2\), means \(1,\)"),
        ([[1.0]], [[0.5]], [0.5, 0.5], r"means \(2,\); they must be \(1, 1\), \(1, 1\) and \(1,\)"),
        ([[1.0]], [[math.nan]], [0.5], "row 0, x: predicted nan and a mean of 0.5; both must be finite"),
        ([[1.0]], [[0.5]], [math.inf], "row 0, x: predicted 0.5 and a mean of inf; both must be finite"),
    ],
)
def test_what_does_not_fit_is_refused(scores: list, predicted: list, means: list, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        assess(scores, predicted, means, ["x"], ["a"])
