"""Family 5: unused, late, frozen, shared and parametrised parameters."""
# ruff: noqa: D102

from __future__ import annotations

import torch
import torch.nn.functional as f
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from examples.parity.zoo.entry import entry


class NeverUsedHead(nn.Module):
    """A head for later, which no loss sees."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU())
        self.head = nn.Linear(16, 4)
        self.later = nn.Linear(16, 7)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return f.cross_entropy(self.head(self.body(x)), y)


class TiedTwice(nn.Module):
    """One matrix is the embedding, a product in the middle, and the head."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(16, 16)
        self.middle = nn.Linear(16, 16, bias=False)
        self.head = nn.Linear(16, 16, bias=False)
        self.middle.weight = self.embed.weight
        self.head.weight = self.embed.weight

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        h = torch.tanh(self.middle(self.embed(tokens)))
        return f.cross_entropy(self.head(h).flatten(0, 1), labels.flatten())


class WeightNormed(nn.Module):
    """weight_norm on each product."""

    def __init__(self) -> None:
        super().__init__()
        self.one = parametrizations.weight_norm(nn.Linear(8, 16))
        self.two = parametrizations.weight_norm(nn.Linear(16, 16))
        self.head = nn.Linear(16, 4)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return f.cross_entropy(self.head(torch.relu(self.two(torch.relu(self.one(x))))), y)


class FrozenBackbone(nn.Module):
    """A frozen body under a trained head."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU())
        for parameter in self.body.parameters():
            parameter.requires_grad_(False)
        self.head = nn.Linear(16, 4)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return f.cross_entropy(self.head(self.body(x)), y)


class ReZero(nn.Module):
    """Residual branches behind zero-dimensional gates."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 16)
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(3))
        self.gates = nn.ParameterList(nn.Parameter(torch.tensor(0.1)) for _ in range(3))
        self.head = nn.Linear(16, 4)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = self.first(x)
        for gate, layer in zip(self.gates, self.layers, strict=True):
            h = h + gate * torch.relu(layer(h))
        return f.cross_entropy(self.head(h), y)


ENTRIES = (
    entry(NeverUsedHead, "x: normal 8 8; y: int4 8"),
    entry(TiedTwice, "tokens: int16 8 6; labels: int16 8 6"),
    entry(WeightNormed, "x: normal 8 8; y: int4 8"),
    entry(FrozenBackbone, "x: normal 8 8; y: int4 8"),
    entry(ReZero, "x: normal 8 8; y: int4 8"),
)
