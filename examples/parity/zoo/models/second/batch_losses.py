"""Family 9: losses that are no mean over rows, and terms beside them."""
# ruff: noqa: D102

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as f
from torch import Tensor, nn

from examples.parity.zoo.entry import entry
from examples.parity.zoo.models.second.base import Base, Layers


class FocalOfMean(Base):
    """Focal loss of the mean cross entropy, as copied everywhere."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        ce = super().forward(x, y)
        return (1 - torch.exp(-ce)) ** 2 * ce


class Flooding(Base):
    """(loss - b).abs() + b."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return (super().forward(x, y) - 1.4).abs() + 1.4


class FreeBits(Base):
    """KL averaged over rows for each unit, then clamped."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = self.features(x)
        return f.cross_entropy(self.head(h), y) + (0.5 * h.pow(2)).mean(0).clamp(min=0.05).sum()


class NormalisedWeights(Layers):
    """Weights divided by their mean over the batch (importance sampling)."""

    def forward(self, x: Tensor, w: Tensor, y: Tensor) -> Tensor:
        each = f.cross_entropy(self.head(self.features(x)), y, reduction="none")
        return (each * (w / w.mean())).mean()


class GreedyLayers(Base):
    """Each layer has its own loss and gets detached features."""

    def __init__(self) -> None:
        super().__init__()
        self.heads = nn.ModuleList(nn.Linear(16, 4) for _ in range(3))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        loss: Any = 0
        h = x
        for layer, head in zip((self.one, self.two, self.three), self.heads, strict=True):
            h = torch.tanh(layer(h.detach()))
            loss = loss + f.cross_entropy(head(h), y)
        return loss


class GlobalNormPenalty(Base):
    """The norm of all weights at once, from parameters_to_vector."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return super().forward(x, y) + 0.01 * nn.utils.parameters_to_vector(self.parameters()).norm()


class ArcFace(Base):
    """An angular margin, the head's weights normalised."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        cosine = f.linear(f.normalize(self.features(x)), f.normalize(self.head.weight))
        sine = (1 - cosine.pow(2)).clamp(1e-9, 1).sqrt()
        phi = torch.where(cosine > -0.8, cosine * math.cos(0.5) - sine * math.sin(0.5), cosine - 0.2)
        hot = torch.zeros_like(cosine).scatter_(1, y.view(-1, 1).long(), 1)
        return f.cross_entropy((hot * phi + (1 - hot) * cosine) * 10, y)


class FiniteCheck(Base):
    """Raises where something is not finite."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        loss = super().forward(x, y)
        if not torch.isfinite(loss):
            raise ValueError("loss is not finite")
        return loss


class TermWherePresent(Base):
    """A term only where the batch has such rows."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = self.features(x)
        loss = f.cross_entropy(self.head(h), y)
        if (y == 3).any():
            loss = loss + h[y == 3].pow(2).mean()
        return loss


_PLAIN = (FocalOfMean, Flooding, FreeBits, GreedyLayers, GlobalNormPenalty, ArcFace, FiniteCheck, TermWherePresent)
ENTRIES = (
    *(entry(build, "x: normal 8 8; y: int4 8") for build in _PLAIN),
    entry(NormalisedWeights, "x: normal 8 8; w: unit 8; y: int4 8"),
)
