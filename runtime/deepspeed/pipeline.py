"""Plans of several stages on DeepSpeed's pipeline engine, each stage one layer of it.

The engine passes a tuple of tensors from each layer to the next only: a value that skips stages is handed on by those
between. What a stage needs besides (model inputs, dropout keys, counts) every rank has in its own microbatches, which
come in the order of the forwards.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat
from typing import cast

import torch
from torch import distributed as dist
from torch import nn

from placer.errors import UsageError
from placer.plans.plan import Plan
from placer.plans.transfers import transfers
from placer.runtime.deepspeed.config import deepspeed
from placer.runtime.deepspeed.run import DeepSpeedRun, Pairs, engine_of, loss_scale
from placer.runtime.stages.microbatch import BatchSplit, Microbatch
from placer.runtime.stages.recompute import Tensors
from placer.runtime.stages.stage import StageModule


class PipelineRun(DeepSpeedRun):
    """This rank's stage as a layer of a PipelineModule; DeepSpeed moves what passes between them.

    It gives the mean over replicas and microbatches of losses that were multiplied by their number: the sum.
    """

    def __init__(self, batch_split: BatchSplit, index: int, stage: StageModule, loss: str) -> None:
        plan = batch_split.plan
        between, last = borders(plan), len(plan.stages) - 1
        if not all(between):
            raise UsageError("two stages that follow each other exchange nothing; DeepSpeed's pipeline wants a tensor")
        self._layer = StageLayer(
            stage,
            arriving=between[index - 1] if index else (),
            leaving=between[index] if index < last else (),
            scale=loss_scale(plan),
            loss=loss,
        )
        _own_in_the_norm(self._layer)
        super().__init__(batch_split, engine_of(plan, _pipeline(plan, index, self._layer), self._layer))

    def full_state_dict(self) -> dict[str, torch.Tensor]:
        """All parameters that a block reads, by the model's own names, whole, on the CPU of every rank."""
        parts: list[dict[str, torch.Tensor]] = [{} for _ in range(dist.get_world_size())]
        held = {name: p.detach().cpu().clone() for name, p in self._layer.stage.own_parameters().items()}
        dist.all_gather_object(parts, held)
        return {name: tensor for part in reversed(parts) for name, tensor in part.items()}

    def _train(self, microbatches: tuple[Microbatch, ...]) -> float:
        self._layer.begin(microbatches)
        return float(self._engine.train_batch(_nothing()))

    def _evaluate(self, microbatches: tuple[Microbatch, ...]) -> float:
        self._layer.begin(microbatches)
        return float(self._engine.eval_batch(_nothing()))


def _pipeline(plan: Plan, index: int, layer: nn.Module) -> nn.Module:
    """The model as the engine wants it; layers of other ranks are placeholders that are never called."""
    stages, library = len(plan.stages), deepspeed()
    library.comm.init_distributed(dist_init_required=False, auto_mpi_discovery=False, verbose=False)
    made = library.pipe.PipelineModule(
        layers=[layer if at == index else nn.Identity() for at in range(stages)],
        topology=library.runtime.pipe.topology.PipeDataParallelTopology(num_pp=stages, num_dp=plan.stages[0].replicas),
        partition_method="uniform",
        dynamic_shape=len(set(plan.microbatches)) > 1,
    )
    return cast(nn.Module, made)


def _own_in_the_norm(layer: nn.Module) -> None:
    """Have the gradients of this stage count in the norm that clips.

    DeepSpeed sums squares over the ranks of a pipeline, of the first one alone where parameters do not say by
    Megatron's flag that each rank has others: it takes them for copies.
    """
    for parameter in layer.parameters():
        parameter.model_parallel = True  # type: ignore[attr-defined]


def _nothing() -> Pairs:
    """The first layer wants an input and the last one labels; ours take both from their microbatches."""
    return repeat((torch.zeros(1), torch.zeros(1)))


def borders(plan: Plan) -> tuple[tuple[str, ...], ...]:
    """The values that pass from each stage to the next: made at or before it and read after it."""
    made = transfers(plan)
    return tuple(
        tuple(dict.fromkeys(v for t in made if t.source <= border < t.target for v in t.values))
        for border in range(len(plan.stages) - 1)
    )


class StageLayer(nn.Module):
    """`arriving` and `leaving`: names of the tensors before and after, in order. The last layer gives the loss."""

    def __init__(
        self, stage: StageModule, *, arriving: tuple[str, ...], leaving: tuple[str, ...], scale: float, loss: str
    ) -> None:
        super().__init__()
        self.stage, self._arriving, self._leaving = stage, arriving, leaving
        self._scale, self._loss = scale, loss
        self._microbatches: Iterator[Microbatch] = iter(())

    def begin(self, microbatches: tuple[Microbatch, ...]) -> None:
        """Those to come."""
        self._microbatches = iter(microbatches)

    def forward(self, given: torch.Tensor | Tensors) -> torch.Tensor | Tensors:
        """The next layer's input, or the loss times `scale`."""
        tensors = given if isinstance(given, tuple) else (given,)
        values = dict(zip(self._arriving, tensors, strict=True)) if self._arriving else {}
        microbatch, code = next(self._microbatches), self.stage.code
        known = {**values, **microbatch.inputs}
        made = self.stage(microbatch.mode, *(known[name] for name in (*code.inputs, *code.consumes)))
        values.update(zip(code.produces, made, strict=True))
        if not self._leaving:
            return _touching(values[self._loss] * self._scale, tensors)
        left = tuple(values[name] for name in self._leaving)
        touched = tuple(_touching(left[0], tensors) if i == 0 else value for i, value in enumerate(left))
        return touched if len(touched) > 1 else touched[0]


class _Touch(torch.autograd.Function):
    """The first tensor; the others get a gradient of zeros, where DeepSpeed wants one of everything that arrived."""

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, value: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
        ctx.others = others  # type: ignore[attr-defined]
        return value.view_as(value)

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, *gradients: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (gradients[0], *(torch.zeros_like(other) for other in ctx.others))  # type: ignore[attr-defined]


def _touching(value: torch.Tensor, others: Tensors) -> torch.Tensor:
    moving = tuple(other for other in others if other.requires_grad)
    return cast(torch.Tensor, _Touch.apply(value, *moving)) if moving else value  # type: ignore[no-untyped-call]
