"""Features of the cluster: what they are worth by hand, and what they must not depend on."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing_gym.cluster.features import (
    CONTEXT_FEATURES,
    REPLICA_FEATURES,
    REWARD_FEATURES,
    cluster_features,
    reward_features,
)
from routing_gym.common.features import Features
from routing_gym.rewards import CLUSTER_TERMS, cluster_weights
from tests.cluster.cases import OWN, REPORTED
from tests.environments import family, valid_actions

ID = "routing_gym/InferenceCluster-v0"
DEMAND = (1.5, 0.012, 0.085)
TIMES = ("service_ewma", "oldest_age", "since_completion", "arrival_gap", "deadline")
PER_REPLICA = sorted(OWN - {"request", "arrival_gap", "deadline"})

Observation = dict[str, np.ndarray]


def hand_made(**fields: Any) -> Observation:
    """Return an observation of two replicas, one of them idle and twice as slow."""
    values: dict[str, Any] = {
        "outstanding": [2, 0],
        "outstanding_prompt_tokens": [400, 0],
        "outstanding_predicted_tokens": [100, 0],
        "service_ewma": [11, 22],
        "speed_ewma": [1, 2],
        "reward_ewma": [0.8, 0.6],
        "completed": [3, 0],
        "oldest_age": [7, 0],
        "since_completion": [4, 90],
        "healthy": [1, 1],
        "eligible": [1, 1],
        "request": [100, 20, 5],
        "arrival_gap": [10],
        "deadline": [50],
    }
    return {name: np.array(value, np.float32) for name, value in {**values, **fields}.items()}


def named(features: Features) -> dict[str, np.ndarray]:
    """Return features by name: those of replicas (…, N), those of the context (…,)."""
    assert not set(REPLICA_FEATURES) & set(CONTEXT_FEATURES)
    replicas = zip(REPLICA_FEATURES, np.moveaxis(features.elements, -1, 0), strict=True)
    return dict(replicas) | dict(zip(CONTEXT_FEATURES, np.moveaxis(features.context, -1, 0), strict=True))


def assert_close(a: Features, b: Features) -> None:
    for mine, other in zip(a, b, strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-5, atol=2e-6)


def test_by_hand() -> None:
    """Demand (1, .01, .1): the request's is 4 ms; outstanding are 16 on replica 0, of which 4 are served."""
    got = named(cluster_features(hand_made(), (1.0, 0.01, 0.1)))

    def squashed(*values: float) -> Any:
        return pytest.approx([value / (abs(value) + 50) for value in values], rel=1e-5)

    assert got["backlog"] == squashed(12, 0)
    assert got["uncertain"] == pytest.approx([10 / 16, 0])
    assert got["own"] == squashed(4, 8)
    assert got["finish"] == squashed(16, 8)
    assert got["slack"] == squashed(50 - 5 - 16, 50 - 5 - 8)
    assert got["behind_best"] == squashed(8, 0)
    assert got["before_worst"] == squashed(0, 8)
    assert got["service"] == squashed(11, 22)
    assert got["elapsed"] == squashed(4, 0)
    assert got["oldest"] == squashed(7, 0)
    # 29 ms to spare on 16 of three requests; 37 on 8 of one
    assert got["certainty"] == pytest.approx([29 * 3**0.5 / (29 * 3**0.5 + 16), 37 / 45])
    assert got["overdue"] == pytest.approx([4 / (4 + 8), 0])
    assert got["outstanding"] == pytest.approx([2 / 3, 0])
    assert got["queue"] == pytest.approx([2 / 52, 0])
    assert got["unproven"] == pytest.approx([1 / 4, 1])
    assert got["slowness"] == pytest.approx([1 / (1 + 4 / 3), 2 / (2 + 4 / 3)])
    assert got["eligible"].tolist() == got["healthy"].tolist() == [1, 1]

    assert got["deadline"] == 0
    assert got["demand"] == pytest.approx(4 / 54)
    assert got["uncertain_demand"] == 0.5
    assert got["size"] == pytest.approx(4 / 15)  # completed requests took 11 ms on both
    assert got["size_beside_queued"] == pytest.approx(4 / 12)
    assert got["age"] == pytest.approx(5 / 55)
    assert got["best_slack"] == pytest.approx(37 / 87)
    assert got["best_certainty"] == got["certainty"].max()
    assert got["load"] == pytest.approx(11 / (11 + 15))  # 10 ms at speeds 1 and 1/2
    assert got["capacity_per_arrival"] == pytest.approx(15 / 65)
    assert got["drain"] == pytest.approx(12 / (12 + 1.5 * 50))
    assert got["eligible_share"] == 1


