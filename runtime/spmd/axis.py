"""Axis: the devices of a replica and this rank among them, with the collectives that local ops and conversions need.

All take and give tensors without history. Pieces of a dim are those of `placer.rules.layouts.ranges`: where the dim is
several `parts` one after another, a rank has its piece of each; where it has an `order`, of the dim in that order.

Numbers that the runtime reads from tensors to know how many rows go where; fake tensors (a dry run) have none.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch
from torch import distributed as dist
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

from placer.errors import UsageError
from placer.rules.layouts import Cut, held_size, piece, ranges
from placer.rules.two_axis_layouts import INNER, OUTER, place

Shape = tuple[int, ...]
# Of one tensor each, as torch 2.13 names them and as it did before.
_gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
_reduce_scatter = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)
Rows = Sequence[tuple[int, int]]  # runs of rows, start and end of each, one after another


class Axis(nn.Module):
    """`rank` of `degree`; a module, so that graphs can hold it. Without a group it can be shown, not run."""

    def __init__(self, degree: int, rank: int, group: dist.ProcessGroup | None = None) -> None:
        super().__init__()
        self.degree, self.rank, self.group = degree, rank, group
        self._lines: dict[int, tuple[Axis, Axis]] = {}

    def extra_repr(self) -> str:
        """Shown where a graph names it."""
        return f"{self.rank} of {self.degree}"

    def lines(self, fast: int) -> tuple[Axis, Axis]:
        """Of a mesh of two axes, the inner one of `fast` devices, this rank's outer and inner axis."""
        if fast not in self._lines:
            outer, inner = (Axis(*place(self.degree, self.rank, fast, axis)) for axis in (OUTER, INNER))
            self._lines[fast] = (outer, inner)
        return self._lines[fast]

    def bounds(self, size: int) -> tuple[tuple[int, int], ...]:
        """Start and end of every rank's piece of `size`."""
        return tuple(piece(size, self.degree, rank) for rank in range(self.degree))

    def own(self, tensor: torch.Tensor, lay: Cut) -> torch.Tensor:
        """This rank's piece of a whole tensor, contiguous."""
        return self.piece_of(self.rank, tensor, lay)

    def piece_of(self, rank: int, tensor: torch.Tensor, lay: Cut) -> torch.Tensor:
        """A rank's piece of a whole tensor, contiguous."""
        lay = lay.of(tensor.shape[lay.dim])
        if lay.parts > 1:
            start, end = piece(tensor.shape[lay.dim] // lay.parts, self.degree, rank)
            mine = _apart(tensor, lay).narrow(lay.dim + 1, start, end - start)
            return mine.flatten(lay.dim, lay.dim + 1).contiguous()
        found = ranges(lay, tensor.shape[lay.dim], self.degree, rank)
        pieces = [tensor.narrow(lay.dim, start, end - start) for start, end in found]
        return pieces[0].contiguous() if len(pieces) == 1 else torch.cat(pieces, lay.dim)

    def all_reduce(self, tensor: torch.Tensor, reduce: str = "sum") -> torch.Tensor:
        """The sum or maximum (`"sum"`, `"max"`) over the ranks."""
        made = tensor.detach().clone(memory_format=torch.contiguous_format)
        dist.all_reduce(made, dist.ReduceOp.MAX if reduce == "max" else dist.ReduceOp.SUM, group=self._ready())
        return made

    def all_gather(self, tensor: torch.Tensor, lay: Cut, size: int | None = None) -> torch.Tensor:
        """The whole of the ranks' pieces; `size` of the dim that is cut, None where all pieces are equal."""
        own = tensor.contiguous()
        if size is not None:
            shapes = [_with(tensor.shape, lay.dim, length) for length in self.lengths(size, lay)]
            return _together(self.exchange([own] * self.degree, shapes), lay)
        made = own.new_empty((self.degree, *own.shape))
        _gather(made.view(-1), own.view(-1), group=self._ready())
        if _in_order(lay.of(self.degree * own.shape[lay.dim])):
            return made.flatten(0, 1)
        return _together(list(made), lay)

    def reduce_scatter(self, tensor: torch.Tensor, lay: Cut) -> torch.Tensor:
        """This rank's piece of the sum over the ranks."""
        lay = lay.of(tensor.shape[lay.dim])
        if len({*self.lengths(tensor.shape[lay.dim], lay)}) == 1:
            # Pieces of the first dim lie one after another already.
            own = _with(tensor.shape, lay.dim, tensor.shape[lay.dim] // self.degree)
            every = tensor if _in_order(lay) else torch.cat([one.view(-1) for one in self._pieces(tensor, lay)])
            made = tensor.new_empty(own)
            _reduce_scatter(made.view(-1), every.contiguous().view(-1), group=self._ready())
            return made
        pieces = self._pieces(tensor, lay)
        found = self.exchange(pieces, [tuple(pieces[self.rank].shape)] * self.degree)
        return torch.stack(found).sum(0)

    def _pieces(self, tensor: torch.Tensor, lay: Cut) -> list[torch.Tensor]:
        return [self.piece_of(rank, tensor, lay) for rank in range(self.degree)]

    def swap(self, tensor: torch.Tensor, have: Cut, want: Cut, size: int | None = None) -> torch.Tensor:
        """From pieces of one dim (whole: `size`, None where all pieces are equal) to pieces of another."""
        pieces = self._pieces(tensor, want)
        whole = tensor.shape[have.dim] * self.degree if size is None else size
        shapes = [_with(pieces[self.rank].shape, have.dim, one) for one in self.lengths(whole, have)]
        return _together(self.exchange(pieces, shapes), have)

    def recut(self, tensor: torch.Tensor, have: Cut, want: Cut, size: int | None = None) -> torch.Tensor:
        """From pieces of a dim to pieces of the same dim that has other parts: each row goes to who wants it."""
        dim = have.dim
        whole = tensor.shape[dim] * self.degree if size is None else size
        every = range(self.degree)
        owned, wanted = ([ranges(lay, whole, self.degree, rank) for rank in every] for lay in (have, want))
        mine, mine_wanted = owned[self.rank], wanted[self.rank]
        sent = [_rows(tensor, dim, mine, _shared(mine, rows)) for rows in wanted]
        made = tensor.new_empty(_with(tensor.shape, dim, _length(mine_wanted)))
        shapes = [_with(tensor.shape, dim, _length(_shared(rows, mine_wanted))) for rows in owned]
        for rows, piece_ in zip(owned, self.exchange(sent, shapes), strict=True):
            at = 0
            for start, end in _shared(rows, mine_wanted):
                place = made.narrow(dim, _offset(mine_wanted, start), end - start)
                place.copy_(piece_.narrow(dim, at, end - start))
                at += end - start
        return made

    def lengths(self, size: int, lay: Cut) -> tuple[int, ...]:
        """The rows of each rank's piece of a dim of `size`."""
        return tuple(held_size(lay, size, self.degree, rank) for rank in range(self.degree))

    def all_to_all(self, tensor: torch.Tensor, counts: list[int]) -> tuple[torch.Tensor, list[int]]:
        """Sends `counts[r]` rows to rank r, in order; the rows received, in the order of ranks, how many of each."""
        told = torch.tensor(counts, device=tensor.device)
        heard = torch.empty_like(told)
        dist.all_to_all_single(heard, told, group=self._ready())
        # Where nobody answers, all send what this rank sends to itself.
        received = numbers(heard, [counts[self.rank]] * self.degree)
        made = tensor.new_empty((sum(received), *tensor.shape[1:]))
        dist.all_to_all_single(made, tensor.contiguous(), received, counts, group=self._ready())
        return made, received

    def exchange(self, parts: list[torch.Tensor], shapes: list[Shape]) -> list[torch.Tensor]:
        """Sends `parts[r]` to rank r; what rank r sent here has `shapes[r]`."""
        flat = torch.cat([part.reshape(-1) for part in parts])
        counts = [prod(shape) for shape in shapes]
        made = flat.new_empty(sum(counts))
        dist.all_to_all_single(made, flat, counts, [part.numel() for part in parts], group=self._ready())
        return [one.view(shape) for one, shape in zip(made.split_with_sizes(counts), shapes, strict=True)]

    def _ready(self) -> dist.ProcessGroup:
        if self.group is None:
            raise UsageError("this graph was made to be shown: its axis has no process group; load the plan to run it")
        return self.group


def _together(pieces: list[torch.Tensor], lay: Cut) -> torch.Tensor:
    """The whole of the ranks' pieces, part by part, or each index where the order has it."""
    lay = lay.of(sum(one.shape[lay.dim] for one in pieces))
    if lay.parts == 1:
        whole = torch.cat(pieces, lay.dim)
        if not lay.order:
            return whole
        return whole.index_select(lay.dim, torch.tensor(lay.order, device=whole.device).argsort())
    return torch.cat([_apart(one, lay) for one in pieces], lay.dim + 1).flatten(lay.dim, lay.dim + 1)


def _in_order(lay: Cut) -> bool:
    """Whether the ranks' pieces lie one after another in memory."""
    return lay.dim == 0 and lay.parts == 1 and not lay.order


def _apart(tensor: torch.Tensor, lay: Cut) -> torch.Tensor:
    """The dim that is cut as two: its parts, and what each holds."""
    return tensor.reshape(*tensor.shape[: lay.dim], lay.parts, -1, *tensor.shape[lay.dim + 1 :])


def _shared(owned: Rows, wanted: Rows) -> Rows:
    """The rows that both have, in the order of the owner."""
    pairs = ((max(one[0], other[0]), min(one[1], other[1])) for one in owned for other in wanted)
    return tuple((start, end) for start, end in pairs if start < end)


def _length(rows: Rows) -> int:
    return sum(end - start for start, end in rows)


def _offset(rows: Rows, row: int) -> int:
    """Where `row` lies in a tensor that has `rows` one after another."""
    before = 0
    for start, end in rows:
        if start <= row < end:
            return before + row - start
        before += end - start
    raise ValueError(f"row {row} is not among {rows}")


def _rows(tensor: torch.Tensor, dim: int, held: Rows, chosen: Rows) -> torch.Tensor:
    """The rows `chosen` of a tensor that has those `held`."""
    parts = [tensor.narrow(dim, _offset(held, start), end - start) for start, end in chosen]
    return torch.cat(parts, dim) if parts else tensor.narrow(dim, 0, 0)


def _with(shape: Shape, dim: int, size: int) -> Shape:
    return (*shape[:dim], size, *shape[dim + 1 :])


def numbers(tensor: torch.Tensor, assumed: Sequence[int]) -> list[int]:
    """The values of a list of integers; `assumed` where it is fake."""
    if isinstance(tensor, FakeTensor):
        return list(assumed)
    return [int(value) for value in tensor.tolist()]
