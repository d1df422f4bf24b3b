"""Axis: the devices of a replica and this rank among them, with the collectives that local ops and conversions need.

All take and give tensors without history; pieces of a dim are those of `placer.rules.layouts.piece`.
"""

from __future__ import annotations

from math import prod

import torch
from torch import distributed as dist
from torch import nn

from placer.errors import UsageError
from placer.rules.layouts import piece

Shape = tuple[int, ...]


class Axis(nn.Module):
    """`rank` of `degree`; a module, so that graphs can hold it. Without a group it can be shown, not run."""

    def __init__(self, degree: int, rank: int, group: dist.ProcessGroup | None = None) -> None:
        super().__init__()
        self.degree, self.rank, self.group = degree, rank, group

    def extra_repr(self) -> str:
        """Shown where a graph names it."""
        return f"{self.rank} of {self.degree}"

    def bounds(self, size: int) -> tuple[tuple[int, int], ...]:
        """Start and end of every rank's piece of `size`."""
        return tuple(piece(size, self.degree, rank) for rank in range(self.degree))

    def own(self, tensor: torch.Tensor, dim: int) -> torch.Tensor:
        """This rank's piece of a whole tensor, contiguous."""
        start, end = piece(tensor.shape[dim], self.degree, self.rank)
        return tensor.narrow(dim, start, end - start).contiguous()

    def own_shape(self, shape: Shape, dim: int) -> Shape:
        """The shape of this rank's piece."""
        start, end = piece(shape[dim], self.degree, self.rank)
        return _with(shape, dim, end - start)

    def all_reduce(self, tensor: torch.Tensor, reduce: str = "sum") -> torch.Tensor:
        """The sum or maximum (`"sum"`, `"max"`) over the ranks."""
        made = tensor.detach().contiguous().clone()
        dist.all_reduce(made, dist.ReduceOp.MAX if reduce == "max" else dist.ReduceOp.SUM, group=self._ready())
        return made

    def all_gather(self, tensor: torch.Tensor, dim: int, size: int | None = None) -> torch.Tensor:
        """The whole of the ranks' pieces of dim `dim`; `size` of the whole, None where all pieces are equal."""
        own = tensor.contiguous()
        if size is None:
            parts = [torch.empty_like(own) for _ in range(self.degree)]
            dist.all_gather(parts, own, group=self._ready())
        else:
            shapes = [_with(tensor.shape, dim, end - start) for start, end in self.bounds(size)]
            parts = self.exchange([own] * self.degree, shapes)
        return torch.cat(parts, dim)

    def reduce_scatter(self, tensor: torch.Tensor, dim: int) -> torch.Tensor:
        """This rank's piece of the sum over the ranks."""
        parts = [tensor.narrow(dim, start, end - start).contiguous() for start, end in self.bounds(tensor.shape[dim])]
        mine = parts[self.rank]
        if len({part.shape for part in parts}) == 1:
            made = torch.empty_like(mine)
            dist.reduce_scatter(made, parts, group=self._ready())
            return made
        found = self.exchange(parts, [tuple(mine.shape)] * self.degree)
        return torch.stack(found).sum(0)

    def swap(self, tensor: torch.Tensor, dim: int, to: int, size: int | None = None) -> torch.Tensor:
        """From pieces of `dim` (whole: `size`, None where all pieces are equal) to pieces of `to`."""
        parts = [tensor.narrow(to, start, end - start) for start, end in self.bounds(tensor.shape[to])]
        mine = parts[self.rank].shape
        bounds = self.bounds(tensor.shape[dim] * self.degree if size is None else size)
        return torch.cat(self.exchange(parts, [_with(mine, dim, end - start) for start, end in bounds]), dim)

    def all_to_all(self, tensor: torch.Tensor, counts: list[int]) -> tuple[torch.Tensor, list[int]]:
        """Sends `counts[r]` rows to rank r, in order; the rows received, in the order of ranks, how many of each."""
        told = torch.tensor(counts, device=tensor.device)
        heard = torch.empty_like(told)
        dist.all_to_all_single(heard, told, group=self._ready())
        received = [int(count) for count in heard.tolist()]
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


def _with(shape: Shape, dim: int, size: int) -> Shape:
    return (*shape[:dim], size, *shape[dim + 1 :])
