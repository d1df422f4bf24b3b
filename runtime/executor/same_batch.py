"""Whether all ranks were given the same batch: each takes its own rows of it, so that others would train on a mixture.

A rank's own share of the data, as `torch.utils.data.DistributedSampler` deals it, is the usual mistake: the loss of a
step looks as it should.
"""

from __future__ import annotations

import hashlib

import torch
from torch import distributed as dist

from placer.errors import UsageError
from placer.runtime.stages.batch_values import Batch


def require_same_batch(batch: Batch) -> None:
    """Raise UsageError on every rank where batches differ; all ranks of the process group call it."""
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return
    mine = {name: _digest(tensor) for name, tensor in sorted(batch.items())}
    every: list[dict[str, str]] = [{}] * dist.get_world_size()
    dist.all_gather_object(every, mine)
    for rank, given in enumerate(every):
        unlike = [name for name, digest in every[0].items() if given.get(name) != digest]
        if unlike:
            raise UsageError(
                f"rank {rank} was given another batch than rank 0 (input {unlike[0]} differs); give the same global "
                "batch on every rank: each computes its own rows of it, so leave out a DistributedSampler, and seed "
                "what draws or shuffles alike"
            )


def _digest(tensor: torch.Tensor) -> str:
    """Of its bytes; the shape and the type are known to be those of the plan."""
    held = tensor.detach().cpu().contiguous().reshape(-1)
    return hashlib.blake2b(held.view(torch.uint8).numpy().tobytes(), digest_size=16).hexdigest()
