"""What a kernel is to do with a row: leave it alone, start its loaded episode, step it, or only look."""

SKIP, START, STEP, OBSERVE = range(4)