def test_replicas_that_cannot_take_it() -> None:
    """One that has failed adds no capacity; one that is not eligible is not the best, nor the worst."""
    seen = hand_made(healthy=[1, 0], eligible=[1, 0])
    got = named(cluster_features(seen, (1.0, 0.01, 0.1)))
    assert got["behind_best"] == pytest.approx([0, -8 / 58])
    assert got["before_worst"] == pytest.approx([0, 8 / 58])
    assert got["best_slack"] == pytest.approx(29 / 79)
    assert got["best_certainty"] == got["certainty"][0]
    assert got["load"] == pytest.approx(11 / 21)
    assert got["eligible_share"] == 0.5
    nowhere = named(cluster_features(hand_made(eligible=[0, 0]), DEMAND))
    assert nowhere["best_slack"] < -0.99 and nowhere["best_certainty"] == -1


def test_work_is_drained_at_each_replicas_speed() -> None:
    """What waits at a replica twice as slow takes it twice as long, and the cluster no longer."""
    busy = {name: hand_made()[name] for name in ("outstanding", "outstanding_prompt_tokens")}
    moved = hand_made(oldest_age=[0, 0], **{name: value[::-1] for name, value in busy.items()})
    got = named(cluster_features(moved, (1.0, 0.01, 0.1)))
    assert got["backlog"] == pytest.approx([10 / 60, 12 / 62])  # 100 tokens, and 2 requests of 200 each
    assert got["drain"] == pytest.approx(16 / (16 + 75))


def test_unknown_arrivals_and_the_deadline() -> None:
    """Before the second arrival there is no load; a deadline twice the shipped one is told from it."""
    assert named(cluster_features(hand_made(arrival_gap=[0]), DEMAND))["load"] == 0
    assert named(cluster_features(hand_made(deadline=[100]), DEMAND))["deadline"] == pytest.approx(0.6)
    assert named(cluster_features(hand_made(deadline=[25]), DEMAND))["deadline"] == pytest.approx(-0.6)


positive = st.floats(0, 1e6, width=32)


@st.composite
def observations(draw: st.DrawFn) -> Observation:
    """Draw observations of anything that is not negative, one to five replicas, up to two leading axes."""
    lead = draw(st.sampled_from([(), (3,), (2, 2), (0,)]))
    replicas = draw(st.integers(1, 5))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    kinds = np.array([0.0, 1e-3, 1.0, 30.0, 1e6])

    def drawn(width: int) -> np.ndarray:
        shape = (*lead, width)
        return (rng.choice(kinds, shape) * rng.random(shape)).astype(np.float32)

    seen = {name: drawn(replicas) for name in PER_REPLICA}
    for name in ("healthy", "eligible"):
        seen[name] = rng.integers(2, size=(*lead, replicas)).astype(np.float32)
    return seen | {"request": drawn(3), "arrival_gap": drawn(1), "deadline": drawn(1)}


@given(observations())
def test_bounded_whatever_is_observed(seen: Observation) -> None:
    features = cluster_features(seen, DEMAND)
    lead = seen["deadline"].shape[:-1]
    replicas = seen["healthy"].shape[-1]
    assert features.elements.shape == (*lead, replicas, len(REPLICA_FEATURES))
    assert features.context.shape == (*lead, len(CONTEXT_FEATURES))
    for part in features:
        assert part.dtype == np.float32
        assert (np.abs(part) <= 1).all()


