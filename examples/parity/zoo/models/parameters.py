"""Family 5: unused, late, frozen, shared and parametrised parameters."""
# ruff: noqa: D102

from __future__ import annotations

import torch
import torch.nn.functional as f
from torch import Tensor, nn

from examples.parity.zoo.entry import entry
from placer.plans.settings import RunSettings


class Stack(nn.Module):
    """Some products and a head."""

    def __init__(self, layers: int = 3) -> None:
        super().__init__()
        self.first = nn.Linear(8, 16)
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(layers))
        self.head = nn.Linear(16, 4)

    def hidden(self, x: Tensor) -> Tensor:
        """Features."""
        h = torch.relu(self.first(x))
        for layer in self.layers:
            h = h + torch.relu(layer(h))
        return h

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return f.cross_entropy(self.head(self.hidden(x)), y)


class NeverUsedHead(Stack):
    """A head for later, which no loss sees."""

    def __init__(self) -> None:
        super().__init__()
        self.later = nn.Linear(16, 7)


class ComputedUnused(Stack):
    """An output that is computed, returned and not in the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.value = nn.Linear(16, 1)

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        h = self.hidden(x)
        return f.cross_entropy(self.head(h), y), self.value(h)


class DetachedBranch(Stack):
    """A probe on detached features: its own gradients, none below."""

    def __init__(self) -> None:
        super().__init__()
        self.probe = nn.Linear(16, 4)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = self.hidden(x)
        return f.cross_entropy(self.head(h), y) + f.cross_entropy(self.probe(h.detach()), y)


class ZeroWeightTerm(Stack):
    """0 * out.sum(), so that DDP does not complain."""

    def __init__(self) -> None:
        super().__init__()
        self.spare = nn.Linear(16, 3)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = self.hidden(x)
        return f.cross_entropy(self.head(h), y) + 0.0 * self.spare(h).sum()


class FrozenBackbone(Stack):
    """A frozen body under a trained head."""

    def __init__(self) -> None:
        super().__init__()
        self.first.requires_grad_(False)
        self.layers.requires_grad_(False)


class FrozenMiddle(Stack):
    """A frozen layer between trained ones, and a frozen bias."""

    def __init__(self) -> None:
        super().__init__()
        self.layers[1].requires_grad_(False)
        assert isinstance(self.head.bias, Tensor)
        self.head.bias.requires_grad_(False)


class NoGradBody(Stack):
    """The body under torch.no_grad(), its parameters still asking for gradients."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        with torch.no_grad():
            h = self.hidden(x)
        return f.cross_entropy(self.head(h), y)


class LowRank(Stack):
    """LoRA: frozen products with small trained ones beside."""

    def __init__(self) -> None:
        super().__init__()
        self.layers.requires_grad_(False)
        self.down = nn.ParameterList(nn.Parameter(torch.randn(2, 16) / 4) for _ in range(3))
        self.up = nn.ParameterList(nn.Parameter(torch.zeros(16, 2)) for _ in range(3))

    def hidden(self, x: Tensor) -> Tensor:
        h = torch.relu(self.first(x))
        for layer, down, up in zip(self.layers, self.down, self.up, strict=True):
            h = h + torch.relu(layer(h) + f.linear(f.linear(h, down), up))
        return h


class SkippedLayers(Stack):
    """A python flag turns layers off: data-independent, never any gradient."""

    def __init__(self) -> None:
        super().__init__(4)
        self.active = [True, False, True, False]

    def hidden(self, x: Tensor) -> Tensor:
        h = torch.relu(self.first(x))
        for on, layer in zip(self.active, self.layers, strict=True):
            if on:
                h = layer(h)
        return h


