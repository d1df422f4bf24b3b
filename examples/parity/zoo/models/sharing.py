"""Family 5: parameters that are shared, tied, sliced, parametrised, or lie in dictionaries."""
# ruff: noqa: D102

from __future__ import annotations

import torch
import torch.nn.functional as f
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize

from examples.parity.zoo.entry import entry
from examples.parity.zoo.models.parameters import Stack


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


class TiedTranspose(nn.Module):
    """An autoencoder whose decoder is the encoder's transpose."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.randn(16, 8) / 3)
        self.b = nn.Parameter(torch.randn(4, 16) / 4)
        self.out = nn.Parameter(torch.zeros(8))

    def forward(self, x: Tensor) -> Tensor:
        z = f.linear(torch.tanh(f.linear(x, self.a)), self.b)
        return f.mse_loss(f.linear(torch.tanh(f.linear(z, self.b.t())), self.a.t(), self.out), x)


class CalledThrice(Stack):
    """One module three times (ALBERT)."""

    def hidden(self, x: Tensor) -> Tensor:
        h = self.first(x)
        for _ in range(3):
            h = torch.tanh(self.layers[0](h))
        return self.layers[2](self.layers[1](h))


class SameModuleTwice(nn.Module):
    """One module under two names, and in a list."""

    def __init__(self) -> None:
        super().__init__()
        shared = nn.Linear(16, 16)
        self.first = nn.Linear(8, 16)
        self.left, self.right = shared, shared
        self.rest = nn.ModuleList([shared, nn.Linear(16, 4)])

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = torch.relu(self.left(torch.relu(self.first(x))))
        return f.cross_entropy(self.rest[1](torch.relu(self.rest[0](h) + self.right(h))), y)


class WeightNormed(nn.Module):
    """weight_norm on each product."""

    def __init__(self) -> None:
        super().__init__()
        self.one = parametrizations.weight_norm(nn.Linear(8, 16))
        self.two = parametrizations.weight_norm(nn.Linear(16, 16), dim=1)
        self.head = nn.Linear(16, 4)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return f.cross_entropy(self.head(torch.relu(self.two(torch.relu(self.one(x))))), y)


class Orthogonal(nn.Module):
    """A product kept orthogonal by Householder reflections or a Cayley map."""

    def __init__(self) -> None:
        super().__init__()
        self.one = parametrizations.orthogonal(nn.Linear(8, 8, bias=False), orthogonal_map="cayley")
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return f.cross_entropy(self.head(torch.relu(self.one(x))), y)


class Symmetric(nn.Module):
    """A parametrisation of one's own: a symmetric matrix."""

    def forward(self, w: Tensor) -> Tensor:
        return w.triu() + w.triu(1).transpose(-1, -2)


class Positive(nn.Module):
    """Another: positive weights."""

    def forward(self, w: Tensor) -> Tensor:
        return f.softplus(w)


class OwnParametrised(nn.Module):
    """Symmetric in the middle, positive at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 16)
        self.middle = nn.Linear(16, 16)
        self.head = nn.Linear(16, 4)
        parametrize.register_parametrization(self.middle, "weight", Symmetric())
        parametrize.register_parametrization(self.head, "weight", Positive())

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return f.cross_entropy(self.head(torch.tanh(self.middle(torch.tanh(self.first(x))))), y)


class ByDictionary(nn.Module):
    """ParameterDict and ModuleDict, names with dots left out."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.ParameterDict({"in": torch.randn(16, 8) / 3, "out": torch.randn(4, 16) / 4})
        self.acts = nn.ModuleDict({"smooth": nn.GELU(), "gate": nn.PReLU(16)})

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = self.acts["gate"](f.linear(x, self.weights["in"]))
        return f.cross_entropy(f.linear(self.acts["smooth"](h), self.weights["out"]), y)


class SharedGroups(Stack):
    """One bias for all layers, one scale for all features."""

    def __init__(self) -> None:
        super().__init__()
        self.common = nn.Parameter(torch.zeros(16))
        for layer in self.layers:
            assert isinstance(layer, nn.Linear)
            layer.bias = self.common


class ParameterSlices(nn.Module):
    """One long vector holds all weights: slices are views of it."""

    def __init__(self) -> None:
        super().__init__()
        self.theta = nn.Parameter(torch.randn(8 * 16 + 16 * 4) / 4)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        one, two = torch.split(self.theta, [128, 64])
        return f.cross_entropy(torch.tanh(x @ one.view(8, 16)) @ two.view(16, 4), y)


_PLAIN = (
    CalledThrice, SameModuleTwice, WeightNormed, Orthogonal, OwnParametrised, ByDictionary, SharedGroups,
    ParameterSlices,
)  # fmt: skip
ENTRIES = (
    *(entry(build, "x: normal 8 8; y: int4 8") for build in _PLAIN),
    entry(TiedTwice, "tokens: int16 8 6; labels: int16 8 6"),
    entry(TiedTranspose, "x: normal 8 8"),
)
