"""Routers for the inference cluster (DESIGN 5). Each is a few lines over the observation."""
