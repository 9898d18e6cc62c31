"""Fixed routers: the documented heuristics, this project's own, and the yardsticks."""
