"""Family 9: backward of one's own, in autograd.Functions."""
# ruff: noqa: D102

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as f
from torch import Tensor, nn

from examples.parity.zoo.entry import entry
from examples.parity.zoo.models.second.base import Base


class Centring(torch.autograd.Function):
    """The identity, whose gradient loses its mean over rows."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g - g.mean(0, keepdim=True)


class Bounding(torch.autograd.Function):
    """The identity, whose gradient is clamped."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g.clamp(-1e-3, 1e-3)


class UndoMean(torch.autograd.Function):
    """The identity, whose gradient grows with a power of the number of rows."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, power: float) -> Tensor:
        ctx.rows, ctx.power = x.shape[0], power
        return x * 1.0

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        return g * ctx.rows**ctx.power, None


class TernarySte(torch.autograd.Function):
    """Weights rounded to -1, 0 and 1 times a scale, straight through."""

    @staticmethod
    def forward(ctx: Any, w: Tensor) -> Tensor:
        ctx.save_for_backward(w)
        scale = w.abs().mean()
        return torch.round(w / (scale + 1e-5)).clamp(-1, 1) * scale

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (w,) = ctx.saved_tensors
        return g * (w.abs() < 1).to(g.dtype)


class ReversalTail(torch.autograd.Function):
    """The identity, whose gradient is turned around."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, alpha: float) -> Tensor:
        ctx.alpha = alpha
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        return g.neg() * ctx.alpha, None


class Applied(nn.Module):
    """A Function as a module."""

    def __init__(self, fn: type[torch.autograd.Function], *more: Any) -> None:
        super().__init__()
        self.fn, self.more = fn, more

    def forward(self, x: Tensor) -> Tensor:
        return self.fn.apply(x, *self.more)  # type: ignore[no-untyped-call]  # torch does not type it


class CentringBlock(Base):
    """A block whose backward takes the mean over rows away."""

    def __init__(self) -> None:
        super().__init__()
        self.centring = Applied(Centring)

    def between(self, h: Tensor) -> Tensor:
        return self.centring(h)


class BoundingBlock(Base):
    """A block whose backward clamps the gradient: its size depends on the rows."""

    def __init__(self) -> None:
        super().__init__()
        self.bounding = Applied(Bounding)

    def between(self, h: Tensor) -> Tensor:
        return self.bounding(h)


class UndoMeanBlock(Base):
    """A block whose backward multiplies by the number of rows."""

    def __init__(self) -> None:
        super().__init__()
        self.undo = Applied(UndoMean, 0.5)

    def between(self, h: Tensor) -> Tensor:
        return self.undo(h)


class TernaryLinear(nn.Linear):
    """A product with ternary weights."""

    def forward(self, x: Tensor) -> Tensor:
        weight: Tensor = TernarySte.apply(self.weight)  # type: ignore[no-untyped-call]  # torch does not type it
        return f.linear(x, weight, self.bias)


class BitNet(Base):
    """Ternary weights by a straight-through Function on the weights (rows never meet)."""

    def __init__(self) -> None:
        super().__init__()
        self.two, self.three = TernaryLinear(16, 16), TernaryLinear(16, 16)


class Reversal(nn.Module):
    """Gradient reversal as a module."""

    def __init__(self, alpha: float) -> None:
        super().__init__()
        self.alpha = alpha

    def forward(self, x: Tensor) -> Tensor:
        return ReversalTail.apply(x, self.alpha)  # type: ignore[no-untyped-call]  # torch does not type it


class DannModules(Base):
    """DANN: a head of classes and a head of domains behind an nn.Module of gradient reversal in a Sequential."""

    def __init__(self) -> None:
        super().__init__()
        self.domain = nn.Sequential(Reversal(0.7), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 4))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = self.features(x)
        return f.cross_entropy(self.head(h), y) + f.cross_entropy(self.domain(h), 3 - y)


class SteWeightBlock(nn.Module):
    """Everything that is hidden lies within a submodule with other layers."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, h: Tensor) -> Tensor:
        turned: Tensor = ReversalTail.apply(self.a(h), -1.0)  # type: ignore[no-untyped-call]  # torch does not type it
        return self.b(turned.relu())


class FunctionDeep(Base):
    """A Function two modules down."""

    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Sequential(SteWeightBlock(), nn.ReLU())

    def between(self, h: Tensor) -> Tensor:
        return self.block(h)


_PLAIN = (CentringBlock, BoundingBlock, UndoMeanBlock, BitNet, DannModules, FunctionDeep)
ENTRIES = tuple(entry(build, "x: normal 8 8; y: int4 8") for build in _PLAIN)
