"""Collectives with a gradient: what a rank sends forward, and what it sends back for it.

total(x)        sum over ranks; every rank then does the same with it, so its gradient is already whole
spread(x)       sum over ranks; every rank goes on with a piece of its own, so gradients are summed as well
exchanged(x)    rows to other ranks; their gradients go the way back
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.autograd.function import FunctionCtx

from placer.runtime.spmd.axis import Axis

Move = Callable[[torch.Tensor], torch.Tensor]


def with_gradient(x: torch.Tensor, forward: Move, backward: Move) -> torch.Tensor:
    """`forward(x)`, whose gradient becomes that of `x` by `backward`; both work without history."""
    made: torch.Tensor = _WithGradient.apply(x, forward, backward)  # type: ignore[no-untyped-call]
    return made


def total(x: torch.Tensor, axis: Axis) -> torch.Tensor:
    """The sum over ranks where every rank goes on alike."""
    return with_gradient(x, axis.all_reduce, lambda gradient: gradient)


def spread(x: torch.Tensor, axis: Axis) -> torch.Tensor:
    """The sum over ranks where every rank goes on with a piece of its own."""
    return with_gradient(x, axis.all_reduce, axis.all_reduce)


def exchanged(x: torch.Tensor, counts: list[int], axis: Axis) -> torch.Tensor:
    """The rows that the ranks sent here; `counts[r]` of ours went to rank r."""
    received: list[int] = []

    def there(rows: torch.Tensor) -> torch.Tensor:
        made, came = axis.all_to_all(rows, counts)
        received.extend(came)
        return made

    return with_gradient(x, there, lambda gradient: axis.all_to_all(gradient.contiguous(), received)[0])


class _Context(FunctionCtx):
    back: Move


class _WithGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: _Context, x: torch.Tensor, forward: Move, backward: Move) -> torch.Tensor:
        ctx.back = backward
        return forward(x)

    @staticmethod
    def backward(ctx: _Context, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return ctx.back(gradients[0]), None, None
