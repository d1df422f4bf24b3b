"""Shapes, dtypes and gradient need of the values of a captured graph for a number of rows, found by running it on fake
tensors: what a receiver must allocate, also where autocast or a cast of the model makes the dtype differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.graph import Node, saved_tensors_hooks

from placer.graph import Graph
from placer.runtime.stages.rewrite import first_argument, writes_buffer


def shapes_of(
    module: fx.GraphModule, graph: Graph, dtypes: Mapping[str, torch.dtype], *, rows: int, autocast: bool
) -> dict[fx.Node, TensorMeta]:
    """The shape of every tensor of `module` at `rows` rows; `dtypes` are those of its inputs."""
    device = next((tensor.device for tensor in module.parameters()), torch.device("cpu"))
    # Autocast knows no meta device, on which a model without weights lies.
    casting = torch.autocast(device.type, torch.bfloat16) if autocast else nullcontext()
    # No backward follows: nothing is kept for it, nor counted by who watches what the step keeps.
    with FakeTensorMode(allow_non_fake_inputs=True), casting, saved_tensors_hooks(_forgotten, _never):
        inputs = [
            torch.empty(entry.tensor.shape_at(rows), dtype=dtypes[entry.name], device=device) for entry in graph.inputs
        ]
        noting = _NotingShapes(module)
        results = noting.run(*inputs)
    return noting.noted([one for one in results if isinstance(one, torch.Tensor)])


def _forgotten(tensor: torch.Tensor) -> None:
    """Keep nothing of a tensor."""


def _never(kept: object) -> torch.Tensor:
    raise AssertionError("there is no backward here")


class _NotingShapes(fx.Interpreter):
    """Notes what every node gives."""

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module)
        self._found: dict[fx.Node, torch.Tensor] = {}

    def run_node(self, n: fx.Node) -> object:
        """Run one node and note its value."""
        # A buffer of one number has its value on fake tensors too: it would be written here.
        value = self.env[first_argument(n)] if writes_buffer(n) else super().run_node(n)
        if n.op == "get_attr" and isinstance(value, nn.Parameter):
            # Without memory it is one number seen as many, which does not lie in memory as the parameter does.
            value = torch.empty(value.shape, dtype=value.dtype, device=value.device, requires_grad=value.requires_grad)
        if isinstance(value, torch.Tensor):
            self._found[n] = value
        return value

    def noted(self, results: Sequence[torch.Tensor]) -> dict[fx.Node, TensorMeta]:
        """What was found, where gradients come back from `results`."""
        reached = _reached([found for result in results for found in _maker(result)])
        return {
            node: TensorMeta(tuple(map(int, value.shape)), value.dtype, not reached.isdisjoint(_maker(value)))
            for node, value in self._found.items()
        }


def _maker(value: torch.Tensor) -> tuple[Node, ...]:
    """The node of autograd that a gradient of `value` goes to; none where it has none."""
    if not value.requires_grad:
        return ()
    made = value.grad_fn if value.grad_fn is not None else value.view_as(value).grad_fn
    assert made is not None
    if value.grad_fn is not None:
        return (made,)
    leaf = made.next_functions[0][0]
    return () if leaf is None else (leaf,)


def _reached(roots: list[Node]) -> set[Node]:
    found, waiting = set(roots), list(roots)
    while waiting:
        for below, _ in waiting.pop().next_functions:
            if below is not None and below not in found:
                found.add(below)
                waiting.append(below)
    return found


@dataclass(frozen=True, slots=True)
class TensorMeta:
    """What a value looks like on the way: full shape for the rows at hand, dtype, whether a gradient of the loss comes
    back (not through a detach, an argmax, a region without gradients)."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    requires_grad: bool
