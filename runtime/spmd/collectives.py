"""Collectives with a gradient: what a rank sends forward, and what it sends back for it.

total(x)        sum over ranks; every rank then does the same with it, so its gradient is already whole
spread(x)       sum over ranks; every rank goes on with a piece of its own, so gradients are summed as well
exchanged(x)    rows to other ranks; their gradients go the way back
exchange(x)     rows of neighbours: each rank has its piece of a dim and needs the rows that its window reads

Rank r's window reads rows w_r, rank q owns rows p_q; q sends the rows p_q and w_r share. The gradient of each row goes
back to its owner, who adds what all its readers found: the exact adjoint.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.autograd.function import FunctionCtx

from placer.runtime.spmd.axis import Axis

Rows = tuple[int, int]
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


def exchange(x: torch.Tensor, axis: Axis, dim: int, size: int, windows: tuple[Rows, ...]) -> torch.Tensor:
    """The rows `windows[rank]` of dim `dim`, of `size` rows in all; x is the rank's piece."""

    def lent(mine: torch.Tensor) -> torch.Tensor:
        owned = axis.bounds(size)
        first, last = owned[axis.rank]
        parts = [_rows(mine, dim, shared((first, last), window), first) for window in windows]
        return torch.cat(_received(mine, axis, dim, parts, [shared(one, windows[axis.rank]) for one in owned]), dim)

    return with_gradient(x, lent, lambda gradient: rows_returned(gradient, axis, dim, size, windows))


def shared(one: Rows, other: Rows) -> Rows:
    """The rows that both hold."""
    start = max(one[0], other[0])
    return start, max(start, min(one[1], other[1]))


def rows_returned(gradient: torch.Tensor, axis: Axis, dim: int, size: int, windows: tuple[Rows, ...]) -> torch.Tensor:
    """The gradient of the rank's piece: what all ranks found for its rows, added up."""
    owned = axis.bounds(size)
    mine, window = owned[axis.rank], windows[axis.rank]
    parts = [_rows(gradient, dim, shared(one, window), window[0]) for one in owned]
    places = [shared(mine, other) for other in windows]
    made = gradient.new_zeros((*gradient.shape[:dim], mine[1] - mine[0], *gradient.shape[dim + 1 :]))
    for (start, end), part in zip(places, _received(gradient, axis, dim, parts, places), strict=True):
        if end > start:
            made.narrow(dim, start - mine[0], end - start).add_(part)
    return made


def _rows(x: torch.Tensor, dim: int, rows: Rows, first: int) -> torch.Tensor:
    return x.narrow(dim, rows[0] - first if rows[1] > rows[0] else 0, rows[1] - rows[0])


def _received(x: torch.Tensor, axis: Axis, dim: int, parts: list[torch.Tensor], rows: list[Rows]) -> list[torch.Tensor]:
    shapes = [(*x.shape[:dim], end - start, *x.shape[dim + 1 :]) for start, end in rows]
    return axis.exchange(parts, shapes)


class _Context(FunctionCtx):
    back: Move


class _WithGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: _Context, x: torch.Tensor, forward: Move, backward: Move) -> torch.Tensor:
        ctx.back = backward
        ctx.set_materialize_grads(False)
        made = forward(x)
        # Not x itself: autograd would take it for a view, in which nothing may be written.
        return made.detach() if made is x else made

    @staticmethod
    def backward(ctx: _Context, *gradients: torch.Tensor | None) -> tuple[torch.Tensor | None, None, None]:
        # A part of a model may give its inputs none, on all ranks that share it alike.
        return None if gradients[0] is None else ctx.back(gradients[0]), None, None
