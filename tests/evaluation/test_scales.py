"""Normalised scores and performance profiles: values worked by hand, and equality with plain loops."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from routing_gym.evaluation.scales import (
    Normalised,
    Profile,
    normalise,
    normalised_iqm,
    performance_profile,
)
from routing_gym.evaluation.statistics import Estimate, interquartile_mean

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


def test_a_gap_of_exactly_the_least_is_enough() -> None:
    scores = {"random": [[0.0]], "adaptive": [[0.5]], "clairvoyant": [[0.75]]}
    assert normalise(scores, "random", ["adaptive"], "clairvoyant", 1.0, 0.25).kept == [0]
    assert normalise(scores, "random", ["adaptive"], "clairvoyant", 1.0, 0.2501).kept == []
    assert normalise(scores, "random", ["adaptive"], None, 1.0, 0.5).kept == [0]


# Intervals of what is normalised


def fixed(scores: np.ndarray) -> Normalised:
    """Return scores of a router between ends of the scale that luck does not move."""
    ends = {"zero": np.zeros_like(scores), "one": np.ones_like(scores)}
    return Normalised({"mine": scores, **ends}, list(range(len(scores))), {}, "zero", ("one",))


@settings(max_examples=50)
@given(
    arrays(np.float64, (3, 4), elements=st.sampled_from([0.0, 0.25, 0.5, 1.0])),
    st.lists(shares | st.sampled_from([0.0, 0.25, 0.5, 1.0]), min_size=1, max_size=6),
)
def test_a_profile_counts_the_runs_above_each_threshold(scores: np.ndarray, thresholds: list[float]) -> None:
    found = performance_profile(fixed(scores), "mine", thresholds, resamples=20)
    runs = scores.ravel().tolist()
    plain = [sum(run > threshold for run in runs) / len(runs) for threshold in thresholds]
    np.testing.assert_allclose(found.share, plain, atol=1e-12)


def test_a_profile_falls_from_one_to_zero() -> None:
    scores = np.random.default_rng(11).normal(size=(4, 9))
    thresholds = np.linspace(scores.min() - 0.1, scores.max() + 0.1, 60)
    for line in performance_profile(fixed(scores), "mine", thresholds, 200):
        assert line[0] == pytest.approx(1.0) and line[-1] == 0.0
        assert (np.diff(line) <= 1e-12).all()


def test_a_bootstrap_draws_seeds_with_all_their_conditions_and_scales_anew() -> None:
    """Against the same written plainly, of a scale whose ends move with the seeds that are drawn."""
    rng = np.random.default_rng(12)
    luck = rng.normal(size=8)
    scores = {
        label: 0.3 * luck + 0.1 * rng.normal(size=(3, 8)) + mean
        for label, mean in (("zero", 0.0), ("one", 1.0), ("other", 0.9), ("mine", 1.4))
    }
    found = normalise(scores, "zero", ["one", "other"], None, 1.0)
    thresholds = [0.8, 1.2, 1.5]
    shares, middles = [], []
    for _ in range(4000):
        seeds = rng.integers(8, size=8)
        drawn = {label: runs[:, seeds] for label, runs in scores.items()}
        zero = drawn["zero"].mean(axis=1, keepdims=True)
        one = np.maximum(drawn["one"].mean(axis=1), drawn["other"].mean(axis=1))[:, None]
        mine = (drawn["mine"] - zero) / (one - zero)
        shares.append([(mine > threshold).mean() for threshold in thresholds])
        middles.append(interquartile_mean(mine))
    profile, iqm = performance_profile(found, "mine", thresholds), normalised_iqm(found, "mine")
    # A share of 24 runs moves in steps of 1/24.
    np.testing.assert_allclose(
        [profile.low, profile.high], np.percentile(shares, [2.5, 97.5], axis=0), atol=0.042
    )
    np.testing.assert_allclose([iqm.low, iqm.high], np.percentile(middles, [2.5, 97.5]), atol=0.02)
    assert iqm.value == interquartile_mean(found.scores["mine"])


def test_one_seed_has_no_band() -> None:
    found = fixed(np.array([[0.2], [0.8]]))
    profile = performance_profile(found, "mine", [0.0, 0.5])
    assert [line.tolist() for line in profile] == [[1.0, 0.5], [0.0, 0.0], [1.0, 1.0]]
    assert isinstance(profile, Profile)
    assert normalised_iqm(found, "mine") == Estimate(0.5, -np.inf, np.inf)


def test_intervals_cover_the_truth_though_conditions_and_routers_share_their_luck() -> None:
    """As seeds do: the same arrivals meet every router, and their like every condition."""
    rng = np.random.default_rng(13)
    offsets = rng.normal(0.0, 0.2, size=(6, 1))

    def play(seeds: int) -> dict[str, np.ndarray]:
        luck = 0.3 * rng.normal(size=seeds)
        return {
            label: offsets + mean + luck + 0.1 * rng.normal(size=(6, seeds))
            for label, mean in (("zero", 0.0), ("one", 1.0), ("mine", 1.4))
        }

    truth = normalise(play(100_000), "zero", ["one"], None, 1.0)
    middle = interquartile_mean(truth.scores["mine"])
    share = (truth.scores["mine"] > 1.5).mean()
    covered = np.zeros(2)
    for _ in range(300):
        found = normalise(play(24), "zero", ["one"], None, 1.0)
        iqm = normalised_iqm(found, "mine", 300)
        profile = performance_profile(found, "mine", [1.5], 300)
        covered += [iqm.low <= middle <= iqm.high, profile.low[0] <= share <= profile.high[0]]
    assert (covered >= 0.88 * 300).all() and covered[0] <= 0.98 * 300


def test_intervals_are_repeatable() -> None:
    found = fixed(np.random.default_rng(14).random((3, 5)))
    first, again = (performance_profile(found, "mine", [0.5]) for _ in range(2))
    assert [line.tolist() for line in first] == [line.tolist() for line in again]
    assert normalised_iqm(found, "mine") == normalised_iqm(found, "mine")