@given(observations(), st.randoms())
def test_permuting_replicas_permutes_elements(seen: Observation, random: Any) -> None:
    """And changes nothing else."""
    order = list(range(seen["healthy"].shape[-1]))
    random.shuffle(order)
    moved = {name: value[..., order] if name in PER_REPLICA else value for name, value in seen.items()}
    before, after = cluster_features(seen, DEMAND), cluster_features(moved, DEMAND)
    assert_close(after, Features(before.elements[..., order, :], before.context))


@given(observations())
def test_a_batch_is_its_rows(seen: Observation) -> None:
    whole = cluster_features(seen, DEMAND)
    for index in np.ndindex(seen["deadline"].shape[:-1]):
        one = cluster_features({name: value[index] for name, value in seen.items()}, DEMAND)
        assert_close(one, Features(whole.elements[index], whole.context[index]))


def test_demand_by_row() -> None:
    """Numbers, rows and columns of them are told apart."""
    seen = {name: np.stack([value, value]) for name, value in hand_made().items()}
    rows = tuple(np.array([k, 3 * k]) for k in DEMAND)
    by_row = cluster_features(seen, rows)
    assert_close(cluster_features(seen, tuple(each[:, None] for each in rows)), by_row)
    for row in range(2):
        alone = cluster_features(hand_made(), tuple(each[row] for each in rows))
        assert_close(alone, Features(by_row.elements[row], by_row.context[row]))
    assert not np.allclose(by_row.context[0], by_row.context[1])


def played(env_arguments: dict[str, Any], steps: int = 300) -> list[Observation]:
    """Return the observations of random episodes."""
    envs = gym.make_vec(ID, num_envs=16, autoreset_mode="SameStep", **env_arguments)
    observation, infos = envs.reset(seed=0)
    seen = [observation]
    for k in range(steps):
        observation, *_, infos = envs.step(valid_actions(infos["action_mask"], k))
        seen.append(observation)
    return seen


@pytest.mark.parametrize("arguments", [family(ID).short, family(ID).overload, {"config": "training"}])
def test_random_episodes(arguments: dict[str, Any]) -> None:
    """Bounded, all of them informative, and nothing but the router's own records counts."""
    seen = played(dict(arguments))
    several = {name: np.stack([each[name] for each in seen]) for name in seen[0]}
    features = cluster_features(several, DEMAND)
    by_name = named(features)
    assert all((np.abs(part) <= 1).all() for part in features)
    constant = {name for name, value in by_name.items() if np.ptp(value) == 0}
    assert constant <= {"deadline"}
    assert several.keys() == OWN | REPORTED
    own = {name: value for name, value in several.items() if name in OWN}
    others = {name: 1.0 + several[name] for name in REPORTED}
    for other in (own, {**own, **others}):
        again = cluster_features(other, DEMAND)
        for mine, same in zip(features, again, strict=True):
            np.testing.assert_array_equal(mine, same)


def test_scaling_all_times_changes_only_the_deadline() -> None:
    """Another unit of time, for demand and the deadline too: v̂ is a ratio and keeps its value."""
    seen = played(dict(family(ID).short))[200]
    scaled = {name: value * 4 if name in TIMES else value for name, value in seen.items()}
    scaled["request"] = seen["request"] * np.array([1, 1, 4], np.float32)
    before = named(cluster_features(seen, DEMAND))
    after = named(cluster_features(scaled, tuple(4 * k for k in DEMAND)))
    for name in before.keys() - {"deadline"}:
        np.testing.assert_allclose(after[name], before[name], rtol=1e-5, atol=1e-6, err_msg=name)
    assert (before["deadline"] == 0).all() and (after["deadline"] > 0.8).all()


