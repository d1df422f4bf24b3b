"""`local`: iterated local search over the moves."""
