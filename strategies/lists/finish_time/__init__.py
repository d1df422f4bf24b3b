"""The finish time of a graph on devices that do one op at a time: list schedulers, annealing, and a lower bound.

search        what is tried in which order, for how long
annealing     from a placement to better ones, judged by the one player of device queues
relaxed       the lower bound, by what follows, and a placement to begin from
contraction   a part of the graph, its short tasks folded into the ways between the others
windows       heads and tails: how soon a task begins, how long it takes from there, by programs of parts
program       tasks as intervals in time, in any order or first come first served, for CP-SAT
"""
