"""The networks: their formulas, permutations, any number of elements, and where learning starts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("torch", reason='needs torch: pip install "routing-gym[agents]"')

import torch
from torch import Tensor

from routing_agents.inference import weight_shapes
from routing_agents.networks import MlpNetwork, Network, SetNetwork, make_network, router_weights

G, F, H = 3, 4, 8
FEWER = settings(max_examples=30)


def sizes(admission: bool) -> dict[str, Any]:
    return {"context": G, "element": F, "hidden": H, "admission": admission}


def randomised(network: Network, seed: int) -> Network:
    """Return the network with logits of order 1, biases among its weights."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.normal_(0.0, parameter.shape[-1] ** -0.5)
    return network


def drawn_features(seed: int, rows: int, count: int) -> tuple[Tensor, Tensor]:
    """Return a context (B, G) and elements (B, N, F)."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, G, generator=generator), torch.randn(rows, count, F, generator=generator)


def flat(context: Tensor, elements: Tensor) -> Tensor:
    return torch.cat([context, elements.flatten(1)], dim=1)


def close(found: Tensor, due: Tensor) -> bool:
    return found.shape == due.shape and torch.allclose(found, due, rtol=1e-5, atol=1e-5)


seeds = st.integers(0, 2**32)


@FEWER
@given(seed=seeds, count=st.integers(1, 6), admission=st.booleans())
def test_permuting_elements_permutes_the_logits_and_nothing_else(
    seed: int, count: int, admission: bool
) -> None:
    network = randomised(SetNetwork(**sizes(admission)), seed)
    context, elements = drawn_features(seed, 5, count)
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    logits, value = network(flat(context, elements))
    permuted, same_value = network(flat(context, elements[:, order]))
    assert logits.shape == (5, count + admission)
    assert close(permuted[:, :count], logits[:, order])
    assert close(permuted[:, count:], logits[:, count:])
    assert close(same_value, value)


@pytest.mark.parametrize("admission", [False, True])
def test_permutations_matter_to_an_mlp(admission: bool) -> None:
    network = randomised(MlpNetwork(elements=3, **sizes(admission)), 0)
    context, elements = drawn_features(0, 5, 3)
    logits, value = network(flat(context, elements))
    permuted, other_value = network(flat(context, elements[:, [1, 2, 0]]))
    assert not close(permuted[:, :3], logits[:, [1, 2, 0]])
    assert not close(other_value, value)


@pytest.mark.parametrize("times", [1, 3, 6])
@pytest.mark.parametrize("admission", [False, True])
def test_weights_fit_any_number_of_elements(admission: bool, times: int) -> None:
    """And a system that is several copies of a small one is judged as the small one is."""
    network = randomised(SetNetwork(**sizes(admission)), 1)
    context, elements = drawn_features(1, 7, 3)
    logits, value = network(flat(context, elements))
    many, same_value = network(flat(context, elements.repeat(1, times, 1)))
    assert close(many[:, : 3 * times], logits[:, :3].repeat(1, times))
    assert close(many[:, 3 * times :], logits[:, 3:])
    assert close(same_value, value)


@pytest.mark.parametrize("count", [8, 16])
def test_one_network_runs_at_several_sizes(count: int) -> None:
    network = randomised(SetNetwork(**sizes(True)), 2)
    before = {name: value.clone() for name, value in network.state_dict().items()}
    for elements in (3, count):
        logits, value = network(flat(*drawn_features(2, 4, elements)))
        assert logits.shape == (4, elements + 1)
        assert value.shape == (4, 1)
        assert len(torch.unique(logits)) == logits.numel()
    assert all(torch.equal(before[name], value) for name, value in network.state_dict().items())


@FEWER
@given(seed=seeds, count=st.integers(1, 5), admission=st.booleans())
def test_the_set_s_formula(seed: int, count: int, admission: bool) -> None:
    """As the docstring has it, one element of one row after the other."""
    network = randomised(SetNetwork(**sizes(admission)), seed)
    context, elements = drawn_features(seed, 3, count)
    logits, values = network(flat(context, elements))

    def layer(name: str, *inputs: Tensor) -> Tensor:
        module = getattr(network, name)
        return module.weight @ torch.cat(inputs) + module.bias

    for b, g in enumerate(context):
        h = [layer("encoder_out", layer("encoder_in", x, g).tanh()).tanh() for x in elements[b]]
        pooled = torch.cat([sum(h) / count, torch.stack(h).max(dim=0).values])
        due = [layer("logit", layer("scorer", each, pooled).tanh()) for each in h]
        if admission:
            due.append(layer("reject", layer("rejecter", pooled, g).tanh()))
        assert close(logits[b], torch.cat(due))
        assert close(values[b], layer("value", layer("critic", pooled, g).tanh()))


@pytest.mark.parametrize("admission", [False, True])
def test_the_mlp_s_formula(admission: bool) -> None:
    network = randomised(MlpNetwork(elements=2, **sizes(admission)), 3)
    inputs = flat(*drawn_features(3, 6, 2))

    def layer(name: str, x: Tensor) -> Tensor:
        module = getattr(network, name)
        return x @ module.weight.T + module.bias

    logits, value = network(inputs)
    assert logits.shape == (6, 2 + admission)
    assert close(logits, layer("logit", layer("second", layer("first", inputs).tanh()).tanh()))
    assert close(value, layer("value", layer("critic_second", layer("critic_first", inputs).tanh()).tanh()))


def both(admission: bool) -> list[Network]:
    return [SetNetwork(**sizes(admission)), MlpNetwork(elements=3, **sizes(admission))]


@pytest.mark.parametrize("admission", [False, True])
def test_logits_alone_are_those_of_the_whole(admission: bool) -> None:
    inputs = flat(*drawn_features(4, 5, 3))
    for network in both(admission):
        assert torch.equal(network.logits(inputs), network(inputs)[0])


@pytest.mark.parametrize("admission", [False, True])
def test_learning_starts_close_to_a_uniform_policy(admission: bool) -> None:
    torch.manual_seed(0)
    for network in both(admission):
        logits, value = network(flat(*drawn_features(5, 50, 3)))
        # The last layer's weights have the length .01, and its inputs are within 1.
        assert bool((logits.abs() <= 0.01 * H**0.5).all())
        assert bool((value.abs() > 0.1).any())
        hidden = network.encoder_out if isinstance(network, SetNetwork) else network.second
        assert close(hidden.weight @ hidden.weight.T, 2 * torch.eye(H))
        assert all(not p.any() for name, p in network.named_parameters() if name.endswith("bias"))


@pytest.mark.parametrize("admission", [False, True])
def test_every_weight_learns(admission: bool) -> None:
    for network in both(admission):
        randomised(network, 6)
        logits, value = network(flat(*drawn_features(6, 20, 3)))
        (logits.square().sum() + value.square().sum()).backward()
        for name, parameter in network.named_parameters():
            assert parameter.grad is not None, name
            assert bool(parameter.grad.ne(0).any()), name


@pytest.mark.parametrize("admission", [False, True])
def test_what_a_router_needs(admission: bool) -> None:
    for network in both(admission):
        weights = router_weights(network)
        assert {name: array.shape for name, array in weights.items()} == weight_shapes(network.sizes)
        assert all(array.dtype == np.float32 for array in weights.values())
        state = network.state_dict()
        assert {name.partition(".")[0] for name in state.keys() - weights.keys()} <= {
            "critic",
            "critic_first",
            "critic_second",
            "value",
        }
        weights["logit.weight"] += 1.0
        assert not np.array_equal(state["logit.weight"].numpy(), weights["logit.weight"])


@pytest.mark.parametrize("kind", ["set", "mlp"])
@pytest.mark.parametrize("admission", [False, True])
def test_a_network_for_a_space(kind: Any, admission: bool) -> None:
    network = make_network(kind, width=G + 5 * F, actions=5 + admission, **sizes(admission))
    assert network.sizes == (kind, H, G, F, admission, None if kind == "set" else 5)
    assert network(flat(*drawn_features(7, 2, 5)))[0].shape == (2, 5 + admission)


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"width": G + 3 * F + 1}, "observations of 16 features do not hold 3 of the context and 4 per el"),
        ({"width": G}, "observations of 3 features do not hold 3 of the context and 4 per element"),
        ({"width": 1}, "observations of 1 features do not hold 3 of the context and 4 per element"),
        ({"actions": 4}, "actions = 4: must be 3 for 3 elements without admission"),
        ({"admission": True}, "actions = 3: must be 4 for 3 elements with admission"),
        ({"network": "rnn"}, "network = 'rnn': must be set or mlp"),
    ],
)
def test_sizes_that_contradict_each_other_are_refused(fields: dict[str, Any], told: str) -> None:
    given = {"network": "set", "width": G + 3 * F, "actions": 3, **sizes(False), **fields}
    with pytest.raises(ValueError, match=told):
        make_network(**given)
