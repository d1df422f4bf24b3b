"""Family 9: alike blocks, and what tells them apart."""
# ruff: noqa: D102

from __future__ import annotations

import torch
from torch import Tensor, nn

from examples.parity.zoo.entry import entry
from examples.parity.zoo.models.second.base import Base


class Blk(nn.Module):
    """A residual layer with a scale."""

    def __init__(self, scale: float = 1.0, index: int = 0) -> None:
        super().__init__()
        self.fc, self.scale, self.index = nn.Linear(16, 16), scale, index

    def forward(self, h: Tensor) -> Tensor:
        return h + torch.tanh(self.fc(h)) * self.scale


class Six(Base):
    """Six alike blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Blk() for _ in range(6))


class LenBlocks(Six):
    """Divided by len(self.blocks)."""

    def between(self, h: Tensor) -> Tensor:
        for b in self.blocks:
            h = b(h)
        return h / len(self.blocks)


class CountedLoop(Six):
    """A python number counted in the loop over blocks, used after it."""

    def between(self, h: Tensor) -> Tensor:
        n = 0
        for b in self.blocks:
            h = b(h)
            n += 1
        return h / n


class MiddleScale(Base):
    """The fourth of six has another attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Blk(0.3 if i == 3 else 1.0) for i in range(6))

    def between(self, h: Tensor) -> Tensor:
        for b in self.blocks:
            h = b(h)
        return h


class GrowingScale(Base):
    """1/(i+1) as an attribute of each (Megatron's layer number)."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Blk(1 / (i + 1)) for i in range(6))

    def between(self, h: Tensor) -> Tensor:
        for b in self.blocks:
            h = b(h)
        return h


class CollectEvery(Six):
    """Features of some blocks are collected, as dense prediction has them."""

    def between(self, h: Tensor) -> Tensor:
        kept = []
        for i, b in enumerate(self.blocks):
            h = b(h)
            if i in (1, 4):
                kept.append(h)
        return torch.stack(kept).mean(0)


class AllHidden(Six):
    """All hidden states, a learned mix (ELMo)."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Parameter(torch.arange(6.0))

    def between(self, h: Tensor) -> Tensor:
        kept = []
        for b in self.blocks:
            h = b(h)
            kept.append(h)
        return (torch.stack(kept, -1) * self.mix.softmax(0)).sum(-1)


class HalvedScale(Six):
    """A number halved in the loop, used by each block."""

    def between(self, h: Tensor) -> Tensor:
        s = 1.0
        for b in self.blocks:
            h = b(h * s)
            s *= 0.5
        return h * s


class LayerIndex(nn.Module):
    """A layer that divides by its level."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(16, 16)

    def forward(self, h: Tensor, level: int = 0) -> Tensor:
        return torch.tanh(self.fc(h)) / (level + 1)


class DepthArgument(Base):
    """Blocks are given their index."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(LayerIndex() for _ in range(4))

    def between(self, h: Tensor) -> Tensor:
        for i, block in enumerate(self.blocks):
            h = h + block(h, level=i)
        return h


_PLAIN = (LenBlocks, CountedLoop, MiddleScale, GrowingScale, CollectEvery, AllHidden, HalvedScale, DepthArgument)
ENTRIES = tuple(entry(build, "x: normal 8 8; y: int4 8") for build in _PLAIN)
