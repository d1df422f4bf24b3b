"""The cheapest split of classes in two: an s-t min cut of a hypergraph with costs on both sides.

    min over S of  sum of inside(c), c in S  +  sum of outside(c), c not in S  +  sum of weight(P), P cut by S

Infinite costs force a class to the other side. A hyperedge becomes two auxiliary nodes, enter -> leave with its weight
and unlimited arcs from its members to enter and from leave to its members: cut exactly once when the members part
(Kolmogorov and Zabih, "What energy functions can be minimized via graph cuts?", 2004).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ortools.graph.python import max_flow

# Whole units of flow in all finite costs together: rounding down loses less than 1e-12 of them for each cost.
UNITS = 2.0**44
NEVER = 2**50
SOURCE, SINK = 0, 1


@dataclass(frozen=True, kw_only=True)
class HypergraphCut:
    """The least cost, rounded down, and the classes in S."""

    cost: float
    inside: frozenset[int]


def cheapest_split(
    inside: Sequence[float], outside: Sequence[float], hyperedges: Iterable[tuple[tuple[int, ...], float]]
) -> HypergraphCut:
    """The cheapest S. At most one of inside[c], outside[c] is infinite."""
    must = {index for index, cost in enumerate(outside) if math.isinf(cost)}
    never = {index for index, cost in enumerate(inside) if math.isinf(cost)}
    fixed = math.fsum(inside[index] for index in must) + math.fsum(outside[index] for index in never)
    free = sorted(set(range(len(inside))) - must - never)
    node = {index: position + 2 for position, index in enumerate(free)}
    node.update(dict.fromkeys(must, SOURCE) | dict.fromkeys(never, SINK))
    arcs = [(SOURCE, node[c], outside[c]) for c in free if outside[c] > 0]
    arcs += [(node[c], SINK, inside[c]) for c in free if inside[c] > 0]
    cut, gadgets = _gadgets(node, hyperedges)
    flow, side = _flow(arcs, gadgets, first_auxiliary=len(inside) + 2)
    return HypergraphCut(cost=fixed + cut + flow, inside=frozenset(c for c in range(len(inside)) if node[c] in side))


def _gadgets(
    node: dict[int, int], hyperedges: Iterable[tuple[tuple[int, ...], float]]
) -> tuple[float, list[tuple[frozenset[int], float]]]:
    """The weight that is cut in any case, and the hyperedges that are still open, over the nodes of the flow."""
    cut, found = 0.0, []
    for members, weight in hyperedges:
        nodes = frozenset(node[index] for index in members)
        if {SOURCE, SINK} <= nodes:
            cut += weight
        elif len(nodes) > 1:
            found.append((nodes, weight))
    return cut, found


def _flow(
    arcs: list[tuple[int, int, float]], gadgets: list[tuple[frozenset[int], float]], *, first_auxiliary: int
) -> tuple[float, frozenset[int]]:
    """The value of the largest flow, rounded down, and the source's side of a least cut."""
    total = math.fsum(cost for *_, cost in arcs) + math.fsum(weight for _, weight in gadgets)
    unit = UNITS / total if total > 0 else 1.0
    flow = max_flow.SimpleMaxFlow()
    for tail, head, cost in arcs:
        flow.add_arc_with_capacity(tail, head, math.floor(cost * unit))
    for number, (nodes, weight) in enumerate(gadgets):
        enter, leave = first_auxiliary + 2 * number, first_auxiliary + 2 * number + 1
        flow.add_arc_with_capacity(enter, leave, math.floor(weight * unit))
        for member in sorted(nodes):
            flow.add_arc_with_capacity(member, enter, NEVER)
            flow.add_arc_with_capacity(leave, member, NEVER)
    if flow.num_nodes() < 2:
        return 0.0, frozenset({SOURCE})
    flow.solve(SOURCE, SINK)
    return flow.optimal_flow() / unit, frozenset(flow.get_source_side_min_cut())
