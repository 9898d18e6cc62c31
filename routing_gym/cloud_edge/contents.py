"""What requests are, of whichever workload, and the numbers of an episode's streams (DESIGN 4)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from routing_gym.common.seeding import EpisodeStreams

Floats = NDArray[np.float64]
Singles = NDArray[np.float32]
SAME_FOR_ALL: Singles = np.zeros((0, 0), np.float32)

# One stream per kind of draw, by number. Each is asked once, so that the first requests of an episode are the
# same however many there are.
ARRIVALS, OUTAGE, LEGALITY, RTT = range(4)
TOPIC, DIFFICULTY, INPUT, OUTPUT, ANSWER, QUALITY, PREDICTION, MISREADING = range(4, 12)


class Contents(NamedTuple):
    """What n requests are, and what K models make of them; drawn before any decision.

    Token counts are whole numbers. `input_tokens` (n,); `output_tokens` (n, K) and at least 1, what each
    model would answer; `quality` (n, K) in [0, 1], the score of that answer; `topic` (n,). The rest is what a
    router is shown: `predicted_output_tokens` (n,) and at least 1, one figure of a request, and
    `predicted_by_model` (n, K), at least 1, what durations and prices are predicted from, or empty (0, 0)
    where that one figure holds for all models; `predicted_quality` (n, K) in [0, 1]; `cluster_error` (n, K),
    1 - the mean quality of each model over the cluster of prompts that the request seems to belong to.
    """

    input_tokens: Floats
    predicted_output_tokens: Floats
    output_tokens: Singles
    quality: Singles
    predicted_quality: Singles
    cluster_error: Singles
    topic: NDArray[np.int64]
    predicted_by_model: Singles = SAME_FOR_ALL


class ContentSource(ABC):
    """Draws what the requests of an episode are.

    Attributes:
        input_maximum, output_maximum, predicted_maximum: the largest `input_tokens`, `output_tokens` and
            predicted output tokens that it draws.
    """

    input_maximum: float
    output_maximum: float
    predicted_maximum: float

    @abstractmethod
    def maxima(self, input_tokens: float, output_tokens: float) -> tuple[float, float, float]:
        """Return the three maxima where token counts are given to `draw`, from the largest ones given."""

    @abstractmethod
    def draw(
        self, streams: EpisodeStreams, count: int, tokens: tuple[Floats, Floats] | None = None
    ) -> Contents:
        """Draw `count` requests, each kind of draw from its own stream.

        Args:
            streams: the episode's.
            count: n.
            tokens: input and output tokens (n,) of real arrivals, in place of drawn ones. Outputs are at
                least 1; how much longer or shorter each model answers, and how wrong predictions are, is
                still drawn. Recorded outcomes have token counts of their own and take no notice of these.
        """
