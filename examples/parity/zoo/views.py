"""Family 3: writes through views."""
# ruff: noqa: D102

from __future__ import annotations

import torch
import torch.nn.functional as f
from torch import Tensor, nn

from examples.parity.zoo.entry import entry


class Layers(nn.Module):
    """Two products and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Linear(8, 16)
        self.two = nn.Linear(16, 16)
        self.head = nn.Linear(16, 4)

    def loss(self, h: Tensor, y: Tensor) -> Tensor:
        return f.cross_entropy(self.head(torch.tanh(self.two(h))), y)


class ScaledSlice(Layers):
    """h[:, :4] *= 2."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = self.one(x)
        h[:, :4] *= 2
        return self.loss(h, y)


class ColumnPlusOne(Layers):
    """h[:, 3] += 1."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = self.one(x)
        h[:, 3] += 1
        return self.loss(h, y)


class WrittenView(Layers):
    """A view of heads of which the first is replaced."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = self.one(x)
        v = h.view(len(x), 4, 4)
        v[:, 0] = v[:, 1].detach()
        return self.loss(h, y)


class FilledZeros(Layers):
    """zeros_like, of which a half is written."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = self.one(x)
        z = torch.zeros_like(h)
        z[:, :8] = h[:, 8:].sigmoid()
        return self.loss(z + h, y)


class TransposedWrite(Layers):
    """h.t()[0] = ...: a column, seen as a row."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = self.one(x)
        h.t()[0] = 0.5
        return self.loss(h, y)


ENTRIES = (
    entry(ScaledSlice, "x: normal 8 8; y: int4 8"),
    entry(ColumnPlusOne, "x: normal 8 8; y: int4 8"),
    entry(WrittenView, "x: normal 8 8; y: int4 8"),
    entry(FilledZeros, "x: normal 8 8; y: int4 8"),
    entry(TransposedWrite, "x: normal 8 8; y: int4 8"),
)
