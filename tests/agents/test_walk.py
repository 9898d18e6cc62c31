"""The compiled walk chooses, request by request, what the features and the network in NumPy would choose."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from routing_agents.compiled import make_layers, make_network, tanh, write_logits
from routing_agents.inference import Forward, Sizes
from routing_agents.learned import CloudEdgeLearned
from routing_agents.walk import CONTEXT, ELEMENT, Moment, Walk, write_features
from routing_gym.cloud_edge.config import CloudEdgeConfig
from routing_gym.cloud_edge.features import CONTEXT_FEATURES, PAIR_FEATURES, request_features
from routing_gym.cloud_edge.observation import DESTINATION_FIELDS, PAIR_FIELDS
from routing_gym.common.config import packaged
from routing_gym.evaluation.sequential import Sequential
from routing_gym.policy import Policy
from tests.agents.trained import random_features, random_weights, save_random
from tests.cloud_edge.observations import Observation, batches, random_observation, row, stack

# As near as float32 and the compiled tanh come to float64, logits being of order 1.
NEAR = 1e-5
SEEDS = st.integers(0, 2**32)
WIDTHS = st.sampled_from([1, 2, 6, 11, 22])
HIDDEN = st.sampled_from([5, 32, 64])


def sizes(hidden: int) -> Sizes:
    return Sizes("set", hidden, len(CONTEXT_FEATURES), len(PAIR_FEATURES), admission=False, elements=None)


class Follower(Policy):
    """Repeats one batch's choices, request by request, once each is found to be the best, or as good."""

    family: ClassVar[str] = "cloud_edge"

    def __init__(self, forward: Forward, choices: Sequence[int]) -> None:
        self.forward = forward
        self.choices = iter(choices)

    def predict(
        self,
        observation: Any,
        state: Any = None,
        episode_start: Any = None,
        deterministic: bool = True,
        action_masks: Any = None,
    ) -> tuple[Any, Any]:
        choice = next(self.choices)
        legal = observation["legal"][0] > 0
        logits = self.forward(request_features(observation))[0]
        assert legal[choice]
        assert logits[choice] >= logits[legal].max() - NEAR
        return np.array([choice]), state


def check_choices(forward: Forward, batch: Observation, actions: np.ndarray) -> None:
    """Check the assignments of batches with a leading axis, each choice after those before it."""
    for k, chosen in enumerate(actions):
        order = np.argsort(-batch["predicted_output_tokens"][k], kind="stable")
        follower = Follower(forward, chosen[order].tolist())
        followed, _ = Sequential(follower).predict(row(batch, (k,)))
        assert chosen.tolist() == followed.tolist()  # inactive slots get 0


# Its parts


def test_tanh_is_accurate_everywhere() -> None:
    x = np.concatenate([np.linspace(-12, 12, 100_001), [1e-30, -1e30, np.inf, -np.inf]])[None].astype("f4")
    found = x.copy()
    tanh(found)
    np.testing.assert_allclose(found, np.tanh(x.astype(np.float64)), rtol=0, atol=3e-7)
    small = np.abs(x) < 0.01
    np.testing.assert_allclose(found[small], np.tanh(x[small].astype(np.float64)), rtol=5e-7, atol=0)


@given(SEEDS, WIDTHS, HIDDEN)
def test_logits_are_those_of_numpy(seed: int, width: int, hidden: int) -> None:
    network = sizes(hidden)
    weights = random_weights(network, seed)
    features = random_features(np.random.default_rng(seed), (), width, network.element, network.context)
    layers = make_layers(width, hidden)
    layers.logits[:] = np.nan
    write_logits(make_network(network, weights), features.elements, features.context[None], layers)
    due = Forward(network, weights)(features)
    np.testing.assert_allclose(layers.logits[:, 0], due, rtol=0, atol=NEAR)


