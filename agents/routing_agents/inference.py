"""The networks' forward pass in NumPy, and choosing by it: what a trained router needs, without torch.

`routing_agents.networks` holds the same networks for training, with the same names and shapes of weights.
A router needs logits only, so the weights that value a state are not among them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from routing_baselines.splitmix import uniform
from routing_gym.common.features import Features

Weights = Mapping[str, NDArray[np.float32]]
Words = NDArray[np.uint64]
Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]

# Rows at once: their hidden layers stay in the processor's caches.
_AT_ONCE = 64


class Sizes(NamedTuple):
    """What decides a network's weights.

    Attributes:
        network: `set`, whose weights fit any number of elements, or `mlp`.
        hidden: H, the width of all hidden layers.
        context: G, how many features describe the whole.
        element: F, how many features describe each element: a replica, or a destination of the request.
        admission: whether there is one more logit, which rejects.
        elements: N, of an `mlp`; None for a `set`.
    """

    network: Literal["set", "mlp"]
    hidden: int
    context: int
    element: int
    admission: bool
    elements: int | None


def weight_shapes(sizes: Sizes) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the weights that a router of these sizes needs, by name: (outputs, inputs)."""
    h, one_more = sizes.hidden, int(sizes.admission)
    if sizes.network == "mlp":
        assert sizes.elements is not None
        width = sizes.context + sizes.elements * sizes.element
        layers = {"first": (h, width), "second": (h, h), "logit": (sizes.elements + one_more, h)}
    else:
        layers = {
            "encoder_in": (h, sizes.element + sizes.context),
            "encoder_out": (h, h),
            "scorer": (h, 3 * h),
            "logit": (1, h),
        }
        if sizes.admission:
            layers |= {"rejecter": (h, 2 * h + sizes.context), "reject": (1, h)}
    shapes: dict[str, tuple[int, ...]] = {}
    for layer, shape in layers.items():
        shapes |= {f"{layer}.weight": shape, f"{layer}.bias": shape[:1]}
    return shapes


class Forward:
    """A network's logits of any number of observations at once.

    Computed in float64 and rounded to float32, so that neither the size of a batch nor the order of a sum
    decides between elements that are alike.

    Attributes:
        sizes: of the network.
    """

    def __init__(self, sizes: Sizes, weights: Weights) -> None:
        """Take over weights whose names and shapes are those of `weight_shapes`."""
        self.sizes = sizes
        # Transposed for (rows, inputs) @ (inputs, outputs).
        self._weights = {name: np.array(array.T, np.float64, order="C") for name, array in weights.items()}

    def __call__(self, features: Features) -> NDArray[np.float32]:
        """Return the logits (…, N), or with admission (…, N + 1), of elements (…, N, F), context (…, G)."""
        *lead, count, element = np.shape(features.elements)
        elements = np.asarray(features.elements, np.float64).reshape(-1, count, element)
        context = np.asarray(features.context, np.float64).reshape(len(elements), self.sizes.context)
        forward = self._mlp if self.sizes.network == "mlp" else self._set
        logits = np.empty((len(elements), count + self.sizes.admission), np.float32)
        for first in range(0, len(elements), _AT_ONCE):
            rows = slice(first, first + _AT_ONCE)
            logits[rows] = forward(elements[rows], context[rows])
        return logits.reshape(*lead, logits.shape[1])

    def _mlp(self, elements: Floats, context: Floats) -> Floats:
        rows, count, element = elements.shape
        flat = np.concatenate([context, elements.reshape(rows, count * element)], axis=1)
        return self._layer("logit", self._hidden("second", self._hidden("first", flat)))

    def _set(self, elements: Floats, context: Floats) -> Floats:
        encoded = self._hidden("encoder_out", self._joined("encoder_in", elements, context))
        pooled = np.concatenate([encoded.mean(axis=1), encoded.max(axis=1)], axis=1)
        logits = self._layer("logit", self._joined("scorer", encoded, pooled))[..., 0]
        if self.sizes.admission:
            rejecter = self._hidden("rejecter", np.concatenate([pooled, context], axis=1))
            logits = np.concatenate([logits, self._layer("reject", rejecter)], axis=1)
        return logits

    def _layer(self, name: str, inputs: Floats) -> Floats:
        outputs = _product(inputs, self._weights[f"{name}.weight"])
        outputs += self._weights[f"{name}.bias"]
        return outputs

    def _hidden(self, name: str, inputs: Floats) -> Floats:
        outputs = self._layer(name, inputs)
        return np.tanh(outputs, out=outputs)

    def _joined(self, name: str, own: Floats, shared: Floats) -> Floats:
        """Return tanh(W [own_i, shared] + b) for (rows, N, …) and (rows, …), each shared part taken once."""
        weight, width = self._weights[f"{name}.weight"], own.shape[-1]
        per_row = _product(shared, weight[width:]) + self._weights[f"{name}.bias"]
        outputs = _product(own, weight[:width])
        outputs += per_row[:, None]
        return np.tanh(outputs, out=outputs)


def _product(inputs: Floats, weight: Floats) -> Floats:
    """Return inputs @ weight as a single product of matrices, which for many small ones is far faster."""
    *lead, width = inputs.shape
    return (inputs.reshape(math.prod(lead), width) @ weight).reshape(*lead, weight.shape[1])


def likeliest(logits: NDArray[Any], allowed: Bools) -> NDArray[np.int64]:
    """Return the allowed action with the highest logit (…,) of (…, A); ties go to the lowest index."""
    return np.where(allowed, logits, -np.inf).argmax(axis=-1)


def drawn(logits: NDArray[Any], allowed: Bools, state: Words) -> tuple[NDArray[np.int64], Words]:
    """Draw an allowed action by its probability, the softmax of the allowed logits.

    Args:
        logits: (…, A), finite.
        allowed: (…, A), at least one action in each row.
        state: SplitMix64 states (…,).

    Returns:
        The actions (…,) and the next states.
    """
    masked = np.where(allowed, np.asarray(logits, np.float64), -np.inf)
    upto = np.exp(masked - masked.max(axis=-1, keepdims=True)).cumsum(axis=-1)
    with np.errstate(over="ignore"):
        state, u = uniform(state)
    # The sum grows at allowed actions only, and u · (the whole) is below the whole even after rounding.
    return (upto > u[..., None] * upto[..., -1:]).argmax(axis=-1), state
