"""CapturedModel: a model's graph made ready to be cut, without its weights: one capture can serve several runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import cast

import torch
from torch import fx, nn

from placer import tracer
from placer.graph import Graph
from placer.io import usercode as references
from placer.plans.plan import Plan
from placer.runtime.stages.block_code import CutModel
from placer.runtime.stages.rewrite import MARKED_ROWS, rewrites
from placer.runtime.stages.shapes import TensorMeta, shapes_of

PRECISIONS = {
    "float64": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16,
    "bfloat16-autocast": torch.float32,
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class CapturedModel:
    """The graph of a model in a precision. module: its parameters have shapes but no memory. marked: the shapes of all
    its tensors at MARKED_ROWS rows. graph: the plan's; dtypes: of its inputs in a run."""

    module: fx.GraphModule
    block_of: Mapping[str, int]
    reference_of: Mapping[str, str]
    marked: Mapping[fx.Node, TensorMeta]
    graph: Graph
    dtypes: Mapping[str, torch.dtype]

    @property
    def shapes(self) -> dict[fx.Node, tuple[int, ...]]:
        """The sizes of all its tensors at MARKED_ROWS rows."""
        return {node: meta.shape for node, meta in self.marked.items()}

    def shape_at(self, node: fx.Node, rows: int) -> TensorMeta:
        """A tensor of it at any number of rows, in which every size is affine (`placer.tracer` sees to that)."""
        sizes = zip(self.marked[node].shape, self._with_one_row_more[node].shape, strict=True)
        shape = tuple(size + (more - size) * (rows - MARKED_ROWS) for size, more in sizes)
        return replace(self.marked[node], shape=shape)

    @cached_property
    def _with_one_row_more(self) -> dict[fx.Node, TensorMeta]:
        return shapes_of(self.module, self.graph, self.dtypes, rows=MARKED_ROWS + 1, autocast=False)

    def cut(self, plan: Plan, model: nn.Module) -> CutModel:
        """The graph with the weights of `model`, ready to be cut into the plan's stages."""
        return CutModel(
            model=model,
            module=self.module,
            block_of=self.block_of,
            reference_of=self.reference_of,
            loss=plan.graph.loss.value,
            shapes=self.shapes,
            shape_at=self.shape_at,
            reached=frozenset(node for node, meta in self.marked.items() if meta.requires_grad),
        )

    @property
    def unkeyed(self) -> tuple[str, ...]:
        """Random ops other than dropout: what they draw depends on the layout."""
        return rewrites(self.module.graph, None, self.shapes).unkeyed

    def casts_to(self, dtype: torch.dtype) -> tuple[str, ...]:
        """The modules (or source lines) of the model in which a tensor has `dtype`."""
        places = ((n.meta.get("module") or n.meta.get("source") or n.name, shape) for n, shape in self.marked.items())
        found = {str(place): None for place, shape in places if shape.dtype == dtype}
        return tuple(found)


def captured(plan: Plan, model: nn.Module) -> CapturedModel:
    """Capture a real model, which is in the plan's precision. Raises CaptureError, StalePlanError for another graph."""
    return made_ready(plan, tracer.trace(model, _in_precision(plan), loss_function(plan)))


def made_ready(plan: Plan, traced: tracer.Traced) -> CapturedModel:
    """A trace of the plan's model, in the plan's precision, ready to be cut; the trace is used up."""
    module = _without_memory(traced.module)
    return CapturedModel(
        module=module,
        block_of=traced.block_of,
        reference_of=traced.reference_of,
        marked=shapes_of(module, plan.graph, input_dtypes(plan), rows=MARKED_ROWS, autocast=False),
        graph=plan.graph,
        dtypes=input_dtypes(plan),
    )


def loss_function(plan: Plan) -> Callable[[object, dict[str, torch.Tensor]], torch.Tensor] | None:
    """The loss the plan was made with; None where the model's output holds it."""
    if not plan.model.loss:
        return None
    return cast(
        Callable[[object, dict[str, torch.Tensor]], torch.Tensor], references.named(plan.model.loss, "the loss")
    )


def input_dtypes(plan: Plan) -> dict[str, torch.dtype]:
    """The dtype each input has in a run: floating inputs follow the precision."""
    return {entry.name: run_dtype(plan, getattr(torch, entry.tensor.dtype)) for entry in plan.graph.inputs}


def _in_precision(plan: Plan) -> Graph:
    """The plan's graph with the inputs of a run: a layer refuses floating inputs of another dtype than its weights."""
    dtypes = input_dtypes(plan)
    inputs = tuple(
        replace(entry, tensor=replace(entry.tensor, dtype=str(dtypes[entry.name]).removeprefix("torch.")))
        for entry in plan.graph.inputs
    )
    return replace(plan.graph, inputs=inputs)


def run_dtype(plan: Plan, dtype: torch.dtype) -> torch.dtype:
    """`dtype`, or the precision's where it is a floating one."""
    return PRECISIONS[plan.settings.precision] if dtype.is_floating_point else dtype


def _without_memory(module: fx.GraphModule) -> fx.GraphModule:
    """The same graph with parameters that are one number seen as a whole tensor."""
    for owner in module.modules():
        for name, parameter in list(owner.named_parameters(recurse=False)):
            seen = torch.zeros((), dtype=parameter.dtype, device=parameter.device).expand(parameter.shape)
            setattr(owner, name, nn.Parameter(seen, requires_grad=parameter.requires_grad))
    return module
