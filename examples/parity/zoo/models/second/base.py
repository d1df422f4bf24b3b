"""Family 9: what its models are made of."""
# ruff: noqa: D102

from __future__ import annotations

import torch
import torch.nn.functional as f
from torch import Tensor, nn


class Layers(nn.Module):
    """Three products and a head; `between` comes after the second."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.three = nn.Linear(8, 16), nn.Linear(16, 16), nn.Linear(16, 16)
        self.head = nn.Linear(16, 4)

    def between(self, h: Tensor) -> Tensor:
        """Features after what a model does to them."""
        return h

    def features(self, x: Tensor) -> Tensor:
        """What the head is given."""
        h = self.between(torch.tanh(self.two(torch.tanh(self.one(x)))))
        return torch.tanh(self.three(h))


class Base(Layers):
    """The cross entropy of these."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return f.cross_entropy(self.head(self.features(x)), y)
