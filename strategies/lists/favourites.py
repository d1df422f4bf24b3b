"""The favourite child of each task, by the linear program of Hanen and Munier (1995), which Baechi's m-SCT takes over.

    minimise    w
    with        s_j >= s_i + p_i + c_ij x_ij     of each edge: x_ij = 0 where j is the favourite child of i
                w >= s_i + p_i                   of each task
                sum of x_ij over j >= children of i - 1      at most one favourite child
                sum of x_ij over i >= parents of j - 1       at most one favourite parent
                0 <= x_ij <= 1,  s_i >= 0

p are mean seconds of tasks, c of edges. Rounded: x < 1/2 is a favourite. Of two x below 1/2 the sum of all would be
less than their number - 1, so that nobody has two.
"""

from __future__ import annotations

from collections.abc import Iterable

from ortools.math_opt.python import mathopt

from placer.strategies.intra_op.linear_program import LinearProgram
from placer.strategies.lists.task_graph import Edge, TaskGraph

FAVOURITE = 0.5


def favourites(tasks: TaskGraph) -> dict[int, Edge]:
    """Of each task that has one, the edge to its favourite child."""
    edges = _between(tasks)
    total = sum(tasks.mean_seconds) + sum(map(tasks.mean_transfer, edges))
    if not edges or not total:
        return {}
    program = LinearProgram()
    apart = [program.variable() for _ in edges]
    # Starts as shares of all seconds together: a program of numbers near 1.
    start = [program.variable() for _ in tasks.names]
    whole = program.variable()
    program.spend(whole, 1.0)
    for task, seconds in enumerate(tasks.mean_seconds):
        program.constrain([(whole, 1.0), (start[task], -1.0)], seconds / total, float("inf"))
    for edge, x in zip(edges, apart, strict=True):
        terms = [(start[edge.target], 1.0), (start[edge.source], -1.0), (x, -tasks.mean_transfer(edge) / total)]
        program.constrain(terms, tasks.mean_seconds[edge.source] / total, float("inf"))
    for ends in (_by(edge.source for edge in edges), _by(edge.target for edge in edges)):
        for own in ends:
            program.constrain([(apart[index], 1.0) for index in own], len(own) - 1, float("inf"))
    found = program.solve(mathopt.SolverType.GLOP)
    assert found is not None  # all x = 1 is a solution
    return {edge.source: edge for edge, x in zip(edges, apart, strict=True) if found.variables[x] < FAVOURITE}


def _between(tasks: TaskGraph) -> list[Edge]:
    """One edge of each pair of tasks, the dearest."""
    dearest: dict[tuple[int, int], Edge] = {}
    for edge in tasks.edges:
        ends = edge.source, edge.target
        if ends not in dearest or tasks.mean_transfer(edge) > tasks.mean_transfer(dearest[ends]):
            dearest[ends] = edge
    return list(dearest.values())


def _by(ends: Iterable[int]) -> list[list[int]]:
    """The numbers of the edges at each end."""
    found: dict[int, list[int]] = {}
    for index, end in enumerate(ends):
        found.setdefault(end, []).append(index)
    return list(found.values())