class ExpertsByToken(nn.Module):
    """Hard routing by a token's number: experts nobody goes to get zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.randn(12, 8, 4) / 3)

    def forward(self, x: Tensor, kind: Tensor, y: Tensor) -> Tensor:
        return f.cross_entropy(torch.bmm(x[:, None], self.weights[kind]).squeeze(1), y)


class ReZero(Stack):
    """Residual branches behind zero-dimensional gates."""

    def __init__(self) -> None:
        super().__init__()
        self.gates = nn.ParameterList(nn.Parameter(torch.tensor(0.1)) for _ in range(3))

    def hidden(self, x: Tensor) -> Tensor:
        h = self.first(x)
        for gate, layer in zip(self.gates, self.layers, strict=True):
            h = h + gate * torch.relu(layer(h))
        return h


class OneNumber(nn.Module):
    """Two scalars: y = a x + b."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.tensor(0.5))
        self.b = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return f.mse_loss(self.a * x + self.b, y)


class SparseTable(nn.Module):
    """An embedding with sparse gradients, under SGD."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(40, 8, sparse=True)
        self.head = nn.Linear(8, 4)

    def forward(self, tokens: Tensor, y: Tensor) -> Tensor:
        return f.cross_entropy(self.head(self.table(tokens).sum(1)), y)


class PaddedTable(nn.Module):
    """padding_idx, max_norm and scale_grad_by_freq."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(10, 8, padding_idx=0)
        self.often = nn.Embedding(10, 8, scale_grad_by_freq=True)
        self.head = nn.Linear(8, 4)

    def forward(self, tokens: Tensor, y: Tensor) -> Tensor:
        return f.cross_entropy(self.head(self.table(tokens).sum(1) + self.often(tokens).sum(1)), y)


class BoundedTable(nn.Module):
    """An embedding with max_norm: rows are shortened when they are looked up."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(10, 8, max_norm=1.0)
        self.head = nn.Linear(8, 4)

    def forward(self, tokens: Tensor, y: Tensor) -> Tensor:
        return f.cross_entropy(self.head(self.table(tokens).sum(1)), y)


class LateHead(Stack):
    """GAN-like: a part's loss is multiplied by a flag of the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.late = nn.Linear(16, 4)

    def forward(self, x: Tensor, y: Tensor, on: Tensor) -> Tensor:  # type: ignore[override]
        h = self.hidden(x)
        each = f.cross_entropy(self.late(h), y, reduction="none")
        return f.cross_entropy(self.head(h), y) + (each * on).mean()


class GradientReversal(Stack):
    """Domain adversarial by a hook that turns the gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.domain = nn.Linear(16, 4)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = self.hidden(x)
        turned = 2 * h.detach() - h
        return f.cross_entropy(self.head(h), y) + f.cross_entropy(self.domain(turned), torch.zeros_like(y))


_SPARSE = RunSettings(optimizer="sgd", clip_norm=None, weight_decay=0.0, learning_rate=0.1)
_MOMENTUM = RunSettings(optimizer="sgd", momentum=0.9, weight_decay=0.05, learning_rate=0.05, clip_norm=0.1)
_PLAIN = (
    NeverUsedHead, ComputedUnused, DetachedBranch, ZeroWeightTerm, FrozenBackbone, FrozenMiddle, NoGradBody, LowRank,
    SkippedLayers,
    GradientReversal,
)  # fmt: skip
ENTRIES = (
    *(entry(build, "x: normal 8 8; y: int4 8") for build in _PLAIN),
    entry(ReZero, "x: normal 8 8; y: int4 8", settings=_MOMENTUM),
    entry(ExpertsByToken, "x: normal 8 8; kind: int12 8; y: int4 8", settings=_MOMENTUM),
    entry(OneNumber, "x: normal 8 3; y: normal 8 3"),
    entry(SparseTable, "tokens: int40 8 5; y: int4 8", settings=_SPARSE),
    *(entry(build, "tokens: int10 8 5; y: int4 8") for build in (PaddedTable, BoundedTable)),
    entry(LateHead, "x: normal 8 8; y: int4 8; on: bool 8"),
)
