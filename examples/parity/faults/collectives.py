"""Faults of what devices of a replica say to each other: conversions, their adjoints, sums, rows of neighbours."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack

import torch

from examples.parity.faults.fault import Fault, Plant, method, replaced
from placer.runtime.spmd import Axis, collectives, conversions
from placer.runtime.spmd.conversions import Way

Tensor = torch.Tensor
Move = Callable[[Tensor, Axis, Way], Tensor]
CUT, HALVES = "cut products", "halves of images"
_moved = conversions.moved


def backward(name: str, wrong: Move) -> Plant:
    """Gradients that go back by way `name` go wrong."""

    def returned(real: Move, gradient: Tensor, axis: Axis, by: Way) -> Tensor:
        return wrong(gradient, axis, by) if by.name == name else real(gradient, axis, by)

    return lambda: replaced(conversions.returned, returned)


def forward(name: str, wrong: Move) -> Plant:
    """Values that go by way `name` go wrong; gradients do not."""

    def moved(real: Move, x: Tensor, axis: Axis, by: Way) -> Tensor:
        return wrong(x, axis, by) if by.name == name else real(x, axis, by)

    def planted() -> AbstractContextManager[object]:
        stack = ExitStack()
        stack.enter_context(replaced(conversions.returned, lambda real, *given: _moved(*given)))
        stack.enter_context(replaced(conversions.moved, moved))
        return stack

    return planted


def _neighbours_piece(x: Tensor, axis: Axis, by: Way) -> Tensor:
    return axis.piece_of((axis.rank + 1) % axis.degree, x, by.want)


def _own_part(x: Tensor, axis: Axis, by: Way) -> Tensor:
    return axis.own(x, by.want)


def _turned_pieces(x: Tensor, axis: Axis, by: Way) -> Tensor:
    made = _moved(x, axis, by)
    return made.roll(made.shape[by.dim] // axis.degree, by.dim)


def _reversed(x: Tensor, axis: Axis, by: Way) -> Tensor:
    return _moved(x, axis, by).flip(by.to)


def _elsewhere(x: Tensor, axis: Axis, by: Way) -> Tensor:
    made = _moved(x, axis, by)
    return made.roll(1, by.dim)


def _mean(real: Callable[..., Tensor], self: Axis, tensor: Tensor, reduce: str = "sum") -> Tensor:
    made = real(self, tensor, reduce)
    return made / self.degree if reduce == "sum" and made.is_floating_point() else made


def _summed_twice(real: object, x: Tensor, axis: Axis) -> Tensor:
    return collectives.with_gradient(x, axis.all_reduce, axis.all_reduce)


def _never_summed(real: object, x: Tensor, axis: Axis) -> Tensor:
    return collectives.with_gradient(x, axis.all_reduce, lambda gradient: gradient)


def _rows_back_reversed(real: object, x: Tensor, counts: list[int], axis: Axis) -> Tensor:
    received: list[int] = []

    def there(rows: Tensor) -> Tensor:
        made, came = axis.all_to_all(rows, counts)
        received.extend(came)
        return made

    return collectives.with_gradient(x, there, lambda g: axis.all_to_all(g.flip(0).contiguous(), received)[0])


def _halo_of_zeros(
    real: Callable[..., Tensor], x: Tensor, axis: Axis, dim: int, size: int, windows: tuple[collectives.Rows, ...]
) -> Tensor:
    made = real(x, axis, dim, size, windows)
    (start, end), (first, last) = axis.bounds(size)[axis.rank], windows[axis.rank]
    places = torch.arange(first, last, device=x.device)
    own = ((places >= start) & (places < end)).to(x.dtype)
    return made * own.view([-1] + [1] * (x.dim() - 1 - dim))


def _halo_of_the_row_beside(
    real: Callable[..., Tensor], x: Tensor, axis: Axis, dim: int, size: int, windows: tuple[collectives.Rows, ...]
) -> Tensor:
    return real(x, axis, dim, size, windows).roll(1, dim)


def _neighbours_forgotten(
    real: Callable[..., Tensor],
    gradient: Tensor,
    axis: Axis,
    dim: int,
    size: int,
    windows: tuple[collectives.Rows, ...],
) -> Tensor:
    start, end = collectives.shared(axis.bounds(size)[axis.rank], windows[axis.rank])
    first = windows[axis.rank][0]
    mine = torch.zeros_like(gradient)
    mine.narrow(dim, start - first, end - start).copy_(gradient.narrow(dim, start - first, end - start))
    return real(mine, axis, dim, size, windows)


def _own_forgotten(
    real: Callable[..., Tensor],
    gradient: Tensor,
    axis: Axis,
    dim: int,
    size: int,
    windows: tuple[collectives.Rows, ...],
) -> Tensor:
    """Where neighbours read a row too, their gradient takes the place of the rank's own."""
    start, end = axis.bounds(size)[axis.rank]
    first = windows[axis.rank][0]
    alone = gradient.clone()
    for rank, (low, high) in enumerate(windows):
        low, high = max(low, start), min(high, end)
        if rank != axis.rank and high > low:
            alone.narrow(dim, low - first, high - low).zero_()
    return real(alone, axis, dim, size, windows)


