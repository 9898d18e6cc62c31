"""The inference cluster: a router in front of a few unequal replicas (DESIGN 3)."""
