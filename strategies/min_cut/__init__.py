"""Static optimisation on a model's own graph: the engines of `placer place` on the blocks of a captured model.

search        which outlines are tried, and the best plan of what the engines answer
given_costs   from a model's blocks under an outline to a graph with given costs
"""
