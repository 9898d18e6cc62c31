"""Registers the environments with Gymnasium; importing `routing_gym` does it."""

from __future__ import annotations

import gymnasium as gym

# id, modules of the single and the vector environment, and the class
_FAMILIES = (
    ("InferenceCluster-v0", "cluster.env", "cluster.vector_env", "InferenceCluster"),
    ("CloudEdgeBatch-v0", "cloud_edge.env", "cloud_edge.vector_env", "CloudEdgeBatch"),
    ("CloudEdgeRequest-v0", "cloud_edge.request_env", "cloud_edge.vector_env", "CloudEdgeRequest"),
)


def register_environments() -> None:
    """Register every id once; a second call changes nothing.

    The `mo-` twins return their reward terms as a vector, which Gymnasium's checker refuses.
    """
    for name, single, vector, cls in _FAMILIES:
        for prefix, kind in (("", ""), ("mo-", "MO")):
            env_id = f"routing_gym/{prefix}{name}"
            if env_id not in gym.registry:
                gym.register(
                    id=env_id,
                    entry_point=f"routing_gym.{single}:{kind}{cls}",
                    vector_entry_point=f"routing_gym.{vector}:{kind}{cls}Vector",
                    disable_env_checker=bool(prefix),
                )
