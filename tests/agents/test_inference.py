"""Inference: NumPy against torch, batches against rows, ties, masks and draws."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from routing_agents.inference import Forward, Sizes, drawn, likeliest, weight_shapes
from routing_baselines.splitmix import splitmix64
from routing_gym.common.features import Features, flatten
from tests.agents.trained import random_features, random_weights

FEWER = settings(max_examples=30)
SHAPES = st.sampled_from([(), (0,), (1,), (5,), (2, 3), (2, 1, 2), (130,)])
seeds = st.integers(0, 2**32)


@st.composite
def all_sizes(draw: st.DrawFn, networks: tuple[str, ...] = ("set", "mlp")) -> tuple[Sizes, int]:
    """Draw sizes, and a number of elements that they fit."""
    network, count = draw(st.sampled_from(networks)), draw(st.integers(1, 9))
    hidden, context, element = (draw(st.integers(1, 20)) for _ in range(3))
    elements = count if network == "mlp" else None
    return Sizes(network, hidden, context, element, draw(st.booleans()), elements), count  # type: ignore[arg-type]


def inputs(sizes: Sizes, count: int, lead: tuple[int, ...], seed: int) -> Features:
    return random_features(np.random.default_rng(seed), lead, count, sizes.element, sizes.context)


@FEWER
@given(drawn_sizes=all_sizes(), lead=SHAPES, seed=seeds)
def test_numpy_agrees_with_torch(drawn_sizes: tuple[Sizes, int], lead: tuple[int, ...], seed: int) -> None:
    torch = pytest.importorskip("torch", reason='needs torch: pip install "routing-gym[agents]"')
    from routing_agents.networks import make_network

    sizes, count = drawn_sizes
    network = make_network(
        sizes.network,
        width=sizes.context + count * sizes.element,
        actions=count + sizes.admission,
        context=sizes.context,
        element=sizes.element,
        hidden=sizes.hidden,
        admission=sizes.admission,
    )
    assert network.sizes == sizes
    weights = random_weights(sizes, seed)
    network.load_state_dict({name: torch.tensor(array) for name, array in weights.items()}, strict=False)
    features = inputs(sizes, count, lead, seed)
    found = Forward(sizes, weights)(features)
    flat = torch.tensor(flatten(features).reshape(-1, sizes.context + count * sizes.element))
    with torch.no_grad():
        due = network(flat)[0].numpy().reshape(*lead, count + sizes.admission)
    assert found.dtype == np.float32
    assert found.shape == due.shape
    np.testing.assert_allclose(found, due, rtol=0, atol=1e-5)


@FEWER
@given(drawn_sizes=all_sizes(), lead=SHAPES, seed=seeds)
def test_a_batch_gets_the_logits_of_its_rows(
    drawn_sizes: tuple[Sizes, int], lead: tuple[int, ...], seed: int
) -> None:
    """Bit for bit, so that a choice does not depend on who is routed beside."""
    sizes, count = drawn_sizes
    forward, features = Forward(sizes, random_weights(sizes, seed)), inputs(sizes, count, lead, seed)
    logits = forward(features)
    assert logits.shape == (*lead, count + sizes.admission)
    for index in np.ndindex(lead):
        alone = forward(Features(features.elements[index], features.context[index]))
        assert alone.tobytes() == logits[index].tobytes()


@FEWER
@given(drawn_sizes=all_sizes(("set",)), seed=seeds, rows=st.integers(1, 130))
def test_elements_that_are_alike_are_tied_exactly(
    drawn_sizes: tuple[Sizes, int], seed: int, rows: int
) -> None:
    """Whatever their places in whichever batch; and permuting them changes no logit of the others."""
    sizes, count = drawn_sizes
    features = inputs(sizes, count, (rows,), seed)
    features.elements[:] = features.elements[:, :1]
    logits = Forward(sizes, random_weights(sizes, seed))(features)
    assert (logits[:, :count] == logits[:, :1]).all()
    allowed = np.ones((rows, count), bool)
    assert not likeliest(logits[:, :count], allowed).any()


def test_inputs_are_left_alone() -> None:
    sizes = Sizes("set", 8, 3, 4, True, None)
    weights, features = random_weights(sizes), inputs(sizes, 5, (6,), 0)
    before = [array.copy() for array in (*weights.values(), *features)]
    forward = Forward(sizes, weights)
    first = forward(features)
    for array in weights.values():
        array[...] = 0.0
    assert forward(features).tobytes() == first.tobytes()
    weights = random_weights(sizes)
    assert all(np.array_equal(a, b) for a, b in zip(before, (*weights.values(), *features), strict=True))


def test_the_weights_that_are_needed() -> None:
    assert weight_shapes(Sizes("mlp", 8, 3, 4, True, 2)) == {
        "first.weight": (8, 11),
        "first.bias": (8,),
        "second.weight": (8, 8),
        "second.bias": (8,),
        "logit.weight": (3, 8),
        "logit.bias": (3,),
    }
    shared = weight_shapes(Sizes("set", 8, 3, 4, False, None))
    assert {name: shape for name, shape in shared.items() if name.endswith("weight")} == {
        "encoder_in.weight": (8, 7),
        "encoder_out.weight": (8, 8),
        "scorer.weight": (8, 24),
        "logit.weight": (1, 8),
    }
    more = weight_shapes(Sizes("set", 8, 3, 4, True, None))
    assert {name: more[name] for name in more.keys() - shared.keys()} == {
        "rejecter.weight": (8, 19),
        "rejecter.bias": (8,),
        "reject.weight": (1, 8),
        "reject.bias": (1,),
    }


@st.composite
def choices(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    """Draw logits, many of them tied, and masks with at least one allowed action in each row."""
    lead, count = draw(SHAPES), draw(st.integers(1, 6))
    rng = np.random.default_rng(draw(seeds))
    logits = rng.choice([-1000.0, -1.0, 0.0, 0.5, 3.0, 1000.0], (*lead, count)).astype(np.float32)
    allowed = rng.random((*lead, count)) < 0.5
    allowed[..., rng.integers(count)] = True
    return logits, allowed


@given(drawn_choices=choices(), seed=seeds)
def test_what_is_masked_is_never_chosen(drawn_choices: Any, seed: int) -> None:
    logits, allowed = drawn_choices
    state = np.random.default_rng(seed).integers(0, 2**64, allowed.shape[:-1], np.uint64)
    for actions in (likeliest(logits, allowed), drawn(logits, allowed, state)[0]):
        assert actions.dtype == np.int64
        assert actions.shape == allowed.shape[:-1]
        assert np.take_along_axis(allowed, actions[..., None], axis=-1).all()


@given(drawn_choices=choices())
def test_the_likeliest_is_the_first_of_the_best(drawn_choices: Any) -> None:
    logits, allowed = drawn_choices
    actions = likeliest(logits, allowed)
    for index in np.ndindex(allowed.shape[:-1]):
        best = max(logits[index][allowed[index]])
        due = next(k for k in range(allowed.shape[-1]) if allowed[index][k] and logits[index][k] == best)
        assert actions[index] == due


def test_draws_follow_the_softmax_of_what_is_allowed() -> None:
    rows = 40_000
    logits = np.broadcast_to(np.array([0.3, 5.0, -1.0, 1.2], np.float32), (rows, 4))
    allowed = np.broadcast_to(np.array([True, False, True, True]), (rows, 4))
    state = splitmix64(np.arange(rows, dtype=np.uint64))[1]
    actions, after = drawn(logits, allowed, state)
    due = np.where(allowed[0], np.exp(logits[0].astype(np.float64)), 0.0)
    found = np.bincount(actions, minlength=4) / rows
    # Four standard deviations of a share.
    np.testing.assert_allclose(found, due / due.sum(), atol=4 * 0.5 / rows**0.5)
    assert found[1] == 0
    assert np.array_equal(after, splitmix64(state)[0])
    again, _ = drawn(logits, allowed, after)
    agree = (again == actions).mean()
    assert abs(agree - ((due / due.sum()) ** 2).sum()) < 4 * 0.5 / rows**0.5


@pytest.mark.parametrize("word", [0, 2**64 - 1])
def test_the_first_and_the_last_draw_are_allowed(word: int) -> None:
    """0, and the largest number below 1 where the sum of probabilities is not a power of two."""
    state = np.array([_inverse(word)], np.uint64)
    with np.errstate(over="ignore"):
        assert splitmix64(state)[1] == word
    allowed = np.array([[False, True, True, True, True, False]])
    for logits in ([9.0, 0.0, 0.0, 0.0, -60.0, 9.0], [9.0, 0.1, 0.7, 0.3, -2.0, 9.0]):
        actions, _ = drawn(np.array([logits], np.float32), allowed, state)
        assert allowed[0, actions[0]]


def _inverse(word: int) -> int:
    """Return the state after which SplitMix64, a bijection, gives this word."""

    def unshifted(z: int, shift: int) -> int:
        found = z
        for _ in range(64 // shift + 1):
            found = z ^ (found >> shift)
        return found

    z = unshifted(word, 31) * pow(0x94D049BB133111EB, -1, 2**64) % 2**64
    z = unshifted(z, 27) * pow(0xBF58476D1CE4E5B9, -1, 2**64) % 2**64
    return (unshifted(z, 30) - 0x9E3779B97F4A7C15) % 2**64
