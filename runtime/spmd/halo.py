"""Rows of neighbours: each rank has its piece of a dim and needs the rows that its window reads.

Rank r's window reads rows w_r, rank q owns rows p_q; q sends the rows p_q and w_r share. The gradient of each row goes
back to its owner, who adds what all its readers found: the exact adjoint.
"""

from __future__ import annotations

import torch

from placer.runtime.spmd.axis import Axis
from placer.runtime.spmd.collectives import with_gradient

Rows = tuple[int, int]


def exchange(x: torch.Tensor, axis: Axis, dim: int, size: int, windows: tuple[Rows, ...]) -> torch.Tensor:
    """The rows `windows[rank]` of dim `dim`, of `size` rows in all; x is the rank's piece."""

    def lent(mine: torch.Tensor) -> torch.Tensor:
        owned = axis.bounds(size)
        first, last = owned[axis.rank]
        parts = [_rows(mine, dim, shared((first, last), window), first) for window in windows]
        return torch.cat(_received(mine, axis, dim, parts, [shared(one, windows[axis.rank]) for one in owned]), dim)

    return with_gradient(x, lent, lambda gradient: returned(gradient, axis, dim, size, windows))


def shared(one: Rows, other: Rows) -> Rows:
    """The rows that both hold."""
    start = max(one[0], other[0])
    return start, max(start, min(one[1], other[1]))


def returned(gradient: torch.Tensor, axis: Axis, dim: int, size: int, windows: tuple[Rows, ...]) -> torch.Tensor:
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
