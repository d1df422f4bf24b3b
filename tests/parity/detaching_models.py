"""Models with parts that cannot be exported and give their inputs a gradient for some rows, importable by ranks."""

from __future__ import annotations

import torch
from torch import nn

from opaque_models import WIDTH


class Detaching(nn.Module):
    """A layer for rows that begin with more than 1; another one for the others, whose inputs get no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.few, self.most = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y, kind = torch.zeros_like(x), (x[:, 0] > 1).long()
        for number, (layer, values) in enumerate(((self.most, x.detach()), (self.few, x))):
            rows = (kind == number).nonzero()[:, 0]
            if rows.numel():
                y = y.index_add(0, rows, layer(values[rows]))
        return y


class Skipped(nn.Module):
    """Layers before the part, one of whose values goes around it; every row keeps the number that it begins with."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third, self.last = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.part = Detaching()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The mean square of what comes out."""
        first = torch.tanh(self.first(x))
        third = torch.tanh(self.third(torch.tanh(self.second(first))))
        made = self.part(torch.cat((x[:, :1], third[:, 1:]), 1))
        loss: torch.Tensor = (self.last(torch.tanh(made)) + first).square().mean()
        return loss


class EndsInPart(Skipped):
    """Nothing but a mean behind the part."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        third = torch.tanh(self.third(torch.tanh(self.first(x))))
        loss: torch.Tensor = self.part(torch.cat((x[:, :1], third[:, 1:]), 1)).square().mean()
        return loss


class TiedAcross(Skipped):
    """A layer before the part is the one behind it too, and another one the part's own."""

    def __init__(self) -> None:
        super().__init__()
        self.last.weight, self.third.bias = self.second.weight, self.part.few.bias


class _Stop(torch.autograd.Function):
    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, x: torch.Tensor, goes: bool) -> torch.Tensor:
        ctx.goes = goes  # type: ignore[attr-defined]
        return x.clone()

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, *gradients: torch.Tensor) -> object:
        return gradients[0] if ctx.goes else None, None  # type: ignore[attr-defined]


class Stopping(nn.Module):
    """A layer whose inputs are in the graph of every row, and have a gradient where a row begins with more than 1."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        few = x[:, :1] > 1
        kept = _Stop.apply(torch.where(few, x, x.detach()), bool(few.any()))  # type: ignore[no-untyped-call]
        made: torch.Tensor = self.layer(kept)
        return made


def skipped() -> nn.Module:
    """A model with a value that goes around its part."""
    return Skipped()


def ends_in_part() -> nn.Module:
    """A model that ends in its part."""
    return EndsInPart()


def tied_across() -> nn.Module:
    """The same with tied weights."""
    return TiedAcross()


def stopped() -> nn.Module:
    """The same with a part that stops gradients inside the graph."""
    made = Skipped()
    made.part = Stopping()  # type: ignore[assignment]
    return made
