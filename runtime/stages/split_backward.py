"""Backward in two parts, for zero-bubble schedules: first the gradients of a stage's inputs, later those of its
weights.

The autograd graph of a stage has nodes on a path from an output to an input (the *chain*) and nodes that lead to
weights only. The first part runs the chain and keeps, at each chain node that has a weight below it, the gradient that
arrived. The second part starts from those kept gradients, and from outputs outside the chain. The idea is that of
torch.distributed.pipelining (`_backward.py`), which loses outputs outside the chain and cannot detach outputs that
are views.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

import torch
from torch.autograd.graph import GradientEdge, Node

Gradients = tuple[torch.Tensor | None, ...]

# Nodes that are asked for their input's gradient too, where only their weights' are wanted: on CPUs torch 2.13 ends the
# process otherwise, where the input is channels-last, as it is behind attention over an image's places
# (test_torch_still_needs_the_input_of_a_group_norm notices when this can go).
_ASKED_WHOLE = ("NativeGroupNormBackward0",)


@dataclass(slots=True, eq=False)
class _Group:
    """Weights whose gradients come from the same chain nodes."""

    weights: list[torch.Tensor]
    nodes: set[Node]


@dataclass(slots=True)
class Deferred:
    """The second part of a backward: `run` adds the gradients of the weights to their `.grad`."""

    groups: list[_Group] = field(default_factory=list)
    arrived: dict[Node, Gradients] = field(default_factory=dict)
    roots: list[tuple[torch.Tensor, torch.Tensor]] = field(default_factory=list)
    weights: list[torch.Tensor] = field(default_factory=list)

    def run(self) -> None:
        """Compute the gradients of the weights; the graph is released afterwards."""
        for group in self.groups:
            self._run_group(group)
        if self.roots:
            outputs, gradients = zip(*self.roots, strict=True)
            _accumulate(
                self.weights,
                torch.autograd.grad(outputs, self.weights, gradients, allow_unused=True, retain_graph=True),
            )
        self.groups, self.arrived, self.roots = [], {}, []

    def _run_group(self, group: _Group) -> None:
        edges: list[GradientEdge] = []
        gradients: list[torch.Tensor] = []
        for node in group.nodes:
            for index, gradient in enumerate(self.arrived.get(node, ())):
                if gradient is not None:
                    edges.append(GradientEdge(node, index))
                    gradients.append(gradient)
        if not edges:
            return
        # A node of the group may lie below another: what reaches it again must not be counted twice.
        again = group.nodes if len(group.nodes) > 1 else ()
        wanted = [*(GradientEdge(_node(weight), 0) for weight in group.weights), *_asked_beside(group.nodes)]
        with _hooked(again, lambda node, _: self.arrived.get(node)):
            found = torch.autograd.grad(edges, wanted, gradients, allow_unused=True, retain_graph=True)
        _accumulate(group.weights, found[: len(group.weights)])


def backward_inputs(
    outputs: Sequence[torch.Tensor],
    gradients: Sequence[torch.Tensor],
    inputs: Sequence[torch.Tensor],
    weights: Iterable[torch.Tensor],
) -> Deferred:
    """Set `.grad` of `inputs` (leaves that require grad) and return what is left to do for `weights`.

    Without inputs the weights' gradients are computed at once: there is no chain to run ahead of them.
    """
    weights = [weight for weight in weights if weight.requires_grad]
    if not inputs:
        torch.autograd.backward(outputs, gradients)
        return Deferred()
    above = _edges_up([_node(output) for output in outputs])
    chain = _closure([_node(leaf) for leaf in inputs], above)
    deferred = Deferred(weights=weights, groups=_groups(weights, chain, above))
    pairs = list(zip(outputs, gradients, strict=True))
    deferred.roots = [pair for pair in pairs if _node(pair[0]) not in chain]
    inside = [pair for pair in pairs if _node(pair[0]) in chain]
    with _hooked((node for group in deferred.groups for node in group.nodes), deferred.arrived.__setitem__):
        if inside:
            roots, given = zip(*inside, strict=True)
            _accumulate(inputs, torch.autograd.grad(roots, inputs, given, retain_graph=True, allow_unused=True))
    return deferred


def _asked_beside(nodes: Iterable[Node]) -> Iterator[GradientEdge]:
    """Where the gradient of an input goes that is asked for and not used."""
    for node in nodes:
        below, place = node.next_functions[0] if node.name() in _ASKED_WHOLE else (None, 0)
        if below is not None:
            yield GradientEdge(below, place)


@contextmanager
def giving_zeros(outputs: Sequence[torch.Tensor]) -> Iterator[None]:
    """In the body a backward from `outputs` gives all leaves zeros: a gradient of zeros does not do that alone, where a
    derivative is no number."""
    leaves = [node for node in _edges_up([_node(output) for output in outputs]) if hasattr(node, "variable")]
    with _hooked(leaves, lambda _, gradients: tuple(map(_zeros, gradients))):
        yield


def _zeros(gradient: torch.Tensor | None) -> torch.Tensor | None:
    return None if gradient is None else torch.zeros_like(gradient)


def _accumulate(leaves: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor | None]) -> None:
    """Add to `.grad`, in its own type; the first is copied: autograd may give several leaves one tensor, or one number
    seen as many."""
    for leaf, gradient in zip(leaves, gradients, strict=True):
        if gradient is not None:
            if leaf.grad is None:
                leaf.grad = gradient.to(leaf.grad_dtype, copy=True, memory_format=torch.contiguous_format)
            else:
                leaf.grad = leaf.grad + gradient


def _node(tensor: torch.Tensor) -> Node:
    if tensor.grad_fn is not None:
        return tensor.grad_fn
    # The accumulator of a leaf is reached through any op on it.
    with torch.enable_grad():
        made = tensor.view_as(tensor).grad_fn
    assert made is not None and made.next_functions[0][0] is not None
    return made.next_functions[0][0]


def _edges_up(roots: list[Node]) -> dict[Node, list[Node]]:
    """For every node below `roots` the nodes directly above it."""
    above: dict[Node, list[Node]] = {root: [] for root in roots}
    waiting = list(above)
    while waiting:
        node = waiting.pop()
        for below, _ in node.next_functions:
            if below is not None:
                if below not in above:
                    above[below] = []
                    waiting.append(below)
                above[below].append(node)
    return above


def _closure(starts: list[Node], above: dict[Node, list[Node]]) -> set[Node]:
    """`starts` and everything above them."""
    found: set[Node] = set()
    waiting = [node for node in starts if node in above]
    while waiting:
        node = waiting.pop()
        if node not in found:
            found.add(node)
            waiting += above[node]
    return found


def _entries(weight: torch.Tensor, chain: set[Node], above: dict[Node, list[Node]]) -> set[Node]:
    """The chain nodes directly above the nodes that lead to `weight`."""
    found: set[Node] = set()
    seen: set[Node] = set()
    waiting = [_node(weight)]
    while waiting:
        node = waiting.pop()
        for higher in above.get(node, ()):
            if higher in chain:
                found.add(higher)
            elif higher not in seen:
                seen.add(higher)
                waiting.append(higher)
    return found


def _groups(weights: list[torch.Tensor], chain: set[Node], above: dict[Node, list[Node]]) -> list[_Group]:
    groups: list[_Group] = []
    for weight in weights:
        merged = _Group([weight], _entries(weight, chain, above))
        if not merged.nodes:
            continue
        for group in [g for g in groups if g.nodes & merged.nodes]:
            merged = _Group(group.weights + merged.weights, group.nodes | merged.nodes)
            groups.remove(group)
        groups.append(merged)
    return groups


@contextmanager
def _hooked(nodes: Iterable[Node], hook: Callable[[Node, Gradients], Gradients | None]) -> Iterator[None]:
    """In the body `hook` hears the gradients that arrive at `nodes`, and may give others in their place."""
    handles = [node.register_prehook(partial(hook, node)) for node in nodes]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
