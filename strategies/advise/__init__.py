"""Searches of searches: which machines to rent for a model, and how much of it fits on machines one has."""
