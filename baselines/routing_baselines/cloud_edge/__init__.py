"""Fixed routers of cloud–edge batches (DESIGN 5)."""
