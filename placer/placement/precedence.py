"""Which classes of nodes must come before which: what a contiguous placement has to respect.

Nodes of one colour are one class, a node without colour is a class of its own. Class a comes before class b

    where an edge leads from a forward node of a to a forward node of b, and
    where an edge leads from a backward node of b to a backward node of a, and a or b has no forward node at all

(the second line is the mirror image by which orphaned backward nodes take part: Tarnawski et al., "Efficient
algorithms for device placement of DNN graph operators", NeurIPS 2020, appendix B). Backward nodes otherwise follow
their class and add no order of their own.
"""

from __future__ import annotations

from placer.placement.problem import PlacementProblem


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
