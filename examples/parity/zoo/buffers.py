"""Family 4: buffers that forward writes."""
# ruff: noqa: D102

from __future__ import annotations

import torch
import torch.nn.functional as f
from torch import Tensor, nn

from examples.parity.zoo.entry import entry


class StepCounter(nn.Module):
    """A loss weight that warms up with a counter of forwards."""

    steps: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Linear(8, 16)
        self.two = nn.Linear(16, 4)
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        self.steps += 1
        warm = torch.clamp(self.steps / 10, max=1.0)
        return warm * f.cross_entropy(self.two(torch.relu(self.one(x))), y)


class RunningScale(nn.Module):
    """A running mean of magnitudes, kept by hand, that divides what follows."""

    scale: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Linear(8, 16)
        self.two = nn.Linear(16, 4)
        self.register_buffer("scale", torch.ones(16))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = self.one(x)
        if self.training:
            with torch.no_grad():
                self.scale.mul_(0.9).add_(0.1 * h.abs().mean(0))
        return f.cross_entropy(self.two(torch.tanh(h / self.scale)), y)


class SpectralCritic(nn.Module):
    """A critic whose products have spectral norm one."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.utils.parametrizations.spectral_norm(nn.Linear(8, 16)),
            nn.LeakyReLU(0.2),
            nn.utils.parametrizations.spectral_norm(nn.Linear(16, 1)),
        )

    def forward(self, x: Tensor, side: Tensor) -> Tensor:
        return f.relu(1 - side * self.net(x).squeeze(-1)).mean()


class CumulativeNorm(nn.Module):
    """Batch norm that keeps a plain average of all batches."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Linear(8, 16)
        self.norm = nn.BatchNorm1d(16, momentum=None)
        self.two = nn.Linear(16, 4)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return f.cross_entropy(self.two(torch.relu(self.norm(self.one(x)))), y)


ENTRIES = (
    entry(StepCounter, "x: normal 8 8; y: int4 8"),
    entry(RunningScale, "x: normal 8 8; y: int4 8"),
    entry(SpectralCritic, "x: normal 8 8; side: sign 8"),
    entry(CumulativeNorm, "x: normal 8 8; y: int4 8"),
)
