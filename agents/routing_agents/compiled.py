"""A `set` network's logits of one observation, compiled: as `inference.Forward`, in float32.

NumPy spends more on its calls than a network as small as these on its arithmetic.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from routing_agents.inference import Sizes, Weights
from routing_gym.common.jit import njit

Floats = NDArray[np.float32]

# Numba would compute with literals in float64.
ZERO, ONE, TWO, INFINITY = np.float32(0.0), np.float32(1.0), np.float32(2.0), np.float32(np.inf)


class Network(NamedTuple):
    """A `set` network's weights, (inputs, outputs), and biases, (1, outputs); float32.

    Where a layer reads both an element and what all elements share, the two parts of its weights are apart.
    """

    encoder_in_own: Floats
    encoder_in_shared: Floats
    encoder_in_bias: Floats
    encoder_out: Floats
    encoder_out_bias: Floats
    scorer_own: Floats
    scorer_shared: Floats
    scorer_bias: Floats
    logit: Floats
    logit_bias: Floats


class Layers(NamedTuple):
    """What a network makes of one request; float32."""

    shared: Floats  # (1, H), what a layer adds to every element
    hidden: Floats  # (M, H)
    encoded: Floats  # (M, H)
    pooled: Floats  # (1, 2H), the means and the maxima of what is encoded
    logits: Floats  # (M, 1)


def make_network(sizes: Sizes, weights: Weights) -> Network:
    """Return the weights of a `set` network, named and shaped as `inference.weight_shapes` says."""

    def part(name: str, inputs: slice) -> Floats:
        return np.array(weights[f"{name}.weight"].T[inputs], np.float32, order="C")

    def bias(name: str) -> Floats:
        return np.array(weights[f"{name}.bias"], np.float32)[None]

    whole = slice(None)
    return Network(
        part("encoder_in", slice(sizes.element)),
        part("encoder_in", slice(sizes.element, None)),
        bias("encoder_in"),
        part("encoder_out", whole),
        bias("encoder_out"),
        part("scorer", slice(sizes.hidden)),
        part("scorer", slice(sizes.hidden, None)),
        bias("scorer"),
        part("logit", whole),
        bias("logit"),
    )


@njit
def make_layers(width: int, hidden: int) -> Layers:
    """Return room for what a network of this hidden width makes of so many destinations."""
    return Layers(
        np.empty((1, hidden), np.float32),
        np.empty((width, hidden), np.float32),
        np.empty((width, hidden), np.float32),
        np.empty((1, 2 * hidden), np.float32),
        np.empty((width, 1), np.float32),
    )


@njit
def write_logits(network: Network, elements: Floats, context: Floats, layers: Layers) -> None:
    """Write the logits of destinations (M, 23) in a context (1, 15) into `layers.logits`."""
    shared, hidden, encoded, pooled = layers.shared, layers.hidden, layers.encoded, layers.pooled
    layer(context, network.encoder_in_shared, network.encoder_in_bias, shared)
    layer(elements, network.encoder_in_own, shared, hidden)
    tanh(hidden)
    layer(hidden, network.encoder_out, network.encoder_out_bias, encoded)
    tanh(encoded)
    pool(encoded, pooled)
    layer(pooled, network.scorer_shared, network.scorer_bias, shared)
    layer(encoded, network.scorer_own, shared, hidden)
    tanh(hidden)
    layer(hidden, network.logit, network.logit_bias, layers.logits)


@njit
def pool(encoded: Floats, pooled: Floats) -> None:
    """Write the means and the maxima (1, 2H) over elements (M, H)."""
    count, size = encoded.shape
    for h in range(size):
        total, highest = ZERO, -INFINITY
        for d in range(count):
            total += encoded[d, h]
            highest = max(highest, encoded[d, h])
        pooled[0, h] = total / np.float32(count)
        pooled[0, size + h] = highest


@njit
def layer(inputs: Floats, weight: Floats, base: Floats, outputs: Floats) -> None:
    """Write base (1, H) + inputs (n, K) @ weight (K, H) into outputs (n, H), vectorised over H."""
    count, depth = inputs.shape
    fours = depth // 4 * 4
    for i in range(count):
        for h in range(weight.shape[1]):
            outputs[i, h] = base[0, h]
        # Four at once, so that each output is read and written a quarter as often.
        for k in range(0, fours, 4):
            a, b, c, d = inputs[i, k], inputs[i, k + 1], inputs[i, k + 2], inputs[i, k + 3]
            for h in range(weight.shape[1]):
                outputs[i, h] += (
                    a * weight[k, h] + b * weight[k + 1, h] + c * weight[k + 2, h] + d * weight[k + 3, h]
                )
        for k in range(fours, depth):
            a = inputs[i, k]
            for h in range(weight.shape[1]):
                outputs[i, h] += a * weight[k, h]


@njit
def tanh(values: Floats) -> None:
    """Replace values (n, H) by their hyperbolic tangents, to 3e-7.

    tanh(x/4) is n/d by Lambert's continued fraction x/(1 + x²/(3 + x²/(5 + …))), five terms of it; doubling
    the argument makes that 2nd/(d² + n²).
    """
    end, quarter = np.float32(9.0), np.float32(0.25)  # beyond 9 it is 1 in float32
    for i in range(values.shape[0]):
        for h in range(values.shape[1]):
            x = quarter * max(-end, min(end, values[i, h]))
            square = x * x
            n = x * (np.float32(945.0) + square * (np.float32(105.0) + square))
            d = np.float32(945.0) + square * (np.float32(420.0) + np.float32(15.0) * square)
            n, d = TWO * n * d, d * d + n * n
            # Numba checks divisors of `/`, which would keep the loop from being vectorised.
            values[i, h] = np.divide(TWO * n * d, d * d + n * n)
