"""Features of cloud–edge requests: what they are worth by hand, and what they must not depend on."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing_gym.cloud_edge.evaluator import BatchEvaluator, BatchTables
from routing_gym.cloud_edge.features import CONTEXT_FEATURES, PAIR_FEATURES, request_features
from routing_gym.cloud_edge.observation import DESTINATION_FIELDS, PAIR_FIELDS
from routing_gym.common.features import Features
from tests.cloud_edge.observations import closing_request, make_request, pairs, random_observation, stack
from tests.environments import family, valid_actions

ID = "routing_gym/CloudEdgeRequest-v0"
PER_DESTINATION = {*PAIR_FIELDS, *DESTINATION_FIELDS, "provisional_load_s"}

Observation = dict[str, np.ndarray]


def named(features: Features) -> dict[str, np.ndarray]:
    """Return features by name: those of destinations (…, M), those of the context as `context.NAME`."""
    elements = dict(zip(PAIR_FEATURES, np.moveaxis(features.elements, -1, 0), strict=True))
    context = zip(CONTEXT_FEATURES, np.moveaxis(features.context, -1, 0), strict=True)
    return elements | {f"context.{name}": value for name, value in context}


def assert_close(a: Features, b: Features) -> None:
    for mine, other in zip(a, b, strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-4, atol=1e-5)


def hand_made() -> Observation:
    """Return three destinations, the last not legal; the second has 2 s of this batch to do.

    The batch has four requests left; its ranges are 2 of quality, .04 USD, 400 J and 5 s.
    """
    return make_request(
        3,
        quality=[0.9, 0.5, 1.0],
        cost=[0.02, 0.01, 0.0],
        energy=[10.0, 60.0, 5.0],
        infer_s=[1.0, 2.0, 0.1],
        transfer_s=[0.5, 0.1, 0.0],
        legal=[1, 1, 0],
        backlog_s=[0.5, 1.0, 0.0],
        provisional_load_s=[0.5, 3.0, 0.0],
        speedup=[2.0, 4.0, 1.0],
        is_cloud=[1, 0, 0],
        token_price=[3.0, 1.0, 9.0],
        outstanding=[0, 4, 0],
        weights=[0.4, 0.3, 0.2, 0.1],
        remaining=[4.0],
    ) | {"term_range": np.array([2.0, 0.04, 400.0, 5.0], np.float32)}


def test_by_hand() -> None:
    got = named(request_features(hand_made()))

    def squashed(unit: float, *values: float) -> Any:
        return pytest.approx([value / (abs(value) + unit) for value in values], rel=1e-4, abs=1e-6)

    assert got["legal"].tolist() == [1, 1, 0] and got["is_cloud"].tolist() == [1, 0, 0]
    assert got["loss_above_best"] == pytest.approx([0, 1, -0.25], abs=1e-5)
    assert got["cost_above_best"] == pytest.approx([1, 0, -1])
    assert got["energy_above_best"] == pytest.approx([0, 1, -0.1])
    assert got["loss_growth"] == squashed(1, 0, 0.8, -0.2)
    assert got["cost_growth"] == squashed(1, 4 * 0.25, 0, -4 * 0.25)
    assert got["energy_growth"] == squashed(1, 0, 4 * 50 / 400, -4 * 5 / 400)
    # Loads of 1.5 (its own 1 s behind .5), 3.5 (a quarter of its 2 s is added) and .1 s; 3 s as it stands.
    assert got["load"] == squashed(3.5 / 3, 1.5, 3.5, 0.1)
    assert got["load_growth"] == squashed(5, 1, 0.5, 0.1)
    assert got["carried"] == squashed(1, 0.5, 2.5, 0)
    assert got["backlog"] == squashed(5, 0.5, 1, 0)
    assert got["assigned"] == squashed(5, 0, 2, 0)
    assert got["infer"] == squashed(5, 1, 2, 0.1)
    assert got["finish"] == squashed(5, 2, 3.6, 0.1)
    assert got["finish_above_best"] == squashed(5, 0, 1.6, -1.9)
    assert got["time_growth"] == squashed(1, 0, 0.6 / 5, 0)
    # J grows by .3·.25 at the first, by .4·.8/4 + .2·.125 + .1·.12 at the second; the third is cut off.
    assert got["growth"] == pytest.approx([0, 1, -1], abs=1e-5)
    assert got["outstanding"] == squashed(4, 0, 4, 0)
    assert got["concurrency"] == squashed(4, 2, 4, 1)
    assert got["token_price"] == squashed(2, 3, 1, 9)

    weights = [got[f"context.weight_{name}"] for name in ("quality", "cost", "energy", "time")]
    assert weights == pytest.approx([0.4, 0.3, 0.2, 0.1])
    assert got["context.remaining"] == pytest.approx(4 / 36)
    assert got["context.last"] == 0.25
    assert got["context.quality_share"] == pytest.approx(0.2**0.5)
    assert got["context.cost_share"] == pytest.approx(0.5)
    assert got["context.energy_share"] == pytest.approx(0.125**0.5)
    assert got["context.time_range"] == pytest.approx(5 / 6)
    assert got["context.makespan"] == pytest.approx(3 / 8)
    assert got["context.best_finish"] == pytest.approx(2 / 7)
    assert got["context.carried_mean"] == pytest.approx(2 / 3 / (2 / 3 + 5))
    assert got["context.service"] == 0.5
    assert got["context.legal_share"] == pytest.approx(2 / 3)


def test_growth_weighs_time_against_a_share_of_the_batch() -> None:
    """Loss is held against all of the batch's; completion time is the batch's own."""
    seen = make_request(
        3,
        quality=[1.0, 0.8, 0.6],
        infer_s=[2.0, 1.5, 0.0],
        transfer_s=0.0,
        weights=[0.5, 0, 0, 0.5],
        remaining=[4.0],
    )
    seen["term_range"] = np.array([2.0, 0.0, 0.0, 5.0], np.float32)
    # J grows by .2, .05 + .15 and .1.
    assert named(request_features(seen))["growth"] == pytest.approx([1, 1, 0], abs=1e-6)


@given(st.integers(0, 2**32), st.integers(2, 5), st.integers(1, 4))
def test_growth_is_of_the_objective(seed: int, destinations: int, requests: int) -> None:
    """Of a batch's first request it is how far each choice is from the best in J, the others' being fixed.

    Of completion time that holds where there are no others.
    """
    batch = random_observation(np.random.default_rng(seed), destinations, requests, requests)
    if requests > 1:
        batch["weights"] = np.array([0.5, 0.3, 0.2, 0.0], np.float32)
    tables = BatchTables.from_observation(batch)
    evaluator = BatchEvaluator(tables)
    own = {name: pairs(batch, name)[0] for name in PAIR_FIELDS}
    shared = {name: batch[name] for name in (*DESTINATION_FIELDS, "weights")}
    request = make_request(destinations, remaining=[requests], **own, **shared)
    request["term_range"] = np.diff(evaluator.bounds)[:, 0].astype(np.float32) * [requests, 1, 1, 1]
    choices = np.flatnonzero(tables.legal[0])
    assignments = np.tile(tables.legal.argmax(axis=1), (len(choices), 1))
    assignments[:, 0] = choices
    above = evaluator.objective(assignments)
    above -= above.min()
    growth = named(request_features(request))["growth"][choices]
    assert above.max() < 1e-3 or growth == pytest.approx(above / above.max(), abs=1e-3)


@st.composite
def observations(draw: st.DrawFn) -> Observation:
    """Draw observations of anything that is not negative, of one to five destinations, some batched."""
    lead = draw(st.sampled_from([(), (3,), (2, 2), (0,)]))
    destinations = draw(st.integers(1, 5))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    kinds = np.array([0.0, 1e-4, 1.0, 30.0, 1e6])

    def drawn(width: int) -> np.ndarray:
        shape = (*lead, width)
        return (rng.choice(kinds, shape) * rng.random(shape)).astype(np.float32)

    seen = {name: drawn(destinations) for name in sorted(PER_DESTINATION)}
    for name in ("quality", "cluster_error"):
        seen[name] = rng.random((*lead, destinations), np.float32)
    for name in ("legal", "is_cloud"):
        seen[name] = rng.integers(2, size=(*lead, destinations)).astype(np.float32)
    return seen | {
        "remaining": rng.integers(0, 40, (*lead, 1)).astype(np.float32),
        "term_range": drawn(4),
        "weights": rng.dirichlet(np.ones(4), lead).astype(np.float32),
    }


def check_shapes_and_bounds(features: Features, seen: Observation) -> None:
    lead, destinations = seen["legal"].shape[:-1], seen["legal"].shape[-1]
    assert features.elements.shape == (*lead, destinations, len(PAIR_FEATURES))
    assert features.context.shape == (*lead, len(CONTEXT_FEATURES))
    for part in features:
        assert part.dtype == np.float32
        assert (np.abs(part) <= 1).all()


@given(observations())
def test_bounded_whatever_is_observed(seen: Observation) -> None:
    check_shapes_and_bounds(request_features(seen), seen)


@given(observations(), st.randoms())
def test_permuting_destinations_permutes_elements(seen: Observation, random: Any) -> None:
    """And changes nothing else."""
    order = list(range(seen["legal"].shape[-1]))
    random.shuffle(order)
    moved = {name: value[..., order] if name in PER_DESTINATION else value for name, value in seen.items()}
    before, after = request_features(seen), request_features(moved)
    assert_close(after, Features(before.elements[..., order, :], before.context))


@given(observations())
def test_a_batch_is_its_rows(seen: Observation) -> None:
    whole = request_features(seen)
    for index in np.ndindex(seen["legal"].shape[:-1]):
        one = request_features({name: value[index] for name, value in seen.items()})
        assert_close(one, Features(whole.elements[index], whole.context[index]))


@given(observations())
def test_currencies_do_not_matter(seen: Observation) -> None:
    """Neither money's unit nor energy's."""
    units = {"cost": 8.0, "token_price": 8.0, "energy": 0.25, "term_range": np.array([1.0, 8.0, 0.25, 1.0])}
    scaled = {name: (value * units.get(name, 1.0)).astype(np.float32) for name, value in seen.items()}
    assert_close(request_features(scaled), request_features(seen))


def test_the_closing_observation() -> None:
    seen = closing_request(3)
    features = request_features(seen)
    check_shapes_and_bounds(features, seen)
    assert (features.elements == features.elements[:1]).all()


@pytest.mark.parametrize(
    "arguments",
    [family(ID).short, family(ID).overload, {"config": "testbed-6node", "rate_per_s": 30.0, "windows": 10}],
)
def test_random_episodes(arguments: dict[str, Any]) -> None:
    """Bounded, and all of them informative but those of what is constant in an episode."""
    envs = gym.make_vec(ID, num_envs=16, autoreset_mode="SameStep", **arguments)
    observation, infos = envs.reset(seed=0)
    seen = [observation]
    for k in range(200):
        observation, *_, infos = envs.step(valid_actions(infos["action_mask"], k))
        seen.append(observation)
    several = stack(seen)
    features = request_features(several)
    check_shapes_and_bounds(features, several)
    constant = {name for name, value in named(features).items() if np.ptp(value) == 0}
    free = {"cost_above_best", "cost_growth", "token_price", "context.cost_share"}  # of testbed-6node
    weights = {f"context.weight_{name}" for name in ("quality", "cost", "energy", "time")}
    assert constant <= free | weights | {"legal", "context.legal_share"}
