"""Evaluation: runs of routers × conditions × seeds, their statistics and reports (DESIGN 6)."""
