"""Optimizer state divided over the replicas of a stage, whose parameters and gradients are whole (ZeRO 1).

A replica updates the rows of dim 0 that FSDP2 would leave it (pieces as of `torch.chunk`), as DTensors that are views
of the parameters; `gather` then gives every replica all rows. Parameters without dims are updated by each.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard


class Zero1:
    """The replicas `group` of a stage, which divide its optimizer's state."""

    def __init__(self, group: dist.ProcessGroup, ranks: tuple[int, ...], device: torch.device) -> None:
        self._group, self._ranks = group, len(ranks)
        self._mesh = DeviceMesh.from_group(group, device.type, mesh=list(ranks))

    def own(self, tensor: torch.Tensor) -> torch.Tensor:
        """The rows of a parameter, or of its gradient, that this rank updates, in the same memory."""
        if not tensor.dim():
            return tensor
        tensor = tensor.detach()
        rows = self._rows(tensor, self._mesh.get_local_rank())
        return DTensor.from_local(
            rows, self._mesh, (Shard(0),), run_check=False, shape=tensor.shape, stride=tensor.stride()
        )

    @torch.no_grad()
    def gather(self, parameters: Sequence[torch.Tensor]) -> int:
        """Take the rows of `parameters` (of one type) that other ranks updated; the bytes of all with their padding."""
        mine = self._packed(parameters)
        pieces = [torch.empty_like(mine) for _ in range(self._ranks)]
        dist.all_gather(pieces, mine, group=self._group)
        others = [rank for rank in range(self._ranks) if rank != self._mesh.get_local_rank()]
        found = [pair for rank in others for pair in self._pairs(pieces[rank], parameters, rank)]
        _copy(found)
        return self._ranks * mine.numel() * mine.element_size()

    def _packed(self, parameters: Sequence[torch.Tensor]) -> torch.Tensor:
        """This rank's rows, those of each parameter padded to as many as every rank has."""
        packed = parameters[0].new_zeros(sum(self._padded(parameter) for parameter in parameters))
        pairs = self._pairs(packed, parameters, self._mesh.get_local_rank())
        _copy([(piece, rows) for rows, piece in pairs])
        return packed

    def _pairs(
        self, packed: torch.Tensor, parameters: Sequence[torch.Tensor], rank: int
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """The rows of a rank where they belong, and where they are packed."""
        at = 0
        for parameter in parameters:
            rows = self._rows(parameter.detach(), rank)
            yield rows, packed[at : at + rows.numel()].view(rows.shape)
            at += self._padded(parameter)

    def _rows(self, tensor: torch.Tensor, rank: int) -> torch.Tensor:
        size, each = tensor.shape[0], self._each(tensor)
        start = min(size, rank * each)
        return tensor[start : min(size, start + each)]

    def _padded(self, tensor: torch.Tensor) -> int:
        return self._each(tensor) * tensor.shape[1:].numel()

    def _each(self, tensor: torch.Tensor) -> int:
        return -(-tensor.shape[0] // self._ranks)


def _copy(pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> None:
    """Into the first of each pair the second: on GPUs few kernels whatever their number, as FSDP2 does."""
    full = [(target, source) for target, source in pairs if target.numel()]
    if full:
        targets, sources = zip(*full, strict=True)
        torch._foreach_copy_(list(targets), list(sources))
