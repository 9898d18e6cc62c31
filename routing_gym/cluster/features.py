"""Pure functions of a cluster observation, for routers and for learning alike."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def expected_work(
    outstanding: Floats,
    prompt_tokens: Floats,
    predicted_tokens: Floats,
    request: Floats,
    speed: Floats,
    demand: tuple[Any, Any, Any],
) -> Floats:
    """Return the expected time until each replica would be done with the pending request, ms.

    The outstanding requests' tokens and the request's own, in ms by the demand coefficients, times the
    replica's learned slowness. The part of the request in service that is already done counts as undone.

    Args:
        outstanding: (…, N) requests.
        prompt_tokens: (…, N) outstanding prompt tokens.
        predicted_tokens: (…, N) outstanding predicted output tokens.
        request: (…, 3) prompt tokens, predicted output tokens and age of the pending request.
        speed: (…, N) v̂, service time per ms of demand.
        demand: (a, b, c), ms per request, prompt token and output token; numbers, or columns (rows, 1).
    """
    base, per_prompt, per_output = demand
    work = base * (outstanding + 1.0)
    work = work + per_prompt * (prompt_tokens + request[..., 0:1])
    work = work + per_output * (predicted_tokens + request[..., 1:2])
    return work * speed
