"""The source's experiments on recorded outcomes, beside what it published (DESIGN 6)."""
