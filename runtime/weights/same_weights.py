"""Whether replicas begin with the same weights: each would train its own otherwise, and their sum of gradients be
nobody's, while the loss of a step looks as it should.

A factory that draws by a generator of its own that nobody seeded, and a model given to `load` that each rank built by
itself, are the usual mistakes.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import distributed as dist
from torch.distributed.tensor import DTensor

from placer.errors import UsageError
from placer.runtime.stages.stage import StageModule

_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def require_same_weights(stages: Mapping[int, StageModule], ranks: tuple[int, ...]) -> None:
    """Raise UsageError on every rank where the replicas of its `stages`, which `ranks` hold, differ in a parameter that
    they do not shard; all ranks of the process group call it. Buffers may hold nothing yet: a forward writes them."""
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return
    held = [held for stage in stages.values() for held in stage.own_parameters().items()]
    sums = {name: _sum(tensor) for name, tensor in held if not isinstance(tensor, DTensor)}
    every: list[tuple[int, int]] = [(0, 0)] * dist.get_world_size()
    dist.all_gather_object(every, (ranks[0], hash(tuple(sums.values()))))
    unlike = next((rank for rank, (first, found) in enumerate(every) if found != every[first][1]), None)
    if unlike is None:
        return
    first, tables = every[unlike][0], [dict[str, int]() for _ in every]
    dist.all_gather_object(tables, sums)
    name = next(name for name, found in tables[unlike].items() if found != tables[first].get(name))
    raise UsageError(
        f"rank {unlike} begins with other weights than rank {first} ({name} differs), which hold the same; build the "
        "same model on every rank: draw by torch's, Python's or numpy's shared generators, which are seeded, or by one "
        "that you seed, and give load one model"
    )


def _sum(tensor: torch.Tensor) -> int:
    """Of the bits, as whole numbers that wrap around."""
    flat = tensor.detach().contiguous().reshape(-1)
    flat = torch.view_as_real(flat).reshape(-1) if flat.is_complex() else flat
    return int(flat.view(_WORDS[flat.element_size()]).sum(dtype=torch.int64))
