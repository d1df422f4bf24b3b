"""Machines as values: devices, nodes, links; how they are written, found in the catalogue, measured."""
