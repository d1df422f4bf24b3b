"""The flow network of a data path, and the largest share of what devices ask for that it passes to all of them.

    source -> shared disks -> shared cards -> (card -> disks -> memory -> cores -> PCIe of alike nodes) -> devices

An edge is a resource with its samples a second. Training is synchronous: a device that gets less than its part makes
all others wait, so the flow wanted is `share` of every device's demand, not the largest flow in all. It is found by
Newton's method on minimum cuts: with the demand at `share`, a cut that is smaller than the demand bounds it,

    share <= capacity of the resources cut / demand of the devices behind them,

which is the next share, until the demand itself is a minimum cut; the last cut names what binds. Arithmetic is exact.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import networkx as nx

from placer.costs.data_path.resources import Branch, Resource

SOURCE, SINK = "source", "devices"


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """share: of the demand that every device gets, at most 1; binding: the resources of the minimum cut, none at 1."""

    share: Fraction
    binding: tuple[Resource, ...]


def sustained(shared: tuple[Resource, ...], branches: tuple[Branch, ...]) -> Flow:
    """What passes through shared storage and the branches behind it."""
    share, binding = Fraction(1), tuple[Resource, ...]()
    demands = [one.demand.rate * one.demand.count for one in branches]
    while True:
        graph = _graph(shared, branches, [rate * share for rate in demands])
        flow, (near, _) = nx.minimum_cut(graph, SOURCE, SINK)
        if flow == sum(demands) * share:
            return Flow(share=share, binding=binding)
        cut = [edge for edge in graph.edges if edge[0] in near and edge[1] not in near]
        binding = tuple(graph.edges[edge]["resource"] for edge in cut if edge[1] != SINK)
        served = sum(rate for i, rate in enumerate(demands) if (i, len(branches[i].chain)) in near)
        share = sum((one.capacity for one in binding), Fraction()) / (sum(demands) - served)


def _graph(shared: tuple[Resource, ...], branches: tuple[Branch, ...], demands: list[Fraction]) -> nx.DiGraph[object]:
    """A node before and after each resource; the last of a branch goes to the devices."""
    graph: nx.DiGraph[object] = nx.DiGraph()
    graph.add_node(SOURCE)
    end: object = SOURCE
    for step, resource in enumerate(shared):
        graph.add_edge(end, ("shared", step), capacity=resource.capacity, resource=resource)
        end = ("shared", step)
    for i, one in enumerate(branches):
        graph.add_edge(end if one.from_shared else SOURCE, (i, 0))
        for step, resource in enumerate(one.chain):
            graph.add_edge((i, step), (i, step + 1), capacity=resource.capacity, resource=resource)
        graph.add_edge((i, len(one.chain)), SINK, capacity=demands[i])
    return graph
