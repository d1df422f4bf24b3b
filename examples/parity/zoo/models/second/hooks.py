"""Family 9: hooks on gradients, parameters and modules."""
# ruff: noqa: D102

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.nn.functional as f
from torch import Tensor, nn

from examples.parity.zoo.entry import entry
from examples.parity.zoo.models.second.base import Base


def halve_gradient(p: Tensor) -> None:
    """Half of a parameter's gradient."""
    assert p.grad is not None
    p.grad.mul_(0.5)


def tenth_of_gradients(module: nn.Module, inward: Any, outward: Any) -> tuple[Tensor | None, ...]:
    """A tenth of what goes down."""
    return tuple(None if g is None else 0.1 * g for g in inward)


def bounded_gradients(module: nn.Module, outward: Any) -> tuple[Tensor, ...]:
    """What comes from above, clamped."""
    return tuple(g.clamp(-1e-3, 1e-3) for g in outward)


class FullBackwardHook(Base):
    """register_full_backward_hook scales what goes down."""

    def __init__(self) -> None:
        super().__init__()
        self.two.register_full_backward_hook(tenth_of_gradients)


class BackwardPreHook(Base):
    """register_full_backward_pre_hook bounds the gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.two.register_full_backward_pre_hook(bounded_gradients)


class HookOfNorm(Base):
    """A tensor hook normalises the gradient of all rows."""

    def between(self, h: Tensor) -> Tensor:
        if h.requires_grad:
            h.register_hook(lambda g: g / (g.norm() + 1e-3))  # type: ignore[no-untyped-call]  # torch does not type it
        return h


class HookClampTensor(Base):
    """A tensor hook clamps."""

    def between(self, h: Tensor) -> Tensor:
        h = h * 1.0
        if h.requires_grad:
            h.register_hook(lambda g: g.clamp(-1e-3, 1e-3))  # type: ignore[no-untyped-call]  # torch does not type it
        return h


class ParamHookMask(Base):
    """A parameter hook lets half of the weights train."""

    def __init__(self) -> None:
        super().__init__()
        mask = (torch.arange(16) < 8).float().unsqueeze(1)
        weight: Any = self.two.weight
        weight.register_hook(lambda g: g * mask.to(g.dtype))


class ParamHookClamp(Base):
    """A parameter hook clips by value, as `for p in model.parameters(): p.register_hook(...)`."""

    def __init__(self) -> None:
        super().__init__()
        for p in self.parameters():
            p.register_hook(lambda g: torch.clamp(g, -0.003, 0.003))  # type: ignore[no-untyped-call]  # torch does not type it


class PostAccumulateHook(Base):
    """register_post_accumulate_grad_hook."""

    def __init__(self) -> None:
        super().__init__()
        weight: Any = self.two.weight
        weight.register_post_accumulate_grad_hook(halve_gradient)


class LossHook(Base):
    """A hook on the loss itself."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        loss = super().forward(x, y)
        if loss.requires_grad:
            loss.register_hook(lambda g: g * 3.0)  # type: ignore[no-untyped-call]  # torch does not type it
        return loss


class ForwardHookChanges(Base):
    """A forward hook replaces the output (steering vectors)."""

    def __init__(self) -> None:
        super().__init__()
        self.steer = nn.Parameter(torch.linspace(-1, 1, 16))
        self.two.register_forward_hook(lambda module, args, out: out + self.steer)


class MethodHook(Base):
    """The forward hook is a bound method."""

    def __init__(self) -> None:
        super().__init__()
        self.steer = nn.Parameter(torch.linspace(-1, 1, 16))
        self.two.register_forward_hook(self.change)

    def change(self, module: nn.Module, args: Any, out: Tensor) -> Tensor:
        return out + self.steer


class ScaledBlock(nn.Module):
    """A residual layer with a scale by keyword."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 8)

    def forward(self, x: Tensor, *, scale: float = 1.0, **unused: Any) -> Tensor:
        return x + torch.tanh(self.fc(x)) * scale


class PreHookKwargs(nn.Module):
    """A pre-hook with keywords adds a bias to the mask."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = ScaledBlock()
        self.inner.register_forward_pre_hook(lambda m, a, k: (a, {**k, "scale": k["scale"] * 2}), with_kwargs=True)
        self.outer = ScaledBlock()
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return f.cross_entropy(self.head(self.outer(self.inner(x, scale=0.5), scale=1.5)), y)


class HookFeatures(Base):
    """Features are caught by hooks in a dict and used in the loss (perceptual losses)."""

    def __init__(self) -> None:
        super().__init__()
        self.caught: dict[str, Tensor] = {}
        for name in ("one", "three"):
            getattr(self, name).register_forward_hook(functools.partial(self._catch, name))

    def _catch(self, name: str, module: nn.Module, args: Any, out: Tensor) -> None:
        self.caught[name] = out

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        loss = super().forward(x, y)
        return loss + 0.1 * f.mse_loss(self.caught["one"], self.caught["three"].detach())


_PLAIN = (
    FullBackwardHook, BackwardPreHook, HookOfNorm, HookClampTensor, ParamHookMask, ParamHookClamp, PostAccumulateHook,
    LossHook, ForwardHookChanges, MethodHook, PreHookKwargs, HookFeatures,
)  # fmt: skip
ENTRIES = tuple(entry(build, "x: normal 8 8; y: int4 8") for build in _PLAIN)
