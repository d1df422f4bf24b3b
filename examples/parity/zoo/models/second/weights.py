"""Family 9: weights shared, frozen and pruned, layers patched, called by methods, written through."""
# ruff: noqa: D102

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as f
from torch import Tensor, nn
from torch.nn.utils import prune

from examples.parity.zoo.entry import entry
from examples.parity.zoo.models.second.base import Base


class DataTied(nn.Module):
    """decoder.weight.data = encoder.weight.data: two parameters in one storage."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.middle, self.decoder = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)
        self.decoder.weight.data = self.encoder.weight.data

    def forward(self, x: Tensor) -> Tensor:
        return f.mse_loss(self.decoder(torch.tanh(self.middle(torch.tanh(self.encoder(x))))), x)


class FrozenEnds(Base):
    """First and last layers do not train: random features, fixed classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.one.requires_grad_(False)
        self.head.requires_grad_(False)


class Pruned(Base):
    """prune.l1_unstructured: weight_orig, weight_mask, a pre-hook."""

    def __init__(self) -> None:
        super().__init__()
        prune.l1_unstructured(self.two, "weight", 0.5)  # type: ignore[no-untyped-call]  # torch does not type it
        prune.random_structured(self.three, "weight", amount=0.25, dim=0)  # type: ignore[no-untyped-call]  # nor this


class ReassignedForward(Base):
    """self.two.forward is replaced by a wrapped one (adapters by monkey patch)."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.up = nn.Linear(16, 2, bias=False), nn.Linear(2, 16, bias=False)
        two: Any = self.two
        plain = two.forward
        two.forward = lambda h: plain(h) + self.up(self.down(h))


class InplaceBlock(nn.Module):
    """A layer that changes what it is given and returns nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(16, 16)

    def forward(self, x: Tensor) -> None:
        x += torch.tanh(self.fc(x.clone()))


class InplaceBlocks(Base):
    """Blocks that change what they are given; an earlier name of it is read at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(InplaceBlock() for _ in range(3))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = self.one(x)
        kept = h
        for block in self.blocks:
            block(h)
        return f.cross_entropy(self.head(torch.tanh(kept)), y)


class MethodsNotForward(nn.Module):
    """The parts are called by methods, layers by slices and in reverse, weights read without their module."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 16))
        self.back = nn.ModuleList([nn.Linear(16, 8), nn.Linear(16, 16)])

    def encode(self, x: Tensor) -> Tensor:
        return self.net[2:](self.net[:2](x))

    def decode(self, z: Tensor) -> Tensor:
        for layer in reversed(self.back):
            z = torch.tanh(layer.forward(z))
        return z

    def forward(self, x: Tensor) -> Tensor:
        z = self.encode(x)
        last: Any = self.net[4]
        return f.mse_loss(self.decode(z), x) + 1e-2 * (z @ last.weight.t()).pow(2).mean()


_PLAIN = (FrozenEnds, Pruned, ReassignedForward, InplaceBlocks)
ENTRIES = (
    *(entry(build, "x: normal 8 8; y: int4 8") for build in _PLAIN),
    entry(DataTied, "x: normal 8 8"),
    entry(MethodsNotForward, "x: normal 8 8"),
)
