"""What this rank has of a sharded tensor (`local_part`), and all rows of it (`all_rows`), gathered by one collective.

`DTensor.full_tensor` does the same by a redistribution, which takes some milliseconds of Python for each tensor.
"""

from __future__ import annotations

import torch
from torch import distributed as dist
from torch.distributed.tensor import DTensor, Shard


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's part of a sharded tensor; any other as it is."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def all_rows(tensor: torch.Tensor) -> torch.Tensor:
    """The whole of a sharded tensor, which all ranks of its mesh ask for in the same order; any other as it is."""
    if not isinstance(tensor, DTensor):
        return tensor
    mesh, placements = tensor.device_mesh, tuple(tensor.placements)
    if mesh.ndim != 1 or placements != (Shard(0),):
        return tensor.full_tensor()
    own = tensor.to_local().detach()
    rows = -(-tensor.shape[0] // mesh.size())  # of each rank, as `torch.chunk` divides; the last ones may have fewer
    padded = own.new_zeros((rows, *tensor.shape[1:]))
    if own.numel():
        padded[: own.shape[0]] = own
    pieces = [torch.empty_like(padded) for _ in range(mesh.size())]
    dist.all_gather(pieces, padded, group=mesh.get_group())
    return torch.cat(pieces)[: tensor.shape[0]]
