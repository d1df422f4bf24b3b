"""The optimizer of one rank: AdamW or SGD over its own parameters, with float32 masters for 16-bit weights.

Of what FSDP2 shards the optimizer sees this rank's rows as plain tensors: what works element by element needs no more,
and ops on DTensors take longer to be dispatched than small tensors to be updated.

Clipping scales all gradients by min(1, limit / (norm + 1e-6)), norm over the whole model, as torch.nn.utils does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from placer.settings import RunSettings

OptimizerFactory = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]

_SIXTEEN_BIT = frozenset({torch.bfloat16, torch.float16})
# One kernel does a step of AdamW three times as fast as its ops one by one (float32 on a CPU core, hidden 64 and 256).
_FUSED = frozenset({"cpu", "cuda"})
# torch.nn.utils.clip_grad_norm_ adds this to the norm it divides by.
CLIP_EPSILON = 1e-6


def optimizer_factory(settings: RunSettings, *, fused: bool = False) -> OptimizerFactory:
    """What makes the optimizer that the settings name; `fused`: AdamW by one kernel for all it does, which needs
    gradients that lie as their parameters (`Updater` sees to that)."""

    def make(given: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        parameters = list(given)
        if settings.optimizer == "sgd":
            return torch.optim.SGD(
                parameters,
                lr=settings.learning_rate,
                momentum=settings.momentum,
                weight_decay=settings.weight_decay,
            )
        one_kernel = fused and all(p.is_floating_point() and p.device.type in _FUSED for p in parameters)
        return torch.optim.AdamW(
            parameters,
            lr=settings.learning_rate,
            betas=settings.betas,
            eps=settings.epsilon,
            weight_decay=settings.weight_decay,
            fused=one_kernel,
        )

    return make


class Updater:
    """Holds named parameters, their float32 masters where they have 16 bits, and the optimizer of either."""

    def __init__(self, named: dict[str, nn.Parameter], make: OptimizerFactory) -> None:
        self.named = {name: p for name, p in named.items() if p.requires_grad}
        self.masters = {
            name: nn.Parameter(_local(p.detach()).to(torch.float32))
            for name, p in self.named.items()
            if p.dtype in _SIXTEEN_BIT
        }
        #: What the optimizer updates, by the model's own names: this rank's rows.
        self.updated = {name: self.masters.get(name, _plain(p)) for name, p in self.named.items()}
        self.optimizer = make(self.updated.values()) if self.updated else None

    def step(self, scale: float) -> None:
        """Update with all gradients multiplied by `scale`, then forget the gradients."""
        if scale != 1.0:
            scaled = [_local(parameter.grad) for parameter in self.named.values() if parameter.grad is not None]
            torch._foreach_mul_(scaled, scale)
        for name, parameter in self.named.items():
            self._hand_over(name, parameter)
        if self.optimizer is not None:
            self.optimizer.step()
        self.copy_masters()
        self.clear()

    def _hand_over(self, name: str, parameter: nn.Parameter) -> None:
        """Give what is updated the gradient of `parameter`, and its memory, which FSDP2 may have exchanged."""
        updated = self.updated[name]
        gradient = None if parameter.grad is None else _local(parameter.grad)
        if name in self.masters:
            updated.grad = None if gradient is None else gradient.to(torch.float32)
        elif updated is not parameter:
            updated.data = _local(parameter.detach())
            updated.grad = gradient
        _lay_gradient(updated)

    def clear(self) -> None:
        """Forget the gradients."""
        for parameter in (*self.named.values(), *self.updated.values()):
            parameter.grad = None

    @torch.no_grad()
    def copy_masters(self) -> None:
        """Round the masters into the weights."""
        for name, master in self.masters.items():
            _local(self.named[name].detach()).copy_(master)

    @torch.no_grad()
    def refresh_masters(self) -> None:
        """Take the masters from the weights, after those were loaded."""
        for name, master in self.masters.items():
            master.copy_(_local(self.named[name].detach()))

    def set_learning_rate(self, rate: float) -> None:
        """Use `rate` from the next step on."""
        for group in self.optimizer.param_groups if self.optimizer is not None else ():
            group["lr"] = rate


def _plain(parameter: nn.Parameter) -> nn.Parameter:
    """The parameter, or one over this rank's rows of it, in the same memory."""
    return nn.Parameter(_local(parameter.detach())) if isinstance(parameter, DTensor) else parameter


def _lay_gradient(parameter: nn.Parameter) -> None:
    """Have the gradient lie in memory as its parameter: the fused kernels read both in the order of memory, and what
    `torch.autograd.grad` gives (a backward in two parts) may lie otherwise."""
    gradient = parameter.grad
    if gradient is not None and gradient.stride() != parameter.stride():
        parameter.grad = torch.empty_like(parameter).copy_(gradient)


def _local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def clip_scale(norm: float, limit: float | None) -> float:
    """The factor for all gradients of a model whose gradient norm is `norm`."""
    return 1.0 if limit is None else min(1.0, limit / (norm + CLIP_EPSILON))
