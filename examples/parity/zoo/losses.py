"""Family 2: losses of losses."""
# ruff: noqa: D102

from __future__ import annotations

import torch
import torch.nn.functional as f
from torch import Tensor, nn

from examples.parity.zoo.entry import entry


class Heads(nn.Module):
    """A body with a head for classes and one for numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(10, 16), nn.GELU(), nn.Linear(16, 16), nn.GELU())
        self.classes = nn.Linear(16, 5)
        self.number = nn.Linear(16, 1)


class StackedMeans(Heads):
    """torch.stack of two means, summed."""

    def forward(self, x: Tensor, y: Tensor, z: Tensor) -> Tensor:
        h = self.body(x)
        terms = [f.cross_entropy(self.classes(h), y), f.mse_loss(self.number(h).squeeze(-1), z)]
        return torch.stack(terms).sum()


class MaskedTokens(nn.Module):
    """A loss of tokens divided by how many the mask keeps."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(30, 16)
        self.mix = nn.Linear(16, 16)
        self.head = nn.Linear(16, 30)

    def forward(self, tokens: Tensor, labels: Tensor, mask: Tensor) -> Tensor:
        logits = self.head(torch.relu(self.mix(self.embed(tokens))))
        each = f.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none").view(labels.shape)
        return (each * mask).sum() / mask.sum()


class RootMeanSquare(Heads):
    """RMSE: the root of a mean."""

    def forward(self, x: Tensor, z: Tensor) -> Tensor:
        return torch.sqrt(f.mse_loss(self.number(self.body(x)).squeeze(-1), z) + 1e-8)


class DecayByHand(Heads):
    """A data term and the squares of the weights."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        decay = sum(p.pow(2).sum() for p in self.parameters())
        return f.cross_entropy(self.classes(self.body(x)), y) + 1e-3 * decay


class UncertainTasks(Heads):
    """Kendall's weights: each task's variance is learned."""

    def __init__(self) -> None:
        super().__init__()
        self.log_variance = nn.Parameter(torch.zeros(2))

    def forward(self, x: Tensor, y: Tensor, z: Tensor) -> Tensor:
        h = self.body(x)
        one = f.cross_entropy(self.classes(h), y)
        two = f.mse_loss(self.number(h).squeeze(-1), z)
        terms = torch.stack((one, two))
        return (terms * torch.exp(-self.log_variance) + self.log_variance).sum()


ENTRIES = (
    entry(StackedMeans, "x: normal 8 10; y: int5 8; z: normal 8"),
    entry(MaskedTokens, "tokens: int30 8 7; labels: int30 8 7; mask: bool 8 7"),
    entry(RootMeanSquare, "x: normal 8 10; z: normal 8"),
    entry(DecayByHand, "x: normal 8 10; y: int5 8"),
    entry(UncertainTasks, "x: normal 8 10; y: int5 8; z: normal 8"),
)
