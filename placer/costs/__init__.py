"""Seconds and bytes of a plan before it runs: compute, communication, memory, put together by timing."""
