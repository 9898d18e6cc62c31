"""Actor-critic networks over the features of elements and their context (torch).

Elements are the replicas of a cluster, or the destinations of a request.
"""

from __future__ import annotations

from math import sqrt
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from routing_agents.inference import Sizes, weight_shapes


class SetNetwork(nn.Module):
    """An encoder shared by all elements, and pooling: permuting elements permutes the logits, no more.

    With elements x_i and context g, h_i = tanh(W₂ tanh(W₁ [x_i, g])) and p = [mean h_i, max h_i],

        logit_i = w · tanh(W₃ [h_i, p]),    value = v · tanh(W₄ [p, g]),

    and with admission one more logit, w' · tanh(W₅ [p, g]). Every layer has a bias. The weights fit any
    number of elements.

    Attributes:
        sizes: what decides the shapes.
    """

    def __init__(self, *, context: int, element: int, hidden: int, admission: bool) -> None:
        """Draw initial weights; see `Sizes` for the arguments."""
        super().__init__()
        self.sizes = Sizes("set", hidden, context, element, admission, None)
        self.encoder_in = _linear(element + context, hidden)
        self.encoder_out = _linear(hidden, hidden)
        self.scorer = _linear(3 * hidden, hidden)
        self.logit = _linear(hidden, 1, _LOGITS)
        self.critic = _linear(2 * hidden + context, hidden)
        self.value = _linear(hidden, 1, _VALUE)
        if admission:
            self.rejecter = _linear(2 * hidden + context, hidden)
            self.reject = _linear(hidden, 1, _LOGITS)

    def forward(self, flat: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits (B, A) and values (B, 1) of flat features (B, G + N·F)."""
        encoded, summary = self._encode(flat)
        return self._score(encoded, summary), self.value(torch.tanh(self.critic(summary)))

    def logits(self, flat: Tensor) -> Tensor:
        """Return the logits (B, A) alone."""
        return self._score(*self._encode(flat))

    def _encode(self, flat: Tensor) -> tuple[Tensor, Tensor]:
        """Return h (B, N, H) and [p, g] (B, 2·H + G)."""
        context = flat[:, : self.sizes.context]
        elements = flat[:, self.sizes.context :].unflatten(1, (-1, self.sizes.element))
        encoded = torch.tanh(self.encoder_out(_joined(self.encoder_in, elements, context)))
        return encoded, torch.cat([encoded.mean(dim=1), encoded.amax(dim=1), context], dim=1)

    def _score(self, encoded: Tensor, summary: Tensor) -> Tensor:
        pooled = summary[:, : 2 * self.sizes.hidden]
        logits = self.logit(_joined(self.scorer, encoded, pooled)).squeeze(-1)
        if self.sizes.admission:
            logits = torch.cat([logits, self.reject(torch.tanh(self.rejecter(summary)))], dim=1)
        return logits


class MlpNetwork(nn.Module):
    """Two plain layers of tanh over the flat features for the logits, and two more for the value.

    For comparison: it knows nothing of permutations, and its weights fit one number of elements.

    Attributes:
        sizes: what decides the shapes.
    """

    def __init__(self, *, elements: int, context: int, element: int, hidden: int, admission: bool) -> None:
        """Draw initial weights; see `Sizes` for the arguments."""
        super().__init__()
        self.sizes = Sizes("mlp", hidden, context, element, admission, elements)
        width = context + elements * element
        self.first = _linear(width, hidden)
        self.second = _linear(hidden, hidden)
        self.logit = _linear(hidden, elements + admission, _LOGITS)
        self.critic_first = _linear(width, hidden)
        self.critic_second = _linear(hidden, hidden)
        self.value = _linear(hidden, 1, _VALUE)

    def forward(self, flat: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits (B, A) and values (B, 1) of flat features (B, G + N·F)."""
        critic = torch.tanh(self.critic_second(torch.tanh(self.critic_first(flat))))
        return self.logits(flat), self.value(critic)

    def logits(self, flat: Tensor) -> Tensor:
        """Return the logits (B, A) alone."""
        return self.logit(torch.tanh(self.second(torch.tanh(self.first(flat)))))


Network = SetNetwork | MlpNetwork


def make_network(
    network: Literal["set", "mlp"],
    *,
    width: int,
    actions: int,
    context: int,
    element: int,
    hidden: int,
    admission: bool,
) -> Network:
    """Build a network for flat features of a width.

    Args:
        network: `set` or `mlp`.
        width: G + N·F, of the observation.
        actions: A, of the environment.
        context: G.
        element: F.
        hidden: H.
        admission: whether the last action rejects.

    Raises:
        ValueError: no such network, or the sizes contradict each other; says which.
    """
    elements, rest = divmod(width - context, element)
    if elements < 1 or rest:
        raise ValueError(
            f"observations of {width} features do not hold {context} of the context and {element} per element"
        )
    if actions != elements + admission:
        raise ValueError(
            f"actions = {actions}: must be {elements + admission} for {elements} elements "
            f"{'with' if admission else 'without'} admission"
        )
    sizes: dict[str, Any] = {"context": context, "element": element, "hidden": hidden, "admission": admission}
    if network == "set":
        return SetNetwork(**sizes)
    if network == "mlp":
        return MlpNetwork(elements=elements, **sizes)
    raise ValueError(f"network = {network!r}: must be set or mlp")


def router_weights(network: Network) -> dict[str, NDArray[np.float32]]:
    """Return copies of the weights that a router needs, those of the logits, by name."""
    state = network.state_dict()
    return {name: state[name].cpu().numpy().copy() for name in weight_shapes(network.sizes)}


# Gains of the orthogonal initialisation, as Stable-Baselines3 has them: the first policy is close to uniform.
_HIDDEN, _LOGITS, _VALUE = sqrt(2.0), 0.01, 1.0


def _linear(inputs: int, outputs: int, gain: float = _HIDDEN) -> nn.Linear:
    layer = nn.Linear(inputs, outputs)
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer


def _joined(layer: nn.Linear, own: Tensor, shared: Tensor) -> Tensor:
    """Return tanh(W [own_i, shared] + b) for (B, N, …) and (B, …), the shared part multiplied once a row."""
    width = own.shape[-1]
    outputs = F.linear(own, layer.weight[:, :width])
    return torch.tanh(outputs + F.linear(shared, layer.weight[:, width:], layer.bias).unsqueeze(1))