@given(SEEDS, WIDTHS, st.integers(1, 40), st.booleans(), st.booleans())
def test_features_are_those_of_numpy(seed: int, width: int, remaining: int, alike: bool, flat: bool) -> None:
    """Also where all destinations are alike, and where the bounds of all terms coincide."""
    rng = np.random.default_rng(seed)
    batch = random_observation(rng, width, 3, 3)
    if alike:
        for name in (*PAIR_FIELDS[:-1], *DESTINATION_FIELDS):
            batch[name] = np.full_like(batch[name], batch[name][0])
    load = batch["backlog_s"] + rng.choice([0, 0.5, 4], width).astype("f4")
    ranges = (rng.uniform(0, 9, 4) * (not flat)).astype("f4")
    slot, usual = int(rng.integers(3)), packaged("cloud_edge", "default")
    moment = Moment(
        np.stack([batch[name].reshape(3, width) for name in PAIR_FIELDS]),
        np.stack([batch[name] for name in DESTINATION_FIELDS]),
        load,
        batch["weights"],
        ranges,
        np.array([usual["window_s"], usual["max_requests"]], np.float32),
        np.empty(width, np.float32),
        np.empty(width, np.float32),
        np.full((width, ELEMENT), np.nan, np.float32),
        np.full((1, CONTEXT), np.nan, np.float32),
    )
    write_features(moment, slot, np.float32(remaining))
    shown = {name: batch[name].reshape(3, width)[slot] for name in PAIR_FIELDS}
    shown |= {name: batch[name] for name in (*DESTINATION_FIELDS, "weights")}
    shown |= {"provisional_load_s": load, "term_range": ranges, "remaining": np.array([remaining], "f4")}
    due = request_features(shown)
    for k, name in enumerate(PAIR_FEATURES):
        # Only a sum over destinations may be rounded otherwise.
        np.testing.assert_allclose(moment.elements[:, k], due.elements[:, k], atol=5e-7, err_msg=name)
    for k, name in enumerate(CONTEXT_FEATURES):
        np.testing.assert_allclose(moment.context[0, k], due.context[k], atol=5e-7, err_msg=name)


# Whole batches


@given(SEEDS, WIDTHS, HIDDEN, st.integers(1, 64))
@settings(max_examples=60)
def test_each_choice_is_the_best_after_those_before_it(
    seed: int, width: int, hidden: int, slots: int
) -> None:
    rng = np.random.default_rng(seed)
    weights = random_weights(sizes(hidden), seed)
    batch = stack([random_observation(rng, width, slots) for _ in range(2)])
    actions = Walk(sizes(hidden), weights)(batch)
    assert actions.dtype == np.int64
    check_choices(Forward(sizes(hidden), weights), batch, actions)


@given(batches(st.sampled_from([(), (0,), (1,), (4,), (2, 2)])))
def test_rows_are_assigned_as_they_are_alone(drawn: Any) -> None:
    batch, shape = drawn
    before = {name: each.copy() for name, each in batch.items()}
    walk = Walk(sizes(32), random_weights(sizes(32)))
    actions = walk(batch)
    assert actions.shape == batch["active"].shape
    for index in np.ndindex(shape):
        assert actions[index].tolist() == walk(row(batch, index)).tolist()
    assert all(before[name].tobytes() == each.tobytes() for name, each in batch.items())


def test_destinations_that_are_alike_are_taken_by_index() -> None:
    """Copies of a catalogue hold the same destinations; rounding must not choose between them."""
    rng = np.random.default_rng(3)
    batch = random_observation(rng, 11, 1, 1)
    twice = {name: np.tile(batch[name], 2) for name in (*PAIR_FIELDS, *DESTINATION_FIELDS)}
    for seed in range(50):
        walk = Walk(sizes(64), random_weights(sizes(64), seed))
        assert walk({**batch, **twice})[0] < 11


# Backlog is carried over, some windows are empty, not every destination is legal.
CONDITIONS: dict[str, dict[str, Any]] = {
    "testbed": {"config": "testbed-6node", "rate_per_s": 30, "max_requests": 64, "outage_probability": 0.1},
    "edge only": {"config": "testbed-6node", "rate_per_s": 1.5, "edge_only_share": 0.5},
    "routerbench": {"config": "routerbench-5node", "rate_per_s": 20, "catalogue": {"speedup": 1.5}},
    "twice": {"config": "routerbench-5node", "replicate": 2, "requests": 9},
}


