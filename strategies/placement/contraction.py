"""A placement problem with everything that must share a device folded into one class.

Folded together: nodes of one colour; classes that wait for each other in a cycle, where placements must be contiguous;
and (merge) a class without compute into the only class it touches: moving it there removes a transfer and adds nothing.
Only its bytes may stand in the way, so a merge is exact where memory cannot bind or the class has no bytes; otherwise
`bytes_of_merged` chooses: "counted" asks too much of memory (every placement found is legal), "free" too little (every
bound holds).

Communication becomes a hypergraph. The output of node x touches P(x) = {class of x} and the classes of its readers. A
device with the set S pays send(x) exactly if P(x) lies partly in S and partly outside, whichever way the data flows:

    load(S) = sum of accelerator(c), c in S  +  sum of weight(P) over the hyperedges P cut by S.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import networkx as nx

from placer.placement.legality import classes, precedences
from placer.placement.problem import PlacementProblem
from placer.strategies.engine.ideals import Priority, by_number, greedy_order, members, prefixes, turned

Bytes = Literal["counted", "free"]
ClassGraph: TypeAlias = "nx.DiGraph[int]"

# Of one addition, as a share of its result.
BIT = sys.float_info.epsilon


@dataclass(frozen=True, kw_only=True)
class Folded:
    """Classes 0..n-1 in a topological order, their costs, the bits of their predecessors, the weighted hyperedges."""

    labels: tuple[int, ...]
    accelerator: tuple[float, ...]
    host: tuple[float, ...]
    size: tuple[float, ...]
    supported: tuple[bool, ...]
    needs: tuple[int, ...]
    hyperedges: tuple[tuple[tuple[int, ...], float], ...]

    @property
    def count(self) -> int:
        """How many classes there are."""
        return len(self.host)


def fold(
    problem: PlacementProblem, *, merge: bool = True, bytes_of_merged: Bytes = "counted", ordered: bool = True
) -> Folded:
    """`problem` folded; `merge` says whether classes without compute join their only neighbour.

    Without `ordered` no class comes before another and cycles fold nothing: right where nothing need be contiguous.
    """
    own = classes(problem)
    condensed = nx.condensation(_graph(precedences(problem, own) if ordered else (), own))
    component: dict[int, int] = condensed.graph["mapping"]
    found = _folded(problem, tuple(component[label] for label in own), _graph(condensed.edges))
    while merge and (targets := _merges(problem, found)):
        found = _merged(problem, found, targets, bytes_of_merged)
    return found


def _graph(edges: Iterable[tuple[int, int]], nodes: Iterable[int] = ()) -> ClassGraph:
    """Edges given to the constructor would make networkx import pandas, half a second."""
    graph: ClassGraph = nx.DiGraph()
    graph.add_nodes_from(sorted(set(nodes)))
    graph.add_edges_from(sorted(edges))
    return graph


def memory_can_bind(problem: PlacementProblem) -> bool:
    """Whether some set of nodes is too large for an accelerator."""
    return sum(node.size for node in problem.nodes) > problem.memory


def _folded(problem: PlacementProblem, labels: tuple[int, ...], order: ClassGraph) -> Folded:
    """Classes renumbered topologically, the smallest old number first."""
    order.add_nodes_from(labels)
    number = {label: index for index, label in enumerate(nx.lexicographical_topological_sort(order))}
    labels = tuple(number[label] for label in labels)
    needs = [0] * len(number)
    for a, b in order.edges:
        needs[number[b]] |= 1 << number[a]
    sums = [[0.0, 0.0, 0.0, 1.0] for _ in number]
    for node, label in zip(problem.nodes, labels, strict=True):
        row = sums[label]
        row[0] += node.accelerator
        row[1] += node.host
        row[2] += node.size
        row[3] = min(row[3], float(node.supported))
    accelerator, host, size, supported = zip(*sums, strict=True)
    return Folded(
        labels=labels, accelerator=accelerator, host=host, size=size, supported=tuple(map(bool, supported)),
        needs=tuple(needs), hyperedges=hyperedges(problem, labels),
    )  # fmt: skip


def hyperedges(problem: PlacementProblem, labels: tuple[int, ...]) -> tuple[tuple[tuple[int, ...], float], ...]:
    """P(x) and its weight, equal sets added up; what cannot be cut or costs nothing is left out."""
    weights: dict[tuple[int, ...], float] = {}
    for index, readers in enumerate(problem.successors):
        touched = tuple(sorted({labels[index], *(labels[reader] for reader in readers)}))
        if len(touched) > 1 and problem.nodes[index].send > 0:
            weights[touched] = weights.get(touched, 0.0) + problem.nodes[index].send
    return tuple(sorted(weights.items()))


def _merges(problem: PlacementProblem, found: Folded) -> Mapping[int, int]:
    """Class without compute -> the only class it touches; no class takes part in two merges of one round."""
    touched = [set(members(before | after)) for before, after in zip(found.needs, turned(found.needs), strict=True)]
    for source, target in problem.edges:
        touched[found.labels[source]].add(found.labels[target])
        touched[found.labels[target]].add(found.labels[source])
    targets: dict[int, int] = {}
    taken: set[int] = set()
    for index, others in enumerate(touched):
        rest = others - {index}
        empty = found.accelerator[index] == 0 == found.host[index] and found.supported[index]
        if empty and len(rest) == 1 and not taken & {index, *rest}:
            targets[index] = min(rest)
            taken |= {index, *rest}
    return targets


def _merged(problem: PlacementProblem, found: Folded, targets: Mapping[int, int], bytes_of_merged: Bytes) -> Folded:
    order: ClassGraph = nx.DiGraph()
    for index, earlier in enumerate(found.needs):
        ends = ((targets.get(other, other), targets.get(index, index)) for other in members(earlier))
        order.add_edges_from((a, b) for a, b in ends if a != b)
    labels = tuple(targets.get(label, label) for label in found.labels)
    merged = _folded(problem, labels, order)
    if bytes_of_merged == "counted":
        return merged
    # Sizes are carried along, not summed afresh: what an earlier round left out stays left out.
    size = [0.0] * merged.count
    for old, new in dict(zip(found.labels, merged.labels, strict=True)).items():
        if old not in targets:
            size[new] = found.size[old]
    return replace(merged, size=tuple(size))


def everything(folded: Folded) -> float:
    """More than any load."""
    return _total(folded) * (1 + 2 * BIT * _terms(folded)) + 1.0


def rounding_of_sums(folded: Folded) -> float:
    """What a load can be off by that is the difference of two sums over classes: little of these, maybe much of it."""
    return _total(folded) * BIT * _terms(folded)


def _total(folded: Folded) -> float:
    return math.fsum(folded.host) + math.fsum(folded.accelerator) + math.fsum(w for _, w in folded.hyperedges)


def _terms(folded: Folded) -> int:
    return 2 * folded.count + len(folded.hyperedges)


def topological_orders(folded: Folded) -> tuple[tuple[int, ...], ...]:
    """A few orders that differ: by number, depth first, light classes first, heavy classes first."""
    priorities: tuple[Priority, ...] = (
        by_number,
        lambda _, __, ready: -ready,
        lambda index, _, __: folded.accelerator[index],
        lambda index, _, __: -folded.accelerator[index],
    )
    return tuple(greedy_order(folded.needs, priority) for priority in priorities)


def along_orders(folded: Folded) -> tuple[int, ...]:
    """The ideals along them."""
    return tuple(sorted({ideal for order in topological_orders(folded) for ideal in prefixes(order)}))
