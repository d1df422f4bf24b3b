"""Graphs with given costs onto devices, with a proof."""
