"""What a model computes of a value and random numbers alone, in training only: paths that drop, noise.

    h * bernoulli(0.8, (rows, 1)) / 0.8     ->  in evaluation h
    h / 0.8 * floor(0.8 + rand(rows, 1))    ->  in evaluation h

Which lines draw in evaluation too is read of a graph of evaluation; whether the model gives there what is left is for
`evaluation_difference` to say. A run reads the marks, which are in the meta of nodes.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import fx

from placer.errors import CaptureError
from placer.tracer.export.cleaning import Plain, is_keyed, is_mutable, short_name
from placer.tracer.export.evaluation import IDLE, PASSES_ON
from placer.tracer.export.symbolic_rows import is_size

aten = torch.ops.aten

_JOINS = (aten.mul.Tensor, aten.mul_.Tensor, aten.add.Tensor, aten.add_.Tensor, aten.sub.Tensor, aten.sub_.Tensor)
_SCALES = (aten.mul.Tensor, aten.mul.Scalar, aten.div.Tensor, aten.div.Scalar)


#: What is called, and the module and line that call it.
Place = tuple[str, object, object]


def mark_paths(
    plain: Plain, evaluated: Callable[[], Plain], kept_on: frozenset[Place] | None
) -> frozenset[Place] | None:
    """Mark what passes a value on in evaluation, and draws that nothing else reads.

    kept_on: what joins random numbers in evaluation too, which is given back; None where it is read of `evaluated`,
    which is made only if needed.
    """
    numbers = _random(plain.graph)
    joins = _joins(plain.graph, numbers)
    if not joins:
        return kept_on
    if kept_on is None:
        try:
            kept = evaluated().graph
        except CaptureError:  # an evaluation is refused for it
            return None
        kept_on = frozenset(map(_place, _joins(kept, _random(kept))))
    for node, place in joins.items():
        if _place(node) not in kept_on and not is_mutable(node):
            _mark(node, place)
    for node in reversed(plain.graph.nodes):
        if node in numbers and node.users and all(_leaves_out(user, node) for user in node.users):
            node.meta[IDLE] = True
    return kept_on


def _place(node: fx.Node) -> Place:
    return short_name(node), node.meta.get("module"), node.meta.get("source")


def _mark(node: fx.Node, place: int) -> None:
    """The value at `place`, and before it what only makes up for rows that are dropped, is passed on."""
    node.meta[PASSES_ON] = place
    scaled = node.args[place]
    if isinstance(scaled, fx.Node) and scaled.target in _SCALES and list(scaled.users) == [node]:
        number = scaled.args[1]
        if isinstance(number, int | float) and not isinstance(number, bool) and node.target is aten.mul.Tensor:
            scaled.meta[PASSES_ON] = 0


def _leaves_out(user: fx.Node, node: fx.Node) -> bool:
    """Whether evaluation leaves out that `user` reads `node`."""
    if IDLE in user.meta:
        return True
    place = user.meta.get(PASSES_ON)
    return place is not None and user.args[place] is not node


def _joins(graph: fx.Graph, numbers: set[fx.Node]) -> dict[fx.Node, int]:
    """Ops that join a value with random numbers -> the place of the value among their arguments."""
    found: dict[fx.Node, int] = {}
    for node in graph.nodes:
        if node.target not in _JOINS or node in numbers or node.kwargs:
            continue
        drawn = [isinstance(one, fx.Node) and one in numbers for one in node.args]
        if drawn == [False, True] and isinstance(node.args[0], fx.Node):
            found[node] = 0
        elif drawn == [True, False] and isinstance(node.args[1], fx.Node) and short_name(node) != "sub":
            found[node] = 1
    return found


def _random(graph: fx.Graph) -> set[fx.Node]:
    """The nodes that keyed draws and numbers alone make."""
    made, plain = set[fx.Node](), set[fx.Node]()
    for node in graph.nodes:
        if node.op != "call_function":
            continue
        read = [one for one in _read(node) if not is_size(one)]
        if any(one not in made and one not in plain for one in read):
            continue
        (made if is_keyed(node) or any(one in made for one in read) else plain).add(node)
    return made


def _read(node: fx.Node) -> list[fx.Node]:
    """The nodes whose values a call reads: of some it takes the size and the type alone."""
    name = short_name(node)
    if name in ("sym_size", "new_empty", "new_zeros", "new_ones", "new_full") or name.endswith("_like"):
        return []
    return node.all_input_nodes
