"""A router of your own: the replica with the fewest tokens to read and to write gets the request."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from routing_baselines.cluster.router import Bools, StatelessRouter, View, lowest


class LeastTokens(StatelessRouter):
    """The smallest number of outstanding tokens.

    Attributes:
        output_weight: how many prompt tokens an output token counts as.
    """

    def __init__(self, output_weight: float = 7.0) -> None:
        """Set the weight of output tokens.

        Raises:
            ValueError: a negative weight.
        """
        if output_weight < 0:
            raise ValueError(f"output_weight = {output_weight}: must not be negative")
        self.output_weight = output_weight

    def route(self, view: View, eligible: Bools) -> NDArray[np.int64]:
        """Return argmin of prompt tokens + weight · predicted output tokens."""
        tokens = view.outstanding_prompt_tokens + self.output_weight * view.outstanding_predicted_tokens
        return lowest(tokens, eligible)
