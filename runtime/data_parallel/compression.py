"""FSDP2's reduce-scatter in 16 bits: what one rank has of a block's gradients is cast, summed, and its shard cast back.

Not by FSDP2's own reduce_dtype, which also adds up the gradients of microbatches in 16 bits (`FSDPParam.
to_accumulated_grad_if_needed`): here they are added as they are, and cast once, as under DDP.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import distributed as dist
from torch.distributed.fsdp._fully_shard._fsdp_api import ReduceScatter
from torch.distributed.fsdp._fully_shard._fsdp_collectives import DefaultReduceScatter

Op = dist.ReduceOp | dist.ReduceOp.RedOpType


class CompressedReduceScatter(ReduceScatter):
    """What FSDP2 calls in place of its own reduce-scatter, which sums in `dtype`."""

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype, self._plain = dtype, DefaultReduceScatter()

    def allocate(self, size: Sequence[int | torch.SymInt], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Memory for what is packed, and for the shard: in the type of the gradients."""
        return self._plain.allocate(size, dtype=dtype, device=device)

    def __call__(
        self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, group: dist.ProcessGroup, op: Op,
        async_op: bool = False,
    ) -> None:  # fmt: skip
        """Fill `output_tensor` with this rank's part of the sum; FSDP2 never asks for it asynchronously."""
        if input_tensor.is_complex():  # of which there are none of few bits
            self._plain(output_tensor, input_tensor, group, op)
            return
        shard = torch.empty_like(output_tensor, dtype=self._dtype)
        self._plain(shard, input_tensor.to(self._dtype), group, op)
        output_tensor.copy_(shard)
