"""Family 9: rows repeated, and other dimensions merged with them."""
# ruff: noqa: D102

from __future__ import annotations

import math

import torch
import torch.nn.functional as f
from torch import Tensor, nn

from examples.parity.zoo.entry import entry
from examples.parity.zoo.models.second.base import Base


class ImportanceWeighted(Base):
    """IWAE: x.repeat(k, 1), view(k, B), logsumexp over samples."""

    noise: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("noise", torch.linspace(-1, 1, 3).view(3, 1, 1))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        k, b = 3, x.shape[0]
        many = (x.repeat(k, 1).view(k, b, -1) + self.noise).view(k * b, -1)
        out = self.head(self.features(many)).view(k, b, 4)
        losses = -f.cross_entropy(out.flatten(0, 1), y.repeat(k), reduction="none").view(k, b)
        return -(torch.logsumexp(losses, 0) - math.log(k)).mean()


class RepeatInterleaved(Base):
    """Beams: rows repeat_interleave'd, labels too, averaged again."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = self.features(x.repeat_interleave(2, 0) + torch.tensor([0.0, 1.0]).to(x).repeat(len(x)).unsqueeze(1))
        return f.cross_entropy(self.head(h), y.repeat_interleave(2))


class PlainInterleave(Base):
    """repeat_interleave alone, of features and labels."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return f.cross_entropy(self.head(self.features(x.repeat_interleave(2, 0))), y.repeat_interleave(2))


class AdaIn(nn.Module):
    """MUNIT's: instance norm by batch norm on (1, B*C, H, W), weights from a style, running statistics repeated."""

    running_mean: Tensor
    running_var: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3, padding=1)
        self.style = nn.Linear(5, 8)
        self.register_buffer("running_mean", torch.zeros(4))
        self.register_buffer("running_var", torch.ones(4))
        self.head = nn.Linear(4 * 16, 4)

    def forward(self, x: Tensor, style: Tensor, y: Tensor) -> Tensor:
        h = self.conv(x)
        b, c = h.shape[:2]
        bias, weight = self.style(style).chunk(2, 1)
        mean, var = self.running_mean.repeat(b), self.running_var.repeat(b)
        h = f.batch_norm(h.reshape(1, b * c, 4, 4), mean, var, weight.reshape(-1), bias.reshape(-1), True, 0.1, 1e-5)
        return f.cross_entropy(self.head(h.view(b, c, 4, 4).relu().flatten(1)), y)


class TimeMajor(nn.Module):
    """(t b) d: time first, merged with the rows, labels transposed."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.head = nn.Linear(5, 16), nn.Linear(16, 16), nn.Linear(16, 4)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        b, t, d = x.shape
        h = torch.tanh(self.one(x.transpose(0, 1).reshape(t * b, d)))
        h = torch.tanh(self.two(h)).view(t, b, -1)
        h = h + h.cumsum(0)
        return f.cross_entropy(self.head(h.reshape(t * b, -1)), y.t().reshape(-1))


class TimeMajorPlain(nn.Module):
    """Labels transposed, (t b) flattened, only at the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.head = nn.Linear(5, 16), nn.Linear(16, 4)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = torch.tanh(self.one(x.transpose(0, 1)))
        return f.cross_entropy(self.head(h).flatten(0, 1), y.t().flatten())


class SwinWindows(nn.Module):
    """Shifted windows: roll, windows folded into the rows, a mask for each window, and back."""

    mask: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 1)
        self.qkv, self.out = nn.Linear(8, 24), nn.Linear(8, 8)
        self.register_buffer("mask", torch.where(torch.arange(64).view(4, 4, 4) % 5 == 0, -10.0, 0.0))
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = self.stem(x).permute(0, 2, 3, 1)
        b, hh, ww, c = h.shape
        s = torch.roll(h, (-1, -1), (1, 2)).view(b, hh // 2, 2, ww // 2, 2, c)
        s = s.permute(0, 1, 3, 2, 4, 5).reshape(-1, 4, c)
        q, k, v = self.qkv(s).view(-1, 4, 3, 2, 4).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-2, -1) / 2
        n = self.mask.shape[0]
        scores = scores.view(-1, n, 2, 4, 4) + self.mask[None, :, None]
        s = (scores.view(-1, 2, 4, 4).softmax(-1) @ v).transpose(1, 2).reshape(-1, 4, c)
        s = self.out(s).view(b, hh // 2, ww // 2, 2, 2, c).permute(0, 1, 3, 2, 4, 5).reshape(b, hh, ww, c)
        return f.cross_entropy(self.head((h + torch.roll(s, (1, 1), (1, 2))).mean((1, 2))), y)


class TemporalShift(nn.Module):
    """TSM: frames are rows (b*t) from the start; some channels shifted in time."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.head = nn.Linear(5, 8), nn.Linear(8, 8), nn.Linear(8, 4)

    def shift(self, h: Tensor, b: int) -> Tensor:
        h = h.view(b, -1, 8)
        out = torch.zeros_like(h)
        out[:, :-1, :2] = h[:, 1:, :2]
        out[:, 1:, 2:4] = h[:, :-1, 2:4]
        out[:, :, 4:] = h[:, :, 4:]
        return out.view(-1, 8)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        b = x.size(0)
        h = torch.tanh(self.one(x.flatten(0, 1)))
        h = torch.tanh(self.two(self.shift(h, b)))
        return f.cross_entropy(self.head(h).view(b, -1, 4).mean(1), y)


_PLAIN = (ImportanceWeighted, RepeatInterleaved, PlainInterleave)
ENTRIES = (
    *(entry(build, "x: normal 8 8; y: int4 8") for build in _PLAIN),
    entry(AdaIn, "x: normal 8 2 4 4; style: normal 8 5; y: int4 8"),
    entry(TimeMajor, "x: normal 8 6 5; y: int4 8 6"),
    entry(TimeMajorPlain, "x: normal 8 6 5; y: int4 8 6"),
    entry(SwinWindows, "x: normal 8 3 4 4; y: int4 8"),
    entry(TemporalShift, "x: normal 8 6 5; y: int4 8"),
)
