"""Normalised scores and performance profiles: values worked by hand, and equality with plain loops."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from routing_gym.evaluation.scales import Profile, normalise, performance_profile

NAN = math.nan
CEILINGS = ("least_queue", "adaptive")
shares = st.floats(0, 1, allow_subnormal=False)


def table(rng: np.random.Generator, conditions: int = 5, seeds: int = 4) -> dict[str, np.ndarray]:
    """Scores of routers of which every documented one beats random by more than a point."""
    levels = {"random": 0.3, "least_queue": 0.5, "adaptive": 0.52, "trained": 0.7, "clairvoyant": 0.8}
    return {label: level + 0.1 * rng.random((conditions, seeds)) for label, level in levels.items()}


# Normalised scores


def test_normalised_scores_are_worked_by_hand() -> None:
    scores = {
        "random": [[0.25, 0.75], [0.0, 0.0]],
        "least_queue": [[0.75, 0.75], [0.0, 0.5]],
        "adaptive": [[1.0, 1.0], [0.0, 0.25]],
        "trained": [[1.5, 0.0], [0.5, 0.25]],
    }
    found = normalise(scores, "random", CEILINGS, None, 1.0, 0.01)
    assert found.kept == [0, 1] and not found.left_out
    # First condition: 0.5 is 0 and adaptive's 1 is 1; second: 0 is 0 and least_queue's 0.25 is 1.
    assert {label: rows.tolist() for label, rows in found.scores.items()} == {
        "random": [[-0.5, 0.5], [0.0, 0.0]],
        "least_queue": [[0.5, 0.5], [0.0, 2.0]],
        "adaptive": [[1.0, 1.0], [0.0, 1.0]],
        "trained": [[2.0, -1.0], [2.0, 1.0]],
    }


@given(st.integers(0, 2**32 - 1), st.integers(1, 4), st.integers(1, 4))
def test_random_is_zero_and_the_best_documented_router_is_one(seed: int, conditions: int, seeds: int) -> None:
    scores = table(np.random.default_rng(seed), conditions, seeds)
    found = normalise(scores, "random", CEILINGS, "clairvoyant", 1.0, 0.01)
    assert found.kept == list(range(conditions))
    np.testing.assert_allclose(found.scores["random"].mean(axis=1), 0.0, atol=1e-12)
    best = np.max([found.scores[label].mean(axis=1) for label in CEILINGS], axis=0)
    np.testing.assert_allclose(best, 1.0, atol=1e-12)
    assert (found.scores["clairvoyant"].mean(axis=1) > 1.0).all()


def test_less_is_better_where_the_sign_says_so() -> None:
    scores = table(np.random.default_rng(1))
    costs = {label: 3.0 - rows for label, rows in scores.items()}
    more = normalise(scores, "random", CEILINGS, "clairvoyant", 1.0, 0.01)
    less = normalise(costs, "random", CEILINGS, "clairvoyant", -1.0, 0.01)
    assert more.kept == less.kept
    for label, rows in more.scores.items():
        np.testing.assert_allclose(less.scores[label], rows, atol=1e-9)


def test_conditions_do_not_depend_on_each_other() -> None:
    scores = table(np.random.default_rng(2))
    whole = normalise(scores, "random", CEILINGS, None, 1.0, 0.01)
    for k in range(5):
        alone = normalise(
            {label: rows[k : k + 1] for label, rows in scores.items()}, "random", CEILINGS, None, 1.0, 0.01
        )
        for label, rows in alone.scores.items():
            assert rows.tolist() == whole.scores[label][k : k + 1].tolist()


def test_what_cannot_be_scaled_is_listed_with_its_reason() -> None:
    scores = {
        "random": np.array([[0.5], [0.5], [0.5], [0.5], [0.495]]),
        "least_queue": np.array([[0.75], [0.75], [0.25], [NAN], [0.5]]),
        "adaptive": np.array([[0.5], [0.5], [0.25], [0.75], [0.0]]),
        "clairvoyant": np.array([[1.0], [0.7525], [1.0], [1.0], [0.75]]),
    }
    found = normalise(scores, "random", CEILINGS, "clairvoyant", 1.0, 0.01)
    assert found.kept == [0]
    assert found.scores["clairvoyant"].tolist() == [[2.0]]
    assert found.left_out == {
        1: "clairvoyant is 0.0025 better than least_queue, the best documented router; "
        "0.01 is the least to gain",
        2: "least_queue, the best documented router, is 0.2500 worse than random; "
        "0.01 is the least to scale by",
        3: "least_queue has no finite score on 1 of 1 seeds",
        4: "least_queue, the best documented router, is 0.0050 better than random; "
        "0.01 is the least to scale by",
    }
    # Without the yardstick's rule the second condition is scaled as the others are.
    assert normalise(scores, "random", CEILINGS, None, 1.0, 0.01).kept == [0, 1]


def test_a_yardstick_below_the_best_documented_router_leaves_its_condition_out() -> None:
    scores = {"random": [[0.0]], "adaptive": [[0.5]], "clairvoyant": [[0.25]]}
    found = normalise(scores, "random", ["adaptive"], "clairvoyant", 1.0, 0.01)
    assert found.kept == [] and "0.2500 worse than adaptive" in found.left_out[0]
    assert {label: rows.shape for label, rows in found.scores.items()} == dict.fromkeys(scores, (0, 1))


@pytest.mark.parametrize("label", ["random", "adaptive", "trained", "clairvoyant"])
@pytest.mark.parametrize("value", [NAN, math.inf])
def test_a_condition_with_an_undefined_score_is_left_out(label: str, value: float) -> None:
    scores = table(np.random.default_rng(3))
    scores[label][2, 1] = value
    found = normalise(scores, "random", CEILINGS, "clairvoyant", 1.0, 0.01)
    assert found.kept == [0, 1, 3, 4]
    assert found.left_out == {2: f"{label} has no finite score on 1 of 4 seeds"}


def test_what_is_given_is_left_as_it_is() -> None:
    scores = table(np.random.default_rng(4))
    before = {label: rows.copy() for label, rows in scores.items()}
    normalise(scores, "random", CEILINGS, None, -1.0, 0.01)
    for label, rows in before.items():
        assert (scores[label] == rows).all()


@pytest.mark.parametrize(
    ("floor", "ceilings", "yardstick", "message"),
    [
        ("chance", CEILINGS, None, "chance has no scores: must be of random, least_queue"),
        ("random", ["latency_aware"], None, "latency_aware has no scores"),
        ("random", CEILINGS, "bound", "bound has no scores"),
        ("random", [], None, "ceilings is empty"),
    ],
)
def test_labels_without_scores_are_refused(
    floor: str, ceilings: list[str], yardstick: str | None, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        normalise(table(np.random.default_rng(5)), floor, ceilings, yardstick, 1.0, 0.01)


def test_shapes_that_differ_are_refused() -> None:
    with pytest.raises(ValueError, match=r"scores of adaptive have shape \(2, 1\), of random \(1, 2\)"):
        normalise(
            {"random": [[1.0, 2.0]], "adaptive": [[1.0], [2.0]]}, "random", ["adaptive"], None, 1.0, 0.01
        )


# Performance profiles


@settings(max_examples=50)
@given(
    arrays(np.float64, (3, 4), elements=st.sampled_from([0.0, 0.25, 0.5, 1.0])),
    st.lists(shares | st.sampled_from([0.0, 0.25, 0.5, 1.0]), min_size=1, max_size=6),
)
def test_a_profile_counts_the_runs_above_each_threshold(scores: np.ndarray, thresholds: list[float]) -> None:
    found = performance_profile(scores, thresholds, resamples=20)
    runs = scores.ravel().tolist()
    plain = [sum(run > threshold for run in runs) / len(runs) for threshold in thresholds]
    np.testing.assert_allclose(found.share, plain, atol=1e-12)


def test_a_profile_falls_from_one_to_zero() -> None:
    scores = np.random.default_rng(11).normal(size=(4, 9))
    thresholds = np.linspace(scores.min() - 0.1, scores.max() + 0.1, 60)
    for line in performance_profile(scores, thresholds, 200):
        assert line[0] == pytest.approx(1.0) and line[-1] == 0.0
        assert (np.diff(line) <= 1e-12).all()


def test_the_band_of_a_profile_comes_from_resampled_seeds_of_each_condition() -> None:
    rng = np.random.default_rng(12)
    scores = rng.normal(size=(3, 8)) + np.array([0.0, 1.0, 5.0])[:, None]
    thresholds = [0.0, 0.7, 3.0]
    draws = []
    for _ in range(4000):
        picked = np.array([rng.choice(runs, 8) for runs in scores])
        draws.append([(picked > threshold).mean() for threshold in thresholds])
    found = performance_profile(scores, thresholds)
    # A share of 24 runs moves in steps of 1/24.
    np.testing.assert_allclose([found.low, found.high], np.percentile(draws, [2.5, 97.5], axis=0), atol=0.042)
    # Between conditions that are all above or all below there is nothing to resample.
    assert found.low[2] == found.share[2] == found.high[2] == pytest.approx(1 / 3)


def test_a_profile_of_one_seed_has_no_band() -> None:
    found = performance_profile([[0.2], [0.8]], [0.0, 0.5])
    assert [line.tolist() for line in found] == [[1.0, 0.5], [0.0, 0.0], [1.0, 1.0]]
    assert isinstance(found, Profile)


def test_the_band_of_a_profile_covers_the_true_share() -> None:
    rng = np.random.default_rng(13)
    # Of uniform runs on (0, 1) and (0, 2), 0.6 and 0.8 are above 0.4.
    covered = 0
    for _ in range(400):
        found = performance_profile(rng.random((2, 24)) * [[1.0], [2.0]], [0.4], resamples=400)
        covered += found.low[0] - 1e-12 <= 0.7 <= found.high[0] + 1e-12
    assert 0.90 <= covered / 400 <= 0.98


def test_profiles_are_repeatable() -> None:
    scores = np.random.default_rng(14).random((3, 5))
    first, again = performance_profile(scores, [0.5]), performance_profile(scores, [0.5])
    assert [line.tolist() for line in first] == [line.tolist() for line in again]


@pytest.mark.parametrize("shape", [(0, 3), (3, 0)])
def test_a_profile_needs_a_run(shape: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="must hold a run"):
        performance_profile(np.empty(shape), [0.5])
