"""Shapes, dtypes and gradient need of the values of a captured graph for a number of rows, found by running it on fake
tensors: what a receiver must allocate, also where autocast or a cast of the model makes the dtype differ."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.graph import saved_tensors_hooks

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
        noting.run(*inputs)
    return noting.found


def _forgotten(tensor: torch.Tensor) -> None:
    """Keep nothing of a tensor."""


def _never(kept: object) -> torch.Tensor:
    raise AssertionError("there is no backward here")


class _NotingShapes(fx.Interpreter):
    """Notes what every node gives."""

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module)
        self.found: dict[fx.Node, TensorMeta] = {}

    def run_node(self, n: fx.Node) -> object:
        """Run one node and note its value."""
        # A buffer of one number has its value on fake tensors too: it would be written here.
        value = self.env[first_argument(n)] if writes_buffer(n) else super().run_node(n)
        if isinstance(value, torch.Tensor):
            self.found[n] = TensorMeta(tuple(map(int, value.shape)), value.dtype, bool(value.requires_grad))
        return value


@dataclass(frozen=True, slots=True)
class TensorMeta:
    """What a value looks like on the way: full shape for the rows at hand, dtype, whether gradients come back."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    requires_grad: bool
