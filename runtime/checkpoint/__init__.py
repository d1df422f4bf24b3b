"""Checkpoints that are complete or do not exist."""
