"""A rule for destinations that answer longer than a window lasts: use one at a time (ours)."""

from __future__ import annotations

import numpy as np

from routing_baselines.choice import lowest
from routing_baselines.cloud_edge.documented import Choices, Slots, StatelessRouter


class LeastBacklog(StatelessRouter):
    """The whole batch goes where it would be served first: least backlog plus longest T_infer of the batch.

    A batch adds to a destination's backlog its longest answer, however many requests there are (DESIGN 4),
    so that a batch in one place lets all others drain. Neither quality, cost nor energy counts. A request
    that may not go there goes to the next best that it may; of a request observation it is a batch of one.
    """

    def route(self, slots: Slots) -> Choices:
        """Return the argmin of backlog + max T_infer, among what is legal for each."""
        infer = np.where(slots.active[..., None], slots.pairs("infer_s"), 0.0)
        served = slots.destinations("backlog_s") + infer.max(axis=-2, initial=0.0)
        return lowest(np.broadcast_to(served[..., None, :], slots.legal.shape), slots.legal)
