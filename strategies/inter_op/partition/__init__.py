"""Exact cuts of a model into stages, for one outline."""
