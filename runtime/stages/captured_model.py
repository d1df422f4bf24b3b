"""CapturedModel: a model's graph made ready to be cut, without its weights: one capture can serve several runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import cast

import torch
from torch import fx, nn

from placer import tracer
from placer.errors import IllegalPlanError
from placer.graph import Graph
from placer.io import usercode as references
from placer.plans.plan import Plan
from placer.plans.settings import Precision
from placer.rules.calls import MARKED_ROWS
from placer.rules.rows import row_split
from placer.runtime.stages.block_code import CutModel
from placer.runtime.stages.piece_nodes import PieceNodes
from placer.runtime.stages.rewrite import rewrites
from placer.runtime.stages.shapes import TensorMeta, shapes_of
from placer.tracer.export.torchs_own.autocast_regions import for_autocast
from placer.tracer.inputs.casting import RUN_DTYPES


@dataclass(frozen=True, kw_only=True)
class CapturedModel:
    """The graph of a model in a precision. module: its parameters have shapes but no memory. few, more: the shapes of
    all its tensors at `rows` rows and at one more. graph: the plan's; precision: what it was captured for."""

    module: fx.GraphModule
    block_of: Mapping[str, int]
    reference_of: Mapping[str, str]
    rows: int
    few: Mapping[fx.Node, TensorMeta]
    more: Mapping[fx.Node, TensorMeta]
    graph: Graph
    precision: Precision

    @cached_property
    def shapes(self) -> dict[fx.Node, tuple[int, ...]]:
        """The sizes of all its tensors at MARKED_ROWS rows."""
        return {node: self.shape_at(node, MARKED_ROWS).shape for node in self.few}

    def shape_at(self, node: fx.Node, rows: int) -> TensorMeta:
        """A tensor of it at any number of rows, in which every size is affine (`placer.tracer` sees to that)."""
        sizes = zip(self.few[node].shape, self.more[node].shape, strict=True)
        shape = tuple(size + (more - size) * (rows - self.rows) for size, more in sizes)
        return replace(self.few[node], shape=shape)

    @cached_property
    def pieces(self) -> PieceNodes:
        """What rows of the batch do otherwise than all of it, by node."""
        return PieceNodes.of(self.graph, self.module.graph, self.block_of)

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
            reached=frozenset(node for node, meta in self.few.items() if meta.requires_grad),
            pieces=self.pieces,
        )

    @property
    def unkeyed(self) -> tuple[str, ...]:
        """Random ops that torch's own generator draws: what they draw no model by itself can be given."""
        return rewrites(self.module.graph, PieceNodes(), self.shapes).unkeyed

    def casts_to(self, dtype: torch.dtype) -> tuple[str, ...]:
        """The modules (or source lines) of the model in which a tensor has `dtype`."""
        places = ((n.meta.get("module") or n.meta.get("source") or n.name, shape) for n, shape in self.few.items())
        found = {str(place): None for place, shape in places if shape.dtype == dtype}
        return tuple(found)


def captured(plan: Plan, model: nn.Module) -> CapturedModel:
    """Capture a real model, which is in the plan's precision. Raises CaptureError, StalePlanError for another graph."""
    with for_autocast(plan.settings.precision == "bfloat16-autocast"):
        traced = tracer.trace(model, _in_precision(plan), loss_function(plan))
    return made_ready(plan, traced)


def made_ready(plan: Plan, traced: tracer.Traced) -> CapturedModel:
    """A trace of the plan's model, in the plan's precision, ready to be cut; the trace is used up."""
    _require_rows_apart(plan, traced.graph)
    module, rows = _without_memory(traced.module), max(2, plan.graph.rows)  # of one row dims of one entry vanish
    few, more = (
        shapes_of(module, plan.graph, input_dtypes(plan), rows=count, autocast=False) for count in (rows, rows + 1)
    )
    return CapturedModel(
        module=module,
        block_of=traced.block_of,
        reference_of=traced.reference_of,
        rows=rows,
        few=few,
        more=more,
        graph=plan.graph,
        precision=plan.settings.precision,
    )


def _require_rows_apart(plan: Plan, graph: Graph) -> None:
    """The model itself, not only the graph that the plan carries, allows the batch to be divided as the plan does."""
    pieces = len(plan.microbatches) * max(mesh.replicas for mesh in plan.meshes)
    found = row_split(graph)
    why = found.why or (found.statistics[:1] if plan.settings.batch_norm == "exact" else "")
    if pieces > 1 and why:
        raise IllegalPlanError(
            f"the plan divides the batch into {pieces} pieces, and the model does not keep its rows apart: "
            f"{why if isinstance(why, str) else f'{why[0]} normalises by the whole batch'}; plan again"
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
    return RUN_DTYPES[plan.settings.precision] if dtype.is_floating_point else dtype


def _without_memory(module: fx.GraphModule) -> fx.GraphModule:
    """The same graph with parameters that are one number seen as a whole tensor."""
    for owner in module.modules():
        for name, parameter in list(owner.named_parameters(recurse=False)):
            seen = torch.zeros((), dtype=parameter.dtype, device=parameter.device).expand(parameter.shape)
            setattr(owner, name, nn.Parameter(seen, requires_grad=parameter.requires_grad))
    return module
