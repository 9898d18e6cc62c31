"""Features of an observation: what learned routers see instead of raw units (DESIGN 5)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]

# Where there is nothing to divide by: small beside every unit, and its inverse is finite.
TINY = np.float32(1e-12)


class Features(NamedTuple):
    """Bounded, dimensionless numbers, float32, in [-1, 1].

    An element is what the router chooses from: a replica, or a destination.
    """

    elements: Floats  # (…, N, F)
    context: Floats  # (…, G)


def squash(value: Any, unit: Any) -> Any:
    """Return x/(|x| + unit): 0 at 0, 1/2 at one unit, and still rising where it is hopeless.

    Args:
        value: arrays of any sign.
        unit: arrays that are not negative. Where both are 0, so is the result.
    """
    return value / np.maximum(np.abs(value) + unit, TINY)


def stacked(elements: Sequence[Any], context: Sequence[Any]) -> Features:
    """Return features that were made one by one, of transposed observations.

    Args:
        elements: F arrays (N, …), the leading axes of the observation reversed.
        context: G arrays (…), or (1, …).
    """
    shape = elements[0].T.shape
    whole = np.empty((*shape, len(elements)), np.float32)
    rest = np.empty((*shape[:-1], len(context)), np.float32)
    for k, values in enumerate(elements):
        whole[..., k] = values.T
    for k, values in enumerate(context):
        rest[..., k] = values.T.reshape(shape[:-1])
    return Features(whole, rest)


def flatten(features: Features) -> Floats:
    """Return the features in one row, (…, G + N·F): the context first, then element by element."""
    elements, context = features
    lead = context.shape[:-1]
    flat = elements.reshape(*lead, elements.shape[-2] * elements.shape[-1])
    return np.concatenate([context, flat], axis=-1)


def unflatten(flat: Any, elements: int, element_features: int, context_features: int) -> Features:
    """Return the parts of what `flatten` made of N elements with F features each and G of the context.

    Raises:
        ValueError: the last axis is not G + N·F long.
    """
    width = context_features + elements * element_features
    if flat.shape[-1] != width:
        raise ValueError(
            f"features have shape {flat.shape}; the last axis must be {width}: {context_features} of the "
            f"context and {element_features} of each of {elements} elements"
        )
    rest = flat[..., context_features:]
    return Features(rest.reshape(*flat.shape[:-1], elements, element_features), flat[..., :context_features])