@pytest.mark.parametrize("hidden", [32, 64])
@pytest.mark.parametrize("name", CONDITIONS)
def test_each_choice_is_the_best_in_the_environment(name: str, hidden: int) -> None:
    weights = random_weights(sizes(hidden), seed=2)
    for part in (weights["encoder_in.weight"], weights["scorer.weight"][:, :hidden]):
        part *= 3  # so that logits differ
    walk, forward = Walk(sizes(hidden), weights), Forward(sizes(hidden), weights)
    envs = gym.make_vec("routing_gym/CloudEdgeBatch-v0", num_envs=2, windows=6, **CONDITIONS[name])
    observation, _ = envs.reset(seed=1)
    taken: set[int] = set()
    carried = 0.0
    for _ in range(6):
        actions = walk(observation)
        check_choices(forward, observation, actions)
        taken |= set(actions[observation["active"] > 0].tolist())
        carried = max(carried, float(observation["backlog_s"].max()))
        observation, *_ = envs.step(actions)
    assert len(taken) > 2
    assert carried > 0


# Routers


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    place = tmp_path_factory.mktemp("routers")
    config = CloudEdgeConfig.create("testbed-6node")
    return {
        "set": save_random(place / "set", config),
        "mlp": save_random(place / "mlp", config, network="mlp", elements=6),
    }


def one_by_one(policy: Policy) -> Sequential:
    """Return a router that asks the policy for each request."""

    class Plain(Policy):
        family: ClassVar[str] = policy.family
        initial_state: Callable[..., Any] = policy.initial_state
        predict: Callable[..., Any] = policy.predict

    return Sequential(Plain())


@pytest.mark.parametrize("kind", ["set", "mlp"])
@pytest.mark.parametrize("deterministic", [True, False])
def test_a_router_asked_for_whole_batches_does_as_one_asked_for_each_request(
    folders: dict[str, Path], kind: str, deterministic: bool
) -> None:
    """Actions and states, over windows of which some are empty; draws too, which go the long way."""
    policy = CloudEdgeLearned(path=folders[kind])
    fast, plain = Sequential(policy), one_by_one(CloudEdgeLearned(path=folders[kind]))
    rng = np.random.default_rng(0)
    states = [router.initial_state(range(3)) for router in (fast, plain)]
    for start in (True, None, False, True):
        batch = stack([random_observation(rng, 6, 20, requests) for requests in rng.choice([0, 3, 20], 3)])
        results = [
            router.predict(batch, state, start, deterministic)
            for router, state in zip((fast, plain), states, strict=True)
        ]
        assert results[0][0].tolist() == results[1][0].tolist()
        states = [state for _, state in results]
        assert [part.tolist() for part in states[0]] == [part.tolist() for part in states[1]]
    assert (policy.assign_batches(batch) is None) == (kind == "mlp")


def test_it_is_the_whole_batch_that_is_asked_for(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = CloudEdgeLearned(path=folders["set"])
    monkeypatch.setattr(policy, "predict", None)
    batch = random_observation(np.random.default_rng(0), 6, 9, 9)
    actions, _ = Sequential(policy).predict(batch, action_masks=batch["legal"])
    assert actions.tolist() == policy.assign_batches(batch).tolist()  # type: ignore[union-attr]


def test_a_predict_of_its_own_counts_more() -> None:
    """`Sequential` asks a subclass that decides otherwise request by request."""

    class Always(CloudEdgeLearned):
        def predict(self, observation: Any, state: Any = None, *args: Any, **kwargs: Any) -> Any:
            return np.full(np.shape(observation["remaining"])[:-1], 2), state

    env = gym.make("routing_gym/CloudEdgeBatch-v0", config="testbed-6node", requests=5)
    actions, _ = Sequential(Always("testbed-0")).predict(env.reset(seed=0)[0])
    assert actions[:5].tolist() == [2] * 5
