"""The finish time of a graph on devices that do one op at a time: list schedulers, annealing, and a lower bound.

search      what is tried in which order, for how long
annealing   from a placement to better ones, judged by the one player of device queues
relaxed     the graph as intervals in time, in any order: a lower bound by CP-SAT, and a placement to begin from
"""
