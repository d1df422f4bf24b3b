"""Writes in place become values: from a plain graph that writes to one that only computes, and keeps its buffers."""

from placer.tracer.functional.rewriting import functional

__all__ = ["functional"]
