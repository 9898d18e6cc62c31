"""Evaluation: runs of routers × conditions × seeds, their statistics, and what is shown of them (DESIGN 6)."""
