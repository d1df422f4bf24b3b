"""Family 4: norms that keep something: batch norm in its forms, spectral norm."""
# ruff: noqa: D102

from __future__ import annotations

import torch
import torch.nn.functional as f
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from examples.parity.zoo.entry import entry
from examples.parity.zoo.models.buffers import Kept


class CumulativeNorm(Kept):
    """Batch norm that keeps a plain average of all batches."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(16, momentum=None)

    def kept(self, h: Tensor) -> Tensor:
        return self.norm(h)


class UntrackedNorm(Kept):
    """Batch norm without running statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(16, track_running_stats=False)

    def kept(self, h: Tensor) -> Tensor:
        return self.norm(h)


class PlainNorm(Kept):
    """Batch norm as it comes."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(16)

    def kept(self, h: Tensor) -> Tensor:
        return self.norm(h)


class SharedNorm(Kept):
    """One batch norm, called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(16, affine=False)

    def kept(self, h: Tensor) -> Tensor:
        return self.norm(h) + self.norm(h * 2 + 1).relu()


class FrozenNorm(Kept):
    """Batch norm in eval within a model that trains, as detectors have it."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(16)

    def kept(self, h: Tensor) -> Tensor:
        return f.batch_norm(h, self.norm.running_mean, self.norm.running_var, self.norm.weight, self.norm.bias)


class EvalNorm(Kept):
    """train() is overridden so that the norm stays in eval."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(16)

    def train(self, mode: bool = True) -> EvalNorm:
        super().train(mode)
        self.norm.eval()
        return self

    def kept(self, h: Tensor) -> Tensor:
        return self.norm(h)


class TrackedInstance(nn.Module):
    """Instance norm that keeps running statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3)
        self.norm = nn.InstanceNorm2d(4, affine=True, track_running_stats=True)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return f.cross_entropy(self.head(self.norm(self.conv(x)).relu().mean((2, 3))), y)


class SpectralCritic(nn.Module):
    """A critic whose products have spectral norm one."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            parametrizations.spectral_norm(nn.Linear(8, 16)),
            nn.LeakyReLU(0.2),
            parametrizations.spectral_norm(nn.Linear(16, 1)),
        )

    def forward(self, x: Tensor, side: Tensor) -> Tensor:
        return f.relu(1 - side * self.net(x).squeeze(-1)).mean()


class OldSpectralNorm(nn.Module):
    """nn.utils.spectral_norm, by hooks."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.utils.spectral_norm(nn.Linear(8, 16), n_power_iterations=2)
        self.two = nn.Linear(16, 4)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return f.cross_entropy(self.two(torch.relu(self.one(x))), y)


_PLAIN = (CumulativeNorm, UntrackedNorm, PlainNorm, SharedNorm, FrozenNorm, EvalNorm, OldSpectralNorm)
ENTRIES = (
    *(entry(build, "x: normal 8 8; y: int4 8") for build in _PLAIN),
    entry(TrackedInstance, "x: normal 8 2 6 6; y: int3 8"),
    entry(SpectralCritic, "x: normal 8 8; side: sign 8"),
)
