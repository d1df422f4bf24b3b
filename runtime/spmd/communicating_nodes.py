"""Which nodes of a rank's graph talk to the other ranks of its replica, forward or backward, and which have sizes that
depend on values."""

from __future__ import annotations

from torch import fx

from placer.runtime.spmd import graph_ops as forms
from placer.runtime.spmd import local_ops
from placer.runtime.spmd.conversions import CONVERSIONS
from placer.runtime.spmd.halo import exchange


def talks(node: fx.Node) -> bool:
    """Whether other ranks hear of it: a conversion, rows of neighbours, or an op with a collective inside."""
    if node.op != "call_function":
        return False
    inside = node.kwargs.get("inner")  # the local op along the inner of two axes
    if isinstance(inside, tuple | list) and inside[0] in local_ops.TALKING:
        return True
    target = node.target
    if target is exchange or target in forms.TALKING or target in CONVERSIONS.values():
        return True
    return any(target is forms.local_op(name) for name in local_ops.TALKING)


def varying(graph: fx.Graph) -> frozenset[fx.Node]:
    """The nodes of as many rows as routing sends to the rank's experts, from where these come to where they go back."""
    found: set[fx.Node] = set()
    for node in graph.nodes:
        back = node.target is forms.local_op("experts_from")
        if node.target is forms.local_op("experts_to") or not (back or found.isdisjoint(node.all_input_nodes)):
            found.add(node)
    return frozenset(found)
