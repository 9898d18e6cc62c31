"""Learned routers: training, networks and shipped weights live here, and come later."""

__all__: list[str] = []
