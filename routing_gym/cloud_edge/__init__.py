"""Cloud–edge batches: each second a batch of requests is assigned to node–model pairs (DESIGN 4)."""
