"""Reader of the dnn-partitioning files (Tarnawski et al., NeurIPS 2020; github.com/msr-fiddle/dnn-partitioning).

JSON: maxFPGAs, maxCPUs, maxSizePerFPGA (bytes); nodes: id, fpgaLatency and cpuLatency (ms), size (bytes, 0 where
missing), supportedOnFpga, isBackwardNode, colorClass (optional); edges: sourceId, destId, cost (ms; the same on every
edge out of a node).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import networkx as nx

from placer.errors import UsageError
from placer.placement.formats import PlaceRequest, parsed_json
from placer.placement.problem import PlacementNode, PlacementProblem

# Two costs of one node's output that differ by less are one (the tolerance of the published programs).
SAME_COST = 1e-6


def read(text: str, name: str, request: PlaceRequest) -> PlacementProblem:
    """The problem in `text`. Raises UsageError with the field for what is missing, negative or contradictory."""
    request.require_no_more_than(of="dnn-partitioning")
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Fields:
    """A JSON object at `where` ("nodes[3]") of the file `name`; the methods raise UsageError with field and remedy."""

    name: str
    where: str
    values: dict[str, object]

    @classmethod
    def of(cls, value: object, name: str, where: str) -> Fields:
        """`value` as an object."""
        if not isinstance(value, dict):
            at = where or "the whole file"
            raise UsageError(f"{name}: {at} is {_kind(value)}, an object with fields was expected; mend it")
        return cls(name=name, where=where, values=value)

    def number(self, field: str, *, default: float | None = None) -> float:
        """A finite number of at least 0."""
        value = self._get(field, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.wrong(field, f"is {_kind(value)}, a number was expected")
        if not math.isfinite(value) or value < 0:
            raise self.wrong(field, f"is {value}, a finite number of at least 0 was expected")
        return float(value)

    def count(self, field: str) -> int:
        """A whole number of at least 0."""
        value = self.number(field)
        if value != int(value):
            raise self.wrong(field, f"is {value}, a whole number was expected")
        return int(value)

    def flag(self, field: str, *, default: bool | None = None) -> bool:
        """true, false, 1 or 0."""
        value = self._get(field, default)
        if value not in (True, False):
            raise self.wrong(field, f"is {value!r}, true, false, 1 or 0 was expected")
        return bool(value)

    def identity(self, field: str) -> int | str:
        """A whole number or a text."""
        value = self._get(field, None)
        if isinstance(value, bool) or not isinstance(value, int | str):
            raise self.wrong(field, f"is {_kind(value)}, a whole number or a text was expected")
        return value

    def colour(self, field: str) -> int | None:
        """A whole number, or nothing."""
        value = self.values.get(field)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
            raise self.wrong(field, f"is {_kind(value)}, a whole number was expected")
        return value

    def objects(self, field: str) -> tuple[Fields, ...]:
        """A list of objects."""
        value = self._get(field, None)
        if not isinstance(value, list):
            raise self.wrong(field, f"is {_kind(value)}, a list was expected")
        prefix = f"{self.where}.{field}" if self.where else field
        return tuple(Fields.of(entry, self.name, f"{prefix}[{index}]") for index, entry in enumerate(value))

    def wrong(self, field: str, found: str) -> UsageError:
        """The complaint about `field`."""
        at = f"{self.where}.{field}" if self.where else field
        return UsageError(f"{self.name}: {at} {found}; mend that field")

    def _get(self, field: str, default: object) -> object:
        value = self.values.get(field, default)
        if value is None:
            raise self.wrong(field, "is missing")
        return value


def _kind(value: object) -> str:
    kinds = {dict: "an object", list: "a list", str: "a text", bool: "true or false", type(None): "nothing"}
    return kinds.get(type(value), f"the number {value}")
