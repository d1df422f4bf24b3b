"""Whether all ranks were given the same batch: each takes its own rows of it, so that others would train on a mixture.

A rank's own share of the data, as `torch.utils.data.DistributedSampler` deals it, is the usual mistake: the loss of a
step looks as it should.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import torch
from torch import distributed as dist

from placer.errors import UsageError
from placer.runtime.stages.batch_values import Batch


def require_same_batch(batch: Batch, inputs: Sequence[str]) -> None:
    """Raise UsageError on every rank where batches differ in one of the model's `inputs`, or one lacks it; all ranks of
    the process group call it, before any of them refuses its own."""
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return
    held: object = batch  # whatever the caller's loop gave: what is no batch at all is refused behind this, on its rank
    mine = {name: _digest(held[name]) for name in inputs if name in held} if isinstance(held, Mapping) else {}
    every: list[dict[str, str]] = [{}] * dist.get_world_size()
    dist.all_gather_object(every, mine)
    for rank, given in enumerate(every):
        unlike = [name for name in inputs if given.get(name) != every[0].get(name)]
        if unlike:
            raise UsageError(
                f"rank {rank} was given another batch than rank 0 (input {unlike[0]} differs); give the same global "
                "batch on every rank: each computes its own rows of it, so leave out a DistributedSampler, and seed "
                "what draws or shuffles alike"
            )


def _digest(tensor: object) -> str:
    """Of its type, its shape and its bytes; of what is no tensor the name of its type."""
    if not isinstance(tensor, torch.Tensor):
        return type(tensor).__name__
    held = tensor.detach().cpu().resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format).reshape(-1)
    found = hashlib.blake2b(f"{tensor.dtype} {tuple(tensor.shape)}".encode(), digest_size=16)
    found.update(held.view(torch.uint8).numpy().tobytes())
    return found.hexdigest()
