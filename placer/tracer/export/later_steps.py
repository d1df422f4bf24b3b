"""Whether a step that finds the tensors which the first one left computes what the first one did.

A cache may stand in place of what was computed from constants and sizes alone: masks, tables of positions, also those
of frequencies in a buffer that no step writes. What the first step kept of its batch or of its weights is another
tensor than a later step would compute.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import fx, nn
from torch.utils import _pytree

from placer.errors import CaptureError, UncapturableError
from placer.tracer.export.cleaning import (
    Plain,
    is_keyed,
    is_mutable,
    is_random,
    own_state,
    short_name,
    target_name,
    told,
    writes_statistics,
)
from placer.tracer.export.state.kept_values import Kept

# Of a tensor they take the sizes alone.
_OF_SIZES = frozenset({
    "zeros_like", "ones_like", "full_like", "empty_like", "new_zeros", "new_ones", "new_full", "new_empty",
})  # fmt: skip


# A model that builds what it keeps in more steps than so many is looked at no further.
_MOST_STEPS = 5


def require_alike_later(
    model: nn.Module, kept: Kept, device: str | torch.device, plain: Callable[[int], Plain]
) -> None:
    """Steps that find the tensors which those before them left compute what the first did and replace none that they
    read. Raises UncapturableError. plain: the graph of the next step, for so many rows.

    The second step finds what the first left, the third also what the second left, and so on until a step leaves
    nothing new.
    """
    try:
        first = plain(kept.rows)
        for step in range(2, _MOST_STEPS + 1):
            places = len(kept.left.places)
            with kept.left.standing(model, device) as any_left:
                why = later_difference(first, plain(kept.rows), model) if any_left else ""
            if why:
                break
            if step > 2 and places == len(kept.left.places):
                return
        else:
            why = "leaves a tensor where the one before left none, and so do those after it"
    except UncapturableError:
        raise
    except CaptureError:
        return  # a cache that was made for other rows
    if why:
        raise UncapturableError(
            f"a step after the first {why}: an export holds the first alone; make in __init__ what is kept, or keep it "
            "in a buffer that every step writes"
        )


def later_difference(first: Plain, later: Plain, model: nn.Module) -> str:
    """Where the graph of a later step of `model` parts from that of the first, at the same rows; "" where nowhere."""
    own = own_state(model)
    unknown = [_results(first), _results(later)]
    pairs = list(zip(*unknown, strict=False))
    if len(unknown[0]) != len(unknown[1]):
        return "gives other results"
    seen: set[tuple[fx.Node, fx.Node]] = set()
    unwritten = {name for name, _ in model.named_buffers()} - _written(first) - _written(later)
    steady = _Steady(own.keys() - unwritten)
    while pairs:
        pair = pairs.pop()
        if pair in seen:
            continue
        seen.add(pair)
        one, other = pair = pair[0], _uncut(pair[1], later)
        if _is_constant(other, own):
            if not steady.holds(one):
                return f"reads what an earlier one has left in place of {told(one)}"
            continue
        if (one.op, one.target) != (other.op, other.target):
            return f"computes {told(other)} in place of {told(one)}"
        ours, theirs = (_pytree.tree_leaves((node.args, node.kwargs)) for node in pair)
        for a, b in zip(ours, theirs, strict=False):
            if isinstance(a, fx.Node) and isinstance(b, fx.Node):
                pairs.append((a, b))
            elif isinstance(a, fx.Node) != isinstance(b, fx.Node) or repr(a) != repr(b):
                return f"computes {told(other)} with {b} in place of {a}"
        if len(ours) != len(theirs):
            return f"calls {told(other)} otherwise"
    return ""


class _Steady:
    """Which nodes have the same value in every step: they depend on constants and sizes alone."""

    def __init__(self, own: Collection[str]) -> None:
        self._own, self._known = own, dict[fx.Node, bool]()

    def holds(self, node: fx.Node) -> bool:
        """Whether this one has."""
        for one in node.graph.nodes:
            if one not in self._known:
                self._known[one] = self._is_steady(one)
        return self._known[node]

    def _is_steady(self, node: fx.Node) -> bool:
        if node.op != "call_function":
            return _is_constant(node, self._own)
        if short_name(node) in _OF_SIZES:
            return True
        return not (is_random(node) or is_keyed(node)) and all(self._known[one] for one in node.all_input_nodes)


def _uncut(node: fx.Node, plain: Plain) -> fx.Node:
    """The tensor of which a node takes all, as a cache is cut to the length at hand; else the node itself."""
    held, cuts = node, list[tuple[Any, ...]]()
    while short_name(held) == "slice" and isinstance(held.args[0], fx.Node):
        cuts.append((*held.args[1:], *(0, None, None, 1)[len(held.args) - 1 :]))
        held = held.args[0]
    plainly = all(isinstance(end, int | None) for cut in cuts for end in cut)
    if held.op != "get_attr" or str(held.target) not in plain.state or not plainly:
        return node
    sizes = plain.state[str(held.target)].shape
    spans = [(sizes[dim], slice(start, end, step).indices(sizes[dim])) for dim, start, end, step in cuts]
    return held if all(len(range(*span)) == size for size, span in spans) else node


def _written(plain: Plain) -> set[str]:
    """The tensors of the model that ops of the graph write, or may: of norms' statistics no schema says so."""
    users = [(node, user) for node in plain.graph.nodes if node.op == "get_attr" for user in node.users]
    return {str(node.target) for node, user in users if is_mutable(user) or writes_statistics(user)}


def _results(plain: Plain) -> list[fx.Node]:
    writes = [node for node in plain.graph.nodes if target_name(node) == "aten::copy_"]
    return [*plain.graph.output_node().all_input_nodes, *writes]


def _is_constant(node: fx.Node, own: Collection[str]) -> bool:
    return node.op == "get_attr" and str(node.target) not in own
