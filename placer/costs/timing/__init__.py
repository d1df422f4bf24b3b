"""Seconds of a block, a stage, a step."""
