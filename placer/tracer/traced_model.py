"""trace(model) -> Traced: the same graph as `capture` finds, over real weights, to be cut into stages and run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from torch import fx, nn
from torch.utils import _pytree

from placer.errors import StalePlanError
from placer.graph import Graph
from placer.rules.opaque import OpaqueCost
from placer.tracer.capturing import Captured, Source, captured
from placer.tracer.export.cleaning import Plain, own_state
from placer.tracer.export.exporting import LossFunction
from placer.tracer.export.lost_constants import lost, regained
from placer.tracer.export.opaque import bind, parts_of
from placer.tracer.export.state.shared_memory import require_memory_apart
from placer.tracer.export.torchs_own.failures import MixedDevicesError
from placer.tracer.graph_builder import references
from placer.tracer.inputs.batches import Batch, BatchInput, BatchLike, normalised
from placer.tracer.inputs.weightless import on_meta
from placer.tracer.selections.products import Products

T = TypeVar("T")
STALE, AGAIN = "the plan is stale, this has changed: ", "Plan again with `placer plan`"


@dataclass(frozen=True, kw_only=True)
class Traced:
    """A whole model as a graph that runs: `module(*inputs in the order of input_names)` gives a tuple of outputs.

    block_of: the block of each call by fx node name, -1 for the prologue and for nodes that compute sizes.
    reference_of: the global reference of each value that leaves its block (`b7.0`, `b-1.2`); inputs are `x:name`.
    The module runs at any number of rows; parameters and buffers have the model's own names and are the model's own.
    """

    graph: Graph
    module: fx.GraphModule
    block_of: Mapping[str, int]
    reference_of: Mapping[str, str]
    input_names: tuple[str, ...]


@torch.inference_mode(False)  # gradients are on in it, wherever the caller stands
def trace(model: nn.Module, graph_or_batch: Graph | BatchLike, loss_fn: LossFunction | None = None) -> Traced:
    """Trace a real model for execution, on the device it lies on, with a Graph's inputs or an example batch.

    Raises StalePlanError where the model's graph differs from the one given: the model or its versions changed,
    CaptureError where it cannot be captured.
    """
    require_memory_apart(model)
    device = next((tensor.device for tensor in (*model.parameters(), *model.buffers())), torch.device("cpu"))
    if isinstance(graph_or_batch, Graph):
        example = _batch_of(graph_or_batch)
    else:
        example = normalised(model, graph_or_batch, own_loss=loss_fn is not None)
    opaque = parts_of(graph_or_batch) if isinstance(graph_or_batch, Graph) else ()
    source = Source(
        model=model, example=example, loss_fn=loss_fn, device=device, opaque=dict.fromkeys(opaque, OpaqueCost()),
        granularity=graph_or_batch.granularity if isinstance(graph_or_batch, Graph) else "block",
        products=Products(allowed=True),
    )  # fmt: skip
    found = _captured(source)
    bind(found.plain.graph, model, opaque)
    if isinstance(graph_or_batch, Graph):
        _require_same(graph_or_batch, found.graph)
    known = references(found.plain, found.parts)
    return Traced(
        graph=found.graph,
        module=_runnable(found.plain, model, device),
        block_of={
            node.name: known.block_of.get(node, -1) for node in found.plain.graph.nodes if node.op == "call_function"
        },
        reference_of={node.name: reference for node, reference in known.reference_of.items()},
        input_names=tuple(str(node.target) for node in found.plain.graph.nodes if node.op == "placeholder"),
    )


def _batch_of(graph: Graph) -> Batch:
    entries = tuple(
        BatchInput(
            name=entry.name,
            shape=entry.tensor.shape_at(graph.rows),
            dtype=getattr(torch, entry.tensor.dtype),
            batched=entry.tensor.batched,
            values=entry.values,
        )
        for entry in graph.inputs
    )
    return Batch(rows=graph.rows, entries=entries)


def _require_same(planned: Graph, found: Graph) -> None:
    if [block.name for block in planned.blocks] != [block.name for block in found.blocks]:
        raise StalePlanError(
            f"the plan was made for {len(planned.blocks)} blocks, the model has {len(found.blocks)} now: "
            "its code or the versions of placer, torch and transformers changed; plan again"
        )
    for index, block in enumerate(planned.blocks):
        outputs, theirs = planned.block_class(index).outputs, found.block_class(index).outputs
        if outputs != theirs or block.inputs != found.blocks[index].inputs:
            raise StalePlanError(f"block {block.name} exchanges other values than the plan knows; plan again")
    _require_same_parameters(planned, found)
    _require_same_arguments(planned, found)


def _require_same_parameters(planned: Graph, found: Graph) -> None:
    """The same weights under the same names: two that are tied are one, which a fingerprint of names does not tell."""
    before, now = ({n: None for n, one in graph.parameters.items() if not one.buffer} for graph in (planned, found))
    changes = [
        *(f"{name} is one of its own" for name in now if name not in before),
        *(f"{name} is none, or tied to another" for name in before if name not in now),
    ]
    if changes:
        raise StalePlanError(f"{STALE}the model's weights ({'; '.join(changes[:3])}). {AGAIN}")


def _require_same_arguments(planned: Graph, found: Graph) -> None:
    """The same constants in the calls, as far as ops have the same results: other precisions make other calls."""
    for (block, op), (_, now) in zip(planned.ops, found.ops, strict=False):
        if op.target != now.target or op.outputs != now.outputs:
            return
        if op.arguments and op.arguments != now.arguments:
            raise StalePlanError(
                f"{STALE}{op.source or op.module or block.name} calls {op.target}({now.arguments}), "
                f"in the plan ({op.arguments}). {AGAIN}"
            )


def _captured(source: Source) -> Captured:
    """Captured on meta, as `capture` does, because models build other masks on other devices.

    Where forward makes constant tensors on its inputs' device, their values are lost on meta, and looked up on the real
    device (`lost_constants`); there it is captured where it reads constants that are no part of the model.
    """
    try:
        found = captured(replace(source, model=on_meta(source.model), device="meta"))
    except MixedDevicesError:
        return captured(source)
    names = lost(found.plain, own_state(source.model))
    if not names:
        return found
    real = captured(source)
    return found if regained(found.plain, real.plain, names) else real


def _runnable(plain: Plain, model: nn.Module, device: torch.device) -> fx.GraphModule:
    root, own = nn.Module(), own_state(model)
    for name, tensor in plain.state.items():
        _put(root, name, own.get(name, tensor))
    _with_kernels_of(plain.graph, device)
    for node in plain.graph.nodes:
        node.args, node.kwargs = _on_device(node.args, device), _on_device(node.kwargs, device)
    module = fx.GraphModule(root, plain.graph)
    module.train(model.training)
    return module


def _with_kernels_of(graph: fx.Graph, device: torch.device) -> None:
    """The CPU counts floats only (torch 2.13: histogram_cpu not implemented for 'Int'), while experts are integers."""
    for node in graph.nodes:
        if device.type == "cpu" and node.target is torch.ops.aten.histc.default:
            node.target = histc_of_integers


def histc_of_integers(values: torch.Tensor, bins: int = 100, low: float = 0, high: float = 0) -> torch.Tensor:
    """`aten.histc` where there is no kernel for integers."""
    return torch.histc(values.to(torch.float32), bins, low, high).type_as(values)


#: Functions of this package that stand in a traced graph for an operator.
STANDS_FOR: dict[object, torch._ops.OpOverload] = {histc_of_integers: torch.ops.aten.histc.default}


def _on_device(arguments: T, device: torch.device) -> T:
    moved: T = _pytree.tree_map(
        lambda leaf: device if isinstance(leaf, torch.device) and leaf.type == "meta" else leaf, arguments
    )
    return moved


def _put(root: nn.Module, name: str, tensor: torch.Tensor) -> None:
    *path, leaf = name.split(".")
    for part in path:
        if not hasattr(root, part):
            root.add_module(part, nn.Module())
        root = getattr(root, part)
    if isinstance(tensor, nn.Parameter):
        root.register_parameter(leaf, tensor)
    else:
        root.register_buffer(leaf, tensor)
