"""Family 9: regions without autocast or gradients, in each other."""
# ruff: noqa: D102

from __future__ import annotations

import torch
import torch.nn.functional as f
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from examples.parity.zoo.entry import entry
from examples.parity.zoo.models.second.base import Base


def scaled(h: Tensor) -> Tensor:
    """Over the largest magnitude, of which no gradient is taken."""
    with torch.no_grad():
        s = h.abs().amax(-1, keepdim=True) + 1
    return h / s


class ScaledNorm(nn.Module):
    """`scaled` as a module."""

    def forward(self, h: Tensor) -> Tensor:
        return scaled(h)


class AutocastOff(Base):
    """An island without autocast, in it a method under @torch.no_grad()."""

    @torch.no_grad()
    def scale(self, h: Tensor) -> Tensor:
        return h.abs().amax(-1, keepdim=True) + 1

    def between(self, h: Tensor) -> Tensor:
        with torch.autocast("cpu", enabled=False), torch.set_grad_enabled(self.training):
            return h / self.scale(h)


class NoGradInAutocast(Base):
    """no_grad within autocast(enabled=False)."""

    def between(self, h: Tensor) -> Tensor:
        with torch.autocast("cpu", enabled=False):
            with torch.no_grad():
                s = h.abs().amax(-1, keepdim=True) + 1
            return h / s


class NoGradInEnabled(Base):
    """no_grad within set_grad_enabled(True)."""

    def between(self, h: Tensor) -> Tensor:
        with torch.enable_grad():
            with torch.no_grad():
                s = h.abs().amax(-1, keepdim=True) + 1
            return h / s


class GradEnabledWith(Base):
    """torch.set_grad_enabled(self.training)."""

    def between(self, h: Tensor) -> Tensor:
        with torch.set_grad_enabled(self.training):
            return h / (h.abs().amax(-1, keepdim=True) + 1)


class AutocastInNoGrad(Base):
    """A frozen encoder: no_grad outside, autocast(enabled=False) inside."""

    def between(self, h: Tensor) -> Tensor:
        with torch.no_grad(), torch.autocast("cpu", enabled=False):
            s = h.abs().amax(-1, keepdim=True) + 1
        return h / s


class AutocastDecorator(Base):
    """torch.autocast as a decorator of a method that has no_grad inside."""

    @torch.autocast("cpu", enabled=False)  # type: ignore[untyped-decorator]  # torch does not type it
    def between(self, h: Tensor) -> Tensor:
        return scaled(h)


class AutocastBf16(Base):
    """autocast to bfloat16 around a layer with no_grad inside."""

    def between(self, h: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return scaled(h)


class TeacherInAutocast(Base):
    """A teacher under no_grad within an autocast(enabled=False) of both."""

    def __init__(self) -> None:
        super().__init__()
        self.teacher = nn.Linear(16, 4)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = self.features(x)
        with torch.autocast("cpu", enabled=False):
            out = self.head(h)
            with torch.no_grad():
                soft = self.teacher(h).softmax(-1)
            return f.cross_entropy(out, y) + f.kl_div(out.log_softmax(-1), soft, reduction="batchmean")


class CheckpointNoGrad(Base):
    """no_grad inside a checkpoint."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = ScaledNorm()

    def between(self, h: Tensor) -> Tensor:
        return checkpoint(self.norm, h, use_reentrant=False)


class CompiledNoGrad(Base):
    """no_grad inside a torch.compile'd part."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.compile(ScaledNorm(), backend="eager")

    def between(self, h: Tensor) -> Tensor:
        return self.norm(h)


class VmapNoGrad(Base):
    """no_grad inside vmap."""

    def between(self, h: Tensor) -> Tensor:
        return torch.vmap(scaled)(h)


_PLAIN = (
    AutocastOff, NoGradInAutocast, NoGradInEnabled, GradEnabledWith, AutocastInNoGrad, AutocastDecorator,
    TeacherInAutocast, CheckpointNoGrad, CompiledNoGrad, VmapNoGrad,
)  # fmt: skip
ENTRIES = (
    *(entry(build, "x: normal 8 8; y: int4 8") for build in _PLAIN),
    entry(AutocastBf16, "x: normal 8 8; y: int4 8", casts=True),
)
