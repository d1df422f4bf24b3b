"""The optimizer of one rank: AdamW or SGD over its own parameters, with float32 masters for 16-bit weights.

Clipping scales all gradients by min(1, limit / (norm + 1e-6)), norm over the whole model, as torch.nn.utils does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import nn

from placer.settings import RunSettings

OptimizerFactory = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]

_SIXTEEN_BIT = frozenset({torch.bfloat16, torch.float16})
# torch.nn.utils.clip_grad_norm_ adds this to the norm it divides by.
CLIP_EPSILON = 1e-6


def optimizer_factory(settings: RunSettings) -> OptimizerFactory:
    """What makes the optimizer that the settings name."""

    def make(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        if settings.optimizer == "sgd":
            return torch.optim.SGD(
                parameters,
                lr=settings.learning_rate,
                momentum=settings.momentum,
                weight_decay=settings.weight_decay,
            )
        return torch.optim.AdamW(
            parameters,
            lr=settings.learning_rate,
            betas=settings.betas,
            eps=settings.epsilon,
            weight_decay=settings.weight_decay,
        )

    return make


class Updater:
    """Holds named parameters, their float32 masters where they have 16 bits, and the optimizer of either."""

    def __init__(self, named: dict[str, nn.Parameter], make: OptimizerFactory) -> None:
        self.named = {name: p for name, p in named.items() if p.requires_grad}
        self.masters = {
            name: nn.Parameter(p.detach().to(torch.float32))
            for name, p in self.named.items()
            if p.dtype in _SIXTEEN_BIT
        }
        #: What the optimizer updates, by the model's own names.
        self.updated = {name: self.masters.get(name, p) for name, p in self.named.items()}
        self.optimizer = make(self.updated.values()) if self.updated else None

    def step(self, scale: float) -> None:
        """Update with all gradients multiplied by `scale`, then forget the gradients."""
        for name, parameter in self.named.items():
            if parameter.grad is not None:
                if scale != 1.0:
                    parameter.grad.mul_(scale)
                if name in self.masters:
                    self.masters[name].grad = parameter.grad.to(torch.float32)
        if self.optimizer is not None:
            self.optimizer.step()
        self.copy_masters()
        self.clear()

    def clear(self) -> None:
        """Forget the gradients."""
        for parameter in (*self.named.values(), *self.masters.values()):
            parameter.grad = None

    @torch.no_grad()
    def copy_masters(self) -> None:
        """Round the masters into the weights."""
        for name, master in self.masters.items():
            self.named[name].copy_(master)

    @torch.no_grad()
    def refresh_masters(self) -> None:
        """Take the masters from the weights, after those were loaded."""
        for name, master in self.masters.items():
            master.copy_(self.named[name])

    def set_learning_rate(self, rate: float) -> None:
        """Use `rate` from the next step on."""
        for group in self.optimizer.param_groups if self.optimizer is not None else ():
            group["lr"] = rate


def clip_scale(norm: float, limit: float | None) -> float:
    """The factor for all gradients of a model whose gradient norm is `norm`."""
    return 1.0 if limit is None else min(1.0, limit / (norm + CLIP_EPSILON))
