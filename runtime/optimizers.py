"""The optimizer of one rank: AdamW or SGD over its own parameters, with float32 masters for 16-bit weights.

A rank of several stages may hold shards of one and the whole of another: each kind is a group of its own, as a fused
kernel takes tensors of one kind.

Clipping scales all gradients by min(1, limit / (norm + 1e-6)), norm over the whole model, as torch.nn.utils does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
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
        groups = [{"params": alike} for alike in _by_mesh(parameters)]
        if settings.optimizer == "sgd":
            return torch.optim.SGD(
                groups,
                lr=settings.learning_rate,
                momentum=settings.momentum,
                weight_decay=settings.weight_decay,
            )
        one_kernel = fused and all(p.is_floating_point() and p.device.type in _FUSED for p in parameters)
        return torch.optim.AdamW(
            groups,
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
            name: nn.Parameter(p.detach().to(torch.float32))
            for name, p in self.named.items()
            if p.dtype in _SIXTEEN_BIT
        }
        #: What the optimizer updates, by the model's own names.
        self.updated = {name: self.masters.get(name, p) for name, p in self.named.items()}
        self.optimizer = make(self.updated.values()) if self.updated else None

    def step(self, scale: float) -> None:
        """Update with all gradients multiplied by `scale`, then forget the gradients."""
        if scale != 1.0:
            scaled = [_local(parameter.grad) for parameter in self.named.values() if parameter.grad is not None]
            torch._foreach_mul_(scaled, scale)
        for name, master in self.masters.items():
            gradient = self.named[name].grad
            master.grad = None if gradient is None else gradient.to(torch.float32)
            self.named[name].grad = None  # so that only one gradient is there twice
        for parameter in self.updated.values():
            _lay_gradient(parameter)
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


def _by_mesh(parameters: Iterable[nn.Parameter]) -> Iterable[list[nn.Parameter]]:
    """The parameters that are whole, and those that are sharded, by the mesh they are sharded over."""
    found: dict[DeviceMesh | None, list[nn.Parameter]] = {}
    for parameter in parameters:
        found.setdefault(parameter.device_mesh if isinstance(parameter, DTensor) else None, []).append(parameter)
    return found.values()


def _lay_gradient(parameter: nn.Parameter) -> None:
    """Have the gradient lie in memory as its parameter: the fused kernels read both in the order of memory, and what
    `torch.autograd.grad` gives (a backward in two parts) may lie otherwise."""
    gradient = parameter.grad
    if gradient is not None and _local(gradient).stride() != _local(parameter).stride():
        parameter.grad = torch.empty_like(parameter).copy_(gradient)


def _local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def clip_scale(norm: float, limit: float | None) -> float:
    """The factor for all gradients of a model whose gradient norm is `norm`."""
    return 1.0 if limit is None else min(1.0, limit / (norm + CLIP_EPSILON))
