"""Learned routers: networks and training, folders of weights, and inference in NumPy."""

__all__: list[str] = []
