"""Reader of the dnn-partitioning files (Tarnawski et al., NeurIPS 2020; github.com/msr-fiddle/dnn-partitioning).

JSON: maxFPGAs, maxCPUs, maxSizePerFPGA (bytes); nodes: id, fpgaLatency and cpuLatency (ms), size (bytes, 0 where
missing), supportedOnFpga, isBackwardNode, colorClass (optional); edges: sourceId, destId, cost (ms; the same on every
edge out of a node).
"""

from __future__ import annotations

from collections.abc import Mapping

import networkx as nx

from placer.errors import UsageError
from placer.placement.formats import PlaceRequest, parsed_json
from placer.placement.formats.fields import Fields
from placer.placement.problem import PlacementNode, PlacementProblem

# Two costs of one node's output that differ by less are one (the tolerance of the published programs).
SAME_COST = 1e-6


def read(text: str, name: str, request: PlaceRequest) -> PlacementProblem:
    """The problem in `text`. Raises UsageError with the field for what is missing, negative or contradictory."""
    top = Fields.of(parsed_json(text, name), name, "")
    entries = top.objects("nodes")
    if not entries:
        raise top.wrong("nodes", "is empty, at least one node was expected")
    if top.count("maxFPGAs") + top.count("maxCPUs") == 0:
        raise top.wrong("maxFPGAs", "and maxCPUs are both 0, at least one device was expected")
    index = _index(entries)
    edges = tuple((_end(edge, "sourceId", index), _end(edge, "destId", index)) for edge in top.objects("edges"))
    sends = _sends(top.objects("edges"), edges)
    problem = PlacementProblem(
        nodes=tuple(_node(entry, sends.get(number, 0.0)) for number, entry in enumerate(entries)),
        edges=edges,
        accelerators=request.devices or top.count("maxFPGAs"),
        cpus=top.count("maxCPUs"),
        memory=request.memory or top.number("maxSizePerFPGA"),
    )
    _require_order(problem, name)
    return problem


def _node(entry: Fields, send: float) -> PlacementNode:
    return PlacementNode(
        name=str(entry.identity("id")),
        accelerator=entry.number("fpgaLatency"),
        host=entry.number("cpuLatency"),
        size=entry.number("size", default=0.0),
        send=send,
        supported=entry.flag("supportedOnFpga"),
        backward=entry.flag("isBackwardNode", default=False),
        colour=entry.colour("colorClass"),
    )


def _index(entries: tuple[Fields, ...]) -> dict[int | str, int]:
    """Where each id stands."""
    found: dict[int | str, int] = {}
    for number, entry in enumerate(entries):
        if found.setdefault(entry.identity("id"), number) != number:
            raise entry.wrong("id", f"is {entry.identity('id')}, which another node has too")
    return found


def _end(edge: Fields, field: str, index: Mapping[int | str, int]) -> int:
    """The node at one end of an edge."""
    if edge.identity(field) not in index:
        raise edge.wrong(field, f"is {edge.identity(field)}, which is no node's id")
    return index[edge.identity(field)]


def _sends(entries: tuple[Fields, ...], edges: tuple[tuple[int, int], ...]) -> dict[int, float]:
    """What the output of each node costs to move: the cost its edges agree on."""
    found: dict[int, float] = {}
    for entry, (source, _) in zip(entries, edges, strict=True):
        cost = entry.number("cost")
        if abs(found.setdefault(source, cost) - cost) > SAME_COST:
            raise entry.wrong(
                "cost", f"is {cost}, another edge out of that node costs {found[source]}; a node's output has one cost"
            )
    return found


def _require_order(problem: PlacementProblem, name: str) -> None:
    """Raise UsageError for a cycle, and for a forward node that reads a backward one."""
    for source, target in problem.edges:
        if problem.nodes[source].backward and not problem.nodes[target].backward:
            ends = f"{problem.nodes[source].name} to forward node {problem.nodes[target].name}"
            raise UsageError(f"{name}: an edge leads from backward node {ends}; take it out")
    require_acyclic(problem, name)


def require_acyclic(problem: PlacementProblem, name: str) -> None:
    """Raise UsageError with the nodes of a cycle of edges, if there is one."""
    graph: nx.DiGraph[int] = nx.DiGraph()
    graph.add_edges_from(problem.edges)
    loops = [(node, node) for node in nx.nodes_with_selfloops(graph)]
    if not loops and nx.is_directed_acyclic_graph(graph):
        return
    cycle = loops[:1] or nx.find_cycle(graph)
    path = " -> ".join(problem.nodes[edge[0]].name for edge in cycle)
    raise UsageError(f"{name}: the edges form a cycle, {path} -> {problem.nodes[cycle[0][0]].name}; take one out")
