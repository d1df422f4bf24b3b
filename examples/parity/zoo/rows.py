"""Family 1: rows that mix before the loss."""
# ruff: noqa: D102

from __future__ import annotations

import torch
import torch.nn.functional as f
from torch import Tensor, nn

from examples.parity.zoo.entry import entry


class Net(nn.Module):
    """Two products with a tanh between, and a head: what most models of this file stand on."""

    def __init__(self, classes: int = 6) -> None:
        super().__init__()
        self.first = nn.Linear(12, 16)
        self.second = nn.Linear(16, 16)
        self.head = nn.Linear(16, classes)

    def features(self, x: Tensor) -> Tensor:
        return torch.tanh(self.second(torch.tanh(self.first(x))))


class CentredRows(Net):
    """Features less their mean over the batch."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = self.features(x)
        return f.cross_entropy(self.head(h - h.mean(0)), y)


class BatchSoftmax(Net):
    """Rows weighted by a softmax along the batch."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = self.features(x)
        weight = self.head(h)[:, 0].softmax(0)
        return (weight * f.cross_entropy(self.head(h), y, reduction="none")).sum()


class RolledRows(Net):
    """Each row beside the one before it, the first beside the last."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = self.features(x)
        return f.cross_entropy(self.head(h + 0.5 * torch.roll(h, 1, 0)), y)


class DividedByRows(Net):
    """A scale by the number of rows in the middle of the model."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = self.features(x)
        return f.cross_entropy(self.head(h / h.shape[0]), y)


class FirstRowQuery(Net):
    """The first row is a query to all."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = self.features(x)
        return f.cross_entropy(self.head(h * h[0]), y)


class ClipPairs(Net):
    """CLIP: both sides of a batch of pairs, a learned temperature."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(20, 16)
        self.scale = nn.Parameter(torch.tensor(1.0))

    def forward(self, x: Tensor, words: Tensor) -> Tensor:
        images = f.normalize(self.features(x), dim=-1)
        texts = f.normalize(self.words(words).mean(1), dim=-1)
        logits = self.scale.exp() * images @ texts.T
        target = torch.arange(len(x), device=x.device)
        return (f.cross_entropy(logits, target) + f.cross_entropy(logits.T, target)) / 2


ENTRIES = (
    entry(CentredRows, "x: normal 8 12; y: int6 8"),
    entry(BatchSoftmax, "x: normal 8 12; y: int6 8"),
    entry(RolledRows, "x: normal 8 12; y: int6 8"),
    entry(DividedByRows, "x: normal 8 12; y: int6 8"),
    entry(FirstRowQuery, "x: normal 8 12; y: int6 8"),
    entry(ClipPairs, "x: normal 8 12; words: int20 8 3"),
)
