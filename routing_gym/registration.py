"""Registers the environments with Gymnasium; importing `routing_gym` does it."""

from __future__ import annotations

import gymnasium as gym

# id, module, single and vector class, and whether the reward is a vector
_FAMILIES = (("InferenceCluster-v0", "routing_gym.cluster", "InferenceCluster"),)


def register_environments() -> None:
    """Register every id once; a second call changes nothing.

    The `mo-` twins return their reward terms as a vector, which Gymnasium's checker refuses.
    """
    for name, package, cls in _FAMILIES:
        for prefix, kind in (("", ""), ("mo-", "MO")):
            env_id = f"routing_gym/{prefix}{name}"
            if env_id not in gym.registry:
                gym.register(
                    id=env_id,
                    entry_point=f"{package}.env:{kind}{cls}",
                    vector_entry_point=f"{package}.vector_env:{kind}{cls}Vector",
                    disable_env_checker=bool(prefix),
                )
