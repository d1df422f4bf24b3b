"""Family 9: sizes that matter, or look alike."""
# ruff: noqa: D102

from __future__ import annotations

import math

import torch
import torch.nn.functional as f
from torch import Tensor, nn

from examples.parity.zoo.entry import entry
from examples.parity.zoo.models.second.base import Base, Layers


class HardCodedRows(Base):
    """view(8, 4, 4): the batch size written as a number."""

    def between(self, h: Tensor) -> Tensor:
        return torch.softmax(h.view(8, 4, 4), -1).reshape(8, 16)


class BranchOnRows(Base):
    """Another path for small batches (the last one of an epoch)."""

    def between(self, h: Tensor) -> Tensor:
        if h.shape[0] > 4:
            return h * 2.0
        return h


class LearnedStep(Base):
    """LSQ: the step's gradient is scaled by 1/sqrt(numel of the activation), the value is not."""

    def __init__(self) -> None:
        super().__init__()
        self.step = nn.Parameter(torch.tensor(0.1))

    def between(self, h: Tensor) -> Tensor:
        g = 1.0 / math.sqrt(h.numel() * 7)
        s = (self.step - self.step * g).detach() + self.step * g
        v = (h / s).clamp(-8, 7)
        return (v + (v.round() - v).detach()) * s


class SquareSizes(nn.Module):
    """Rows, tokens, features and heads: all of them eight."""

    def __init__(self) -> None:
        super().__init__()
        self.positions = nn.Parameter(torch.randn(8, 8) * 0.1)
        self.one, self.two = nn.Linear(8, 8), nn.Linear(8, 8)
        self.mix = nn.Parameter(torch.eye(8))
        self.head = nn.Linear(8, 8)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = torch.tanh(self.one(x + self.positions))
        h = torch.einsum("btd,ts->bsd", h, self.mix)
        h = torch.tanh(self.two(h)).transpose(1, 2) @ h
        h = h.permute(2, 0, 1).softmax(0).permute(1, 2, 0)
        return f.cross_entropy(self.head(h.mean(1)), y)


class WrongAxis(SquareSizes):
    """The same with one transpose of rows and tokens too few: all sizes fit."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = torch.tanh(self.one(x))
        h = torch.einsum("tbd,ts->sbd", h, self.mix)
        h = torch.tanh(self.two(h))
        return f.cross_entropy(self.head(h.mean(0)), y)


class GivenPrototypes(Layers):
    """As many prototypes as rows, an input: shared by all rows."""

    def forward(self, x: Tensor, prototypes: Tensor, y: Tensor) -> Tensor:
        h = self.features(x)
        return f.cross_entropy(h @ self.features(prototypes).t(), y)


class GivenBias(Layers):
    """A matrix of rows by rows that nobody divides, added to features by chance of size."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(16, 8)

    def forward(self, x: Tensor, table: Tensor, y: Tensor) -> Tensor:
        return f.cross_entropy(self.head(self.features(x)) @ table, y)


class ScalarInput(Layers):
    """A temperature without dimensions is part of the batch."""

    def forward(self, x: Tensor, temperature: Tensor, y: Tensor) -> Tensor:
        return f.cross_entropy(self.head(self.features(x)) / (1 + temperature), y)


_PLAIN = (HardCodedRows, BranchOnRows, LearnedStep)
ENTRIES = (
    *(entry(build, "x: normal 8 8; y: int4 8") for build in _PLAIN),
    entry(SquareSizes, "x: normal 8 8 8; y: int8 8"),
    entry(WrongAxis, "x: normal 8 8 8; y: int8 8"),
    entry(GivenPrototypes, "x: normal 8 8; prototypes: normal 8 8; y: int8 8"),
    entry(GivenBias, "x: normal 8 8; table: normal 8 8; y: int8 8"),
    entry(ScalarInput, "x: normal 8 8; temperature: unit; y: int4 8"),
)
