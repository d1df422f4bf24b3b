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
# So many numbers are summed at once: as whole ones of 8 bytes they take more than the parameter does.
_AT_ONCE = 2**20
# Odd, with as many bits set as not (2**64 / golden ratio; a multiplier of SplitMix64, Steele et al. 2014), as signed.
_OF_PLACES, _OF_WORDS = 0x9E3779B97F4A7C15 - 2**64, 0xBF58476D1CE4E5B9 - 2**64


def require_same_weights(stages: Mapping[int, StageModule], ranks: tuple[int, ...]) -> None:
    """Raise UsageError on every rank where the replicas of its `stages`, which `ranks` hold, differ in a parameter that
    they do not shard; all ranks of the process group call it. Buffers may hold nothing yet: a forward writes them."""
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return
    held = [held for stage in stages.values() for held in stage.own_parameters().items()]
    sums = {name: _sum(tensor) for name, tensor in held if not isinstance(tensor, DTensor)}
    every: list[tuple[int, int]] = [(0, 0)] * dist.get_world_size()
    dist.all_gather_object(every, (ranks[0], hash(tuple(sums[name] for name in sorted(sums)))))
    unlike = next((rank for rank, (first, found) in enumerate(every) if found != every[first][1]), None)
    if unlike is None:
        return
    first, tables = every[unlike][0], [dict[str, int]() for _ in every]
    dist.all_gather_object(tables, sums)
    here, there = tables[first], tables[unlike]
    name = next(name for name in {**here, **there} if here.get(name) != there.get(name))
    raise UsageError(
        f"rank {unlike} begins with other weights than rank {first} ({name} differs), which hold the same; build the "
        "same model on every rank: draw by torch's, Python's or numpy's shared generators, which are seeded, or by one "
        "that you seed, and give load one model"
    )


def _sum(tensor: torch.Tensor) -> int:
    """Of the bits and where they stand, as whole numbers that wrap around: the same numbers elsewhere give another."""
    flat = tensor.detach().contiguous().reshape(-1)
    flat = torch.view_as_real(flat).reshape(-1) if flat.is_complex() else flat
    words, total = flat.view(_WORDS[flat.element_size()]), torch.zeros((), dtype=torch.int64, device=flat.device)
    for first in range(0, len(words), _AT_ONCE):
        part = words[first : first + _AT_ONCE]
        mixed = torch.arange(first, first + len(part), device=part.device).mul_(_OF_PLACES)
        mixed.bitwise_xor_(part.long()).mul_(_OF_WORDS)
        total += mixed.bitwise_xor_(mixed >> 32).sum()
    return int(total)
