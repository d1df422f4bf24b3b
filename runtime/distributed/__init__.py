"""Ranks: how they start, find each other, fail, wait, and hold tensors together."""
