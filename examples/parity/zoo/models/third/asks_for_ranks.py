"""Family 10: models that ask torch.distributed who else is there, as training repositories do; by themselves nobody is.

Each step is the one of a device alone, whichever ranks compute it.
"""
# ruff: noqa: D102

from __future__ import annotations

import torch
from torch import Tensor, distributed, nn
from torch.distributed import is_initialized
from torch.nn import functional

from examples.parity.zoo.entry import entry
from examples.parity.zoo.models.third.taken_for_granted import Plain


def ranks() -> int:
    """How many there are."""
    return distributed.get_world_size() if is_initialized() else 1


def summed(tensor: Tensor) -> Tensor:
    """Over the ranks."""
    if ranks() > 1:
        tensor = tensor.clone()
        distributed.all_reduce(tensor)
    return tensor


class SyncedNorm(Plain):
    """torch's SyncBatchNorm, which among ranks runs on GPUs alone, and where there are none as a plain one."""

    def made(self) -> None:
        self.norm = nn.SyncBatchNorm(16)

    def features(self, h: Tensor) -> Tensor:
        return self.norm(h)


class CountedBoxes(Plain):
    """The sum of losses over a count of all ranks, as of boxes (arXiv:2005.12872)."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = self.last(torch.tanh(self.middle(torch.tanh(self.first(x)))))
        there = (y > 0).to(h.dtype)
        boxes = (summed(there.sum()) / ranks()).clamp(min=1)
        return (functional.cross_entropy(h, y, reduction="none") * there).sum() / boxes


class SharedCentre(Plain):
    """A centre that all ranks' outputs move (arXiv:2104.14294)."""

    centre: Tensor

    def made(self) -> None:
        self.register_buffer("centre", torch.zeros(16))

    def features(self, h: Tensor) -> Tensor:
        shifted = h - self.centre
        with torch.no_grad():
            self.centre.mul_(0.9).add_(summed(h.sum(0)) / (len(h) * ranks()), alpha=0.1)
        return shifted


class Gathered(nn.Module):
    """Each row against those of all ranks; picks by a mask."""

    def forward(self, h: Tensor) -> Tensor:
        if ranks() > 1:
            others = [torch.zeros_like(h) for _ in range(ranks())]
            distributed.all_gather(others, h)
            others[distributed.get_rank()] = h
            h = torch.cat(others)
        alike = functional.normalize(h, dim=1) @ functional.normalize(h, dim=1).t()
        return alike[alike < 1 - 1e-9].exp().mean().log()


class GatheredRows(Plain):
    """A contrastive loss that runs as it is on one rank, or on each, beside a loss of the rows."""

    def made(self) -> None:
        self.contrast = Gathered()

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = self.middle(torch.tanh(self.first(x)))
        return self.contrast(h) + functional.cross_entropy(self.last(torch.tanh(h)), y)


class WiderOnMore(Plain):
    """Built with as many layers as there are ranks."""

    def made(self) -> None:
        self.each = nn.ModuleList(nn.Linear(16, 16) for _ in range(ranks()))

    def features(self, h: Tensor) -> Tensor:
        for layer in self.each:
            h = torch.tanh(layer(h))
        return h


_ENTRIES = (SyncedNorm, CountedBoxes, SharedCentre, GatheredRows, WiderOnMore)
ENTRIES = tuple(entry(build, "x: normal 8 16; y: int4 8") for build in _ENTRIES)
