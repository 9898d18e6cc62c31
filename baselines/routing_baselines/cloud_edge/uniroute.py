"""UniRoute, the source's model router: a prompt's cluster decides, not the infrastructure (DESIGN 5)."""

from __future__ import annotations

import math

from routing_baselines.choice import lowest
from routing_baselines.cloud_edge.documented import Choices, Slots, StatelessRouter
from routing_baselines.cloud_edge.router import default


class UniRoute(StatelessRouter):
    """The error that a model makes on prompts of the request's cluster, plus λ times its price.

    From "CEMA-Router", section V-B. Loads, energy and transfer do not count, so requests of one cluster with
    the same legal destinations all go to the same one.

    Attributes:
        price_weight: λ, what a USD per 1M tokens weighs against the error; the source uses .05.
    """

    def __init__(self, price_weight: float | None = None) -> None:
        """Set λ, by default the shipped one.

        Raises:
            ValueError: λ is negative, or no number.
        """
        price_weight = default("uniroute", "price_weight") if price_weight is None else price_weight
        if not (isinstance(price_weight, (int, float)) and 0.0 <= price_weight < math.inf):
            raise ValueError(f"price_weight = {price_weight!r}: must be a number, and must not be negative")
        self.price_weight = price_weight

    def route(self, slots: Slots) -> Choices:
        """Return argmin cluster_error + λ · token_price."""
        price = slots.destinations("token_price")[..., None, :]
        return lowest(slots.pairs("cluster_error") + self.price_weight * price, slots.legal)
