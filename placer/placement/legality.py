"""What a placement must respect, written once: devices, support, colours, memory, contiguity.

Nodes of one colour are one class, a node without colour is a class of its own. Class a comes before class b

    where an edge leads from a forward node of a to a forward node of b, and
    where an edge leads from a backward node of b to a backward node of a, and a or b has no forward node at all

(the second line is the mirror image by which orphaned backward nodes take part: Tarnawski et al., "Efficient
algorithms for device placement of DNN graph operators", NeurIPS 2020, appendix B). Backward nodes otherwise follow
their class and add no order of their own.

Contiguous: the classes can be laid out so that every device's classes are the difference of two down-closed sets, that
is, the devices follow each other without a cycle. In the latency form host nodes stand alone, one by one, and only the
accelerators are contracted. In free form and for the makespan, where a device does one node after the other, nothing
need be contiguous.
"""

from __future__ import annotations

import math
from typing import Literal

import networkx as nx

from placer.placement.evaluator import device_nodes
from placer.placement.problem import Placement, PlacementProblem

Form = Literal["contiguous", "free", "latency", "makespan"]

# Sums of sizes as large as 1e11 bytes are exact to far less than this share.
MEMORY_ROUNDING = 1e-12


def classes(problem: PlacementProblem) -> tuple[int, ...]:
    """The class of each node, numbered from 0 in the order of first appearance."""
    numbers: dict[tuple[str, int], int] = {}
    keys = (
        ("node", index) if node.colour is None else ("colour", node.colour) for index, node in enumerate(problem.nodes)
    )
    return tuple(numbers.setdefault(key, len(numbers)) for key in keys)


def precedences(problem: PlacementProblem, labels: tuple[int, ...]) -> frozenset[tuple[int, int]]:
    """Pairs of classes (before, after); cycles among them mean that those classes must share a device."""
    with_forward = {labels[index] for index, node in enumerate(problem.nodes) if not node.backward}
    found = set()
    for source, target in problem.edges:
        a, b = labels[source], labels[target]
        ends = problem.nodes[source].backward, problem.nodes[target].backward
        if ends == (False, False):
            found.add((a, b))
        elif ends == (True, True) and not {a, b} <= with_forward:
            found.add((b, a))
    return frozenset(pair for pair in found if pair[0] != pair[1])


def violations(problem: PlacementProblem, placement: Placement, form: Form) -> tuple[str, ...]:
    """Everything that `placement` breaks, in words; empty means legal."""
    if len(placement) != len(problem.nodes) or not all(0 <= device < problem.devices for device in placement):
        return (f"it places {len(placement)} nodes, each on one of {problem.devices} devices was asked",)
    return (
        *_unsupported(problem, placement),
        *_parted_colours(problem, placement),
        *_full_memories(problem, placement),
        *(_cycles(problem, placement, form) if form in ("contiguous", "latency") else ()),
    )


def _unsupported(problem: PlacementProblem, placement: Placement) -> tuple[str, ...]:
    """A node that accelerators do not support lies on a CPU."""
    return tuple(
        f"node {node.name} is not supported on {problem.device_name(device)}"
        for node, device in zip(problem.nodes, placement, strict=True)
        if device < problem.accelerators and not node.supported
    )


def _parted_colours(problem: PlacementProblem, placement: Placement) -> tuple[str, ...]:
    """Nodes of one colour share a device."""
    devices: dict[int, set[int]] = {}
    for node, device in zip(problem.nodes, placement, strict=True):
        if node.colour is not None:
            devices.setdefault(node.colour, set()).add(device)
    return tuple(f"colour {colour} lies on {len(found)} devices" for colour, found in devices.items() if len(found) > 1)


def _full_memories(problem: PlacementProblem, placement: Placement) -> tuple[str, ...]:
    """The sizes of an accelerator's nodes sum to at most its memory."""
    used = [
        math.fsum(problem.nodes[node].size for node in nodes)
        for nodes in device_nodes(problem, placement)[: problem.accelerators]
    ]
    return tuple(
        f"{problem.device_name(device)} holds {size:.0f} of {problem.memory:.0f} bytes"
        for device, size in enumerate(used)
        if size > problem.memory * (1 + MEMORY_ROUNDING)
    )


def _cycles(problem: PlacementProblem, placement: Placement, form: Form) -> tuple[str, ...]:
    """No two devices wait for each other in the order of the classes."""
    alone = form == "latency"
    labels = tuple(range(len(problem.nodes))) if alone else classes(problem)
    parts = {
        label: ("node", node) if alone and device >= problem.accelerators else ("device", device)
        for node, (label, device) in enumerate(zip(labels, placement, strict=True))
    }
    graph: nx.DiGraph[tuple[str, int]] = nx.DiGraph()
    graph.add_edges_from((parts[a], parts[b]) for a, b in sorted(precedences(problem, labels)) if parts[a] != parts[b])
    stuck = sorted(min(component) for component in nx.strongly_connected_components(graph) if len(component) > 1)
    return tuple(f"the sets around {kind} {index} wait for each other in a cycle" for kind, index in stuck)
