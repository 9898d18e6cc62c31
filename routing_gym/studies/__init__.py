"""Declared studies: what is played, in shards, by processes or a Ray cluster, and what is on disk of it."""
