"""Models that drop paths, or add noise, by random numbers of their own in training only, and neighbours of them."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from examples.parity.evaluated import WIDTH, Between, Part

KEPT = 0.75


def _multiplied(h: Tensor, kept: float = KEPT) -> Tensor:
    """timm's and torchvision's way: rows times a drawn 0 or 1 / kept."""
    numbers = h.new_empty((h.shape[0],) + (1,) * (h.ndim - 1)).bernoulli_(kept)
    numbers.div_(kept)
    return h * numbers


def _divided(h: Tensor, kept: float = KEPT) -> Tensor:
    """transformers' way: rows divided by what is kept, times a drawn 0 or 1."""
    numbers = kept + torch.rand((h.shape[0],) + (1,) * (h.ndim - 1), dtype=h.dtype, device=h.device)
    numbers.floor_()
    return h.div(kept) * numbers


def multiplied() -> nn.Module:
    """A residual path that drops."""
    return Between(Part(lambda part, h: h + _multiplied(h.tanh()) if part.training else h + h.tanh()))


def divided() -> nn.Module:
    """The same, written otherwise, and twice."""

    def compute(part: nn.Module, h: Tensor) -> Tensor:
        for _ in range(2):
            h = h + (_divided(h.tanh()) if part.training else h.tanh())
        return h

    return Between(Part(compute))


def unscaled() -> nn.Module:
    """Rows that are dropped, and others as they are."""
    return Between(Part(lambda part, h: torch.rand(h.shape[0], 1).ge(0.5).to(h.dtype) * h if part.training else h))


def noised() -> nn.Module:
    """Noise added in training."""
    return Between(Part(lambda part, h: h + 0.1 * torch.randn_like(h) if part.training else h))


class _Connected(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH) / WIDTH)

    def forward(self, h: Tensor) -> Tensor:
        weight = self.weight * torch.rand(WIDTH, WIDTH).lt(KEPT).to(h.dtype) if self.training else self.weight
        return functional.linear(h, weight)


def connected() -> nn.Module:
    """Weights that are dropped, not rows."""
    return Between(_Connected())


def blocks_dropped() -> nn.Module:
    """Regions that are dropped, and what is left made up for by how much that is, as timm's DropBlock."""

    def compute(part: nn.Module, h: Tensor) -> Tensor:
        if not part.training:
            return h
        kept = 1 - functional.max_pool1d(torch.rand_like(h).lt(0.2).to(h.dtype), 3, 1, 1)
        return h * kept * (kept.numel() / (kept.sum() + 1e-7))

    return Between(Part(compute))


def sampled_and_dropped() -> nn.Module:
    """Noise in both modes, and a path that drops in training alone."""

    def compute(part: nn.Module, h: Tensor) -> Tensor:
        h = h + 0.1 * torch.randn_like(h)
        return h + (_multiplied(h.tanh()) if part.training else h.tanh())

    return Between(Part(compute))


def written_after() -> nn.Module:
    """What a path leaves is written in place, beside what it was made of."""

    def compute(part: nn.Module, h: Tensor) -> Tensor:
        made = _multiplied(h) if part.training else h.clone()
        made.add_(1.0)
        return made * h

    return Between(Part(compute))


def kept_on() -> nn.Module:
    """A path that drops in both modes, as its author wants it."""
    return Between(Part(lambda part, h: h + _multiplied(h.tanh())))


def weaker() -> nn.Module:
    """What is dropped in training, and weaker in evaluation: not what is left without the draw."""
    return Between(Part(lambda part, h: _divided(h) if part.training else h * KEPT))


def told_otherwise() -> nn.Module:
    """A path that drops, beside one that training alone has."""
    return Between(Part(lambda part, h: _multiplied(h * 1.1) if part.training else h))


def read_again() -> nn.Module:
    """Drawn numbers that both drop rows and are a value of their own."""

    def compute(part: nn.Module, h: Tensor) -> Tensor:
        if not part.training:
            return h
        numbers = torch.rand(h.shape[0], 1, dtype=h.dtype)
        return h * numbers + h.tanh().sum(1, keepdim=True) * numbers.square()

    return Between(Part(compute))
