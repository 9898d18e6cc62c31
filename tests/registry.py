"""Which registered routers the tests of all routers can play."""

from __future__ import annotations

from routing_agents.learned import shipped
from routing_gym.policy import list_policies


def playable(family: str) -> list[str]:
    """Return the family's routers; a learned one is among them where its default weights ship."""
    learned = f"{family}/learned"
    return [name for name in list_policies(family) if name != learned or "default" in shipped(family)]
