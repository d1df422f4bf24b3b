"""Collectives within an op, differentiable in the way the op needs.

total(x)        sum over ranks; every rank then does the same with it, so its gradient is already whole
spread(x)       sum over ranks; every rank goes on with a piece of its own, so gradients are summed as well
exchanged(x)    rows to other ranks; their gradients go the way back
"""

from __future__ import annotations

import torch
from torch.autograd.function import FunctionCtx

from placer.runtime.spmd.local_ops.calls import Axis


def total(x: torch.Tensor, axis: Axis) -> torch.Tensor:
    """The sum over ranks where every rank goes on alike."""
    found: torch.Tensor = _Total.apply(x, axis)  # type: ignore[no-untyped-call]
    return found


def spread(x: torch.Tensor, axis: Axis) -> torch.Tensor:
    """The sum over ranks where every rank goes on with a piece of its own."""
    found: torch.Tensor = _Spread.apply(x, axis)  # type: ignore[no-untyped-call]
    return found


def exchanged(x: torch.Tensor, counts: list[int], axis: Axis) -> torch.Tensor:
    """The rows that the ranks sent here; `counts[r]` of ours went to rank r."""
    found: torch.Tensor = _Exchange.apply(x, counts, axis)  # type: ignore[no-untyped-call]
    return found


class _Context(FunctionCtx):
    axis: Axis
    received: list[int]


class _Total(torch.autograd.Function):
    @staticmethod
    def forward(ctx: _Context, x: torch.Tensor, axis: Axis) -> torch.Tensor:
        return axis.all_reduce(x, "sum")

    @staticmethod
    def backward(ctx: _Context, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradients[0], None


class _Spread(torch.autograd.Function):
    @staticmethod
    def forward(ctx: _Context, x: torch.Tensor, axis: Axis) -> torch.Tensor:
        ctx.axis = axis
        return axis.all_reduce(x, "sum")

    @staticmethod
    def backward(ctx: _Context, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        return ctx.axis.all_reduce(gradients[0], "sum"), None


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx: _Context, x: torch.Tensor, counts: list[int], axis: Axis) -> torch.Tensor:
        made, ctx.received = axis.all_to_all(x, counts)
        ctx.axis = axis
        return made

    @staticmethod
    def backward(ctx: _Context, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return ctx.axis.all_to_all(gradients[0].contiguous(), ctx.received)[0], None, None
