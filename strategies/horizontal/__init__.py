"""Branches of a model on devices of their own, computed at the same time: plans whose stages are a graph.

search          which outlines are tried, and the best plan of all
earliest        a first placement: each block where it is finished first
placements      from a position for every block to a plan, and how a placement is judged
complete        every stage graph of a small model
descent         moving blocks and whole runs to other positions, as long as that helps
"""
