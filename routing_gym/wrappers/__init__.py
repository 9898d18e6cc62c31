"""Wrappers: feature observations, and adapters for Stable-Baselines3, imported when they are used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from routing_gym.wrappers.features import FeatureObservation, VectorFeatureObservation
from routing_gym.wrappers.routers import as_sb3

if TYPE_CHECKING:
    from routing_gym.wrappers.sb3 import SB3VecEnv, make_sb3_env

__all__ = ["FeatureObservation", "SB3VecEnv", "VectorFeatureObservation", "as_sb3", "make_sb3_env"]


def __getattr__(name: str) -> Any:
    """Import what needs Stable-Baselines3, which may not be installed."""
    if name not in ("SB3VecEnv", "make_sb3_env"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from routing_gym.wrappers import sb3

    return getattr(sb3, name)
