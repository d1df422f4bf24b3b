"""A stage as one layer of DeepSpeed's pipeline, which passes a tuple of tensors from each layer to the next only.

A value that skips stages is handed on by those between. What a stage needs besides (model inputs, dropout keys, counts)
every rank has in its own microbatches, which come in the order of the forwards.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import torch
from torch import nn

from placer.plans.plan import Plan
from placer.program.ranks import transfers
from placer.runtime.stages.microbatch import Microbatch
from placer.runtime.stages.recompute import Tensors
from placer.runtime.stages.stage import StageModule


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


def borders(plan: Plan) -> tuple[tuple[str, ...], ...]:
    """The values that pass from each stage to the next: made at or before it and read after it."""
    made = transfers(plan)
    return tuple(
        tuple(dict.fromkeys(v for t in made if t.source <= border < t.target for v in t.values))
        for border in range(len(plan.stages) - 1)
    )