def test_elapsed_is_how_long_the_request_in_service_has_been_served() -> None:
    """Within a time step, from the router's own records, as long as no failure re-routes requests."""
    seen = played({"scenario": "straggler", "measured_s": 3.0, "warmup_s": 0.0, "rate_per_s": 220.0}, 500)
    busy = 0
    for each in seen:
        elapsed = named(cluster_features(each, DEMAND))["elapsed"]
        elapsed = 50 * elapsed / (1 - elapsed)
        over = elapsed - each["in_flight_age"]
        assert (over > -1e-3).all() and (over < 0.5 + 1e-3).all()
        busy += int((elapsed > 2).sum())
    assert busy > 1000


def test_equal_load_looks_alike_at_any_size() -> None:
    """Twice the replicas in the same state, with arrivals twice as often: the context is the same."""
    seen = played({"config": "training"})[-1]
    twice = {name: np.tile(value, 2) if name in PER_REPLICA else value for name, value in seen.items()}
    twice["arrival_gap"] = seen["arrival_gap"] / 2
    before, after = cluster_features(seen, DEMAND), cluster_features(twice, DEMAND)
    assert_close(after, Features(np.concatenate([before.elements] * 2, axis=-2), before.context))


# What is paid


def test_reward_features_by_hand() -> None:
    """In the order of the terms; of 8 in all 1 is per late request, 4 = .08 · 50 per deadline of latency."""
    pairs = zip(REWARD_FEATURES, CLUSTER_TERMS, strict=True)
    assert all(name.removeprefix("weight_") in term for name, term in pairs)
    found = reward_features([2, -1, 0, -0.08, 0.02], 50)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, [2 / 8, -1 / 8, 0, -4 / 8, 1 / 8])
    # Rows of their own deadlines; nothing paid is nothing told.
    rows = reward_features([[1, 0, 0, 0, 0], [0, 0, -10, -0.01, 0], [0] * 5], [50, 100, 50])
    np.testing.assert_allclose(rows, [[1, 0, 0, 0, 0], [0, 0, -10 / 11, -1 / 11, 0], [0] * 5], rtol=1e-6)


@given(
    st.lists(st.floats(-1e6, 1e6), min_size=5, max_size=5),
    st.floats(0.1, 1e4),
    st.floats(1e-6, 1e6),
)
def test_reward_features_know_neither_units_nor_scale(
    weights: list[float], deadline: float, scale: float
) -> None:
    found = reward_features(weights, deadline)
    assert (np.abs(found) <= 1).all()
    assert np.abs(found).sum() == pytest.approx(1.0 if any(weights) else 0.0, abs=1e-5)
    assert (np.sign(found) * np.sign(weights) >= 0).all()
    np.testing.assert_allclose(reward_features(np.array(weights) * scale, deadline), found, atol=1e-6)
    in_other_unit = np.array(weights) / np.array([1, 1, 1, scale, scale])
    np.testing.assert_allclose(reward_features(in_other_unit, deadline * scale), found, atol=1e-6)


def test_a_named_weighting_is_the_same_at_any_deadline() -> None:
    for name in ("on_time", "slo", "latency"):
        one, other = (reward_features(cluster_weights(name, d), d) for d in (50.0, 200.0))
        np.testing.assert_allclose(one, other, rtol=1e-6)


def test_the_reward_goes_after_the_context_and_changes_nothing_else() -> None:
    several = {name: np.stack([value] * 6).reshape(2, 3, -1) for name, value in hand_made().items()}
    plain = cluster_features(several, DEMAND)
    one = reward_features(cluster_weights("weighted", 50), 50)
    own = reward_features(np.random.default_rng(0).normal(size=(2, 3, 5)), 50)
    for reward in (one, own):
        told = cluster_features(several, DEMAND, reward)
        np.testing.assert_array_equal(told.elements, plain.elements)
        np.testing.assert_array_equal(told.context[..., :-5], plain.context)
        np.testing.assert_array_equal(told.context[..., -5:], np.broadcast_to(reward, (2, 3, 5)))