FAULTS = (
    Fault(name="adjoint of a copy: the part of the sum is taken for the sum", subject=CUT,
          plant=backward("all_reduce", lambda gradient, axis, by: gradient)),
    Fault(name="adjoint of a gather: own piece of the unsummed gradient", subject=CUT,
          plant=backward("reduce_scatter", _own_part)),
    Fault(name="adjoint of a scattered sum: pieces in another order", subject=CUT,
          plant=backward("all_gather", _turned_pieces)),
    Fault(name="adjoint of an all-to-all: rows reversed", subject=CUT, plant=backward("all_to_all", _reversed)),
    Fault(name="adjoint of a cut value: its piece placed one row further", subject="attention by heads",
          plant=backward("placed", _elsewhere)),
    Fault(name="adjoint of a placed piece: that of the neighbour", subject=CUT,
          plant=backward("cut", _neighbours_piece)),
    Fault(name="a shared value counted by every rank", subject=CUT,
          plant=forward("share", lambda x, axis, by: x)),
    Fault(name="a piece placed one row further", subject=CUT, plant=forward("placed", _elsewhere)),
    Fault(name="a scattered sum that is not summed", subject=CUT, plant=forward("reduce_scatter", _own_part)),
    Fault(name="a gather of pieces in another order", subject=CUT, plant=forward("all_gather", _turned_pieces)),
    Fault(name="an all-to-all with rows reversed", subject=CUT, plant=forward("all_to_all", _reversed)),
    Fault(name="a mean over ranks for a sum", subject=CUT, plant=lambda: method(Axis, "all_reduce", _mean)),
    Fault(name="adjoint of the loss's sums over classes: summed again", subject=CUT,
          plant=lambda: replaced(collectives.total, _summed_twice)),
    Fault(name="adjoint of batch statistics over ranks: not summed", subject=HALVES,
          plant=lambda: replaced(collectives.spread, _never_summed)),
    Fault(name="halo rows are zeros", subject=HALVES, plant=lambda: replaced(collectives.exchange, _halo_of_zeros)),
    Fault(name="halo rows shifted by one", subject=HALVES,
          plant=lambda: replaced(collectives.exchange, _halo_of_the_row_beside)),
    Fault(name="adjoint of halo rows: the neighbours' share forgotten", subject=HALVES,
          plant=lambda: replaced(collectives.rows_returned, _neighbours_forgotten)),
    Fault(name="adjoint of halo rows: written over instead of added", subject=HALVES,
          plant=lambda: replaced(collectives.rows_returned, _own_forgotten)),
    Fault(name="adjoint of rows sent to experts: rows reversed", subject="experts",
          plant=lambda: replaced(collectives.exchanged, _rows_back_reversed)),
)  # fmt: skip
