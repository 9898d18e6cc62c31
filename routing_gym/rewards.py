"""Named weightings of each family's reward terms."""

from __future__ import annotations

from collections.abc import Callable, Sequence

# Minus each, normalised by the batch's bounds; weighted by ω they are -J (DESIGN 4).
CLOUD_EDGE_TERMS = ("quality_loss", "cost", "energy", "completion_time")
CLUSTER_TERMS = ("on_time", "late", "shed", "latency_sum", "outstanding_integral")

# DESIGN 3; the deadline in ms scales the latency weighting to deadlines.
CLUSTER_WEIGHTINGS: dict[str, Callable[[float], tuple[float, ...]]] = {
    "on_time": lambda deadline: (1.0, 0.0, 0.0, 0.0, 0.0),
    "slo": lambda deadline: (1.0, -1.0, -1.0, 0.0, 0.0),
    "latency": lambda deadline: (0.0, 0.0, -10.0, -1.0 / deadline, 0.0),
    "weighted": lambda deadline: (1.0, -1.0, -1.0, 0.0, -1.0 / 1000.0),
}


def cluster_weights(reward: str | Sequence[float], deadline_ms: float) -> tuple[float, ...]:
    """Return the weights of `CLUSTER_TERMS`: on time, late, shed (counts), latency and outstanding (ms).

    Args:
        reward: the name of a weighting, or five weights.
        deadline_ms: the deadline, which scales the `latency` weighting.

    Raises:
        ValueError: an unknown name, or not five weights.
    """
    if isinstance(reward, str):
        if reward not in CLUSTER_WEIGHTINGS:
            raise ValueError(f"reward = {reward!r}: must be one of {', '.join(CLUSTER_WEIGHTINGS)}")
        return CLUSTER_WEIGHTINGS[reward](deadline_ms)
    weights = tuple(float(weight) for weight in reward)
    if len(weights) != len(CLUSTER_TERMS):
        raise ValueError(f"reward = {reward!r}: needs {len(CLUSTER_TERMS)} weights, one for each reward term")
    return weights
