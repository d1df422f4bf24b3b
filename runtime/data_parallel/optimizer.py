"""The optimizer of one rank: AdamW or SGD over its own parameters, with float32 masters for 16-bit weights.

Of what FSDP2 shards the optimizer sees this rank's rows as plain tensors: what works element by element needs no more,
and ops on DTensors take longer to be dispatched than small tensors to be updated.

Clipping scales all gradients by min(1, limit / (norm + 1e-6)), norm over the whole model, as torch.nn.utils does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from numbers import Real
from typing import overload

import torch
from torch import distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from placer.errors import UsageError
from placer.plans.plan import Plan
from placer.plans.settings import RunSettings
from placer.runtime.data_parallel.given_parameters import GivenParameters, OptimizerFactory, made_of, name_beside
from placer.runtime.data_parallel.zero1 import Zero1
from placer.runtime.distributed.tensors import SIXTEEN_BITS, has_gaps, local_part, summed_in
from placer.runtime.weights.same_numbers import same_numbers

# One kernel does a step of AdamW three times as fast as its ops one by one (float32 on a CPU core, hidden 64 and 256).
_FUSED = frozenset({"cpu", "cuda"})
# torch.nn.utils.clip_grad_norm_ adds this to the norm it divides by.
CLIP_EPSILON = 1e-6


def optimizer_factory(
    settings: RunSettings, *, fused: bool = False
) -> Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]:
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
    """Holds named parameters, their float32 masters where they have 16 bits, and the optimizer of either.

    copies: the model's names of second copies of tied parameters, which `named` has under names of their own.
    zero1: with whom this rank divides the optimizer's state of a parameter; it then updates its rows of it only.
    host: where the state lies and updates are made, on copies of the parameters, if not where they are.
    """

    def __init__(
        self, named: dict[str, nn.Parameter], make: OptimizerFactory, zero1: Mapping[str, Zero1] | None = None,
        *, host: torch.device | None = None, copies: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        self.copies = dict(copies or {})
        self.named = {name: p for name, p in named.items() if p.requires_grad}
        self._zero1 = zero1 or {}
        #: What this rank updates of each parameter: the parameter, or its own rows of it, in the parameter's memory.
        self.own = {name: self._rows(name, p) for name, p in self.named.items()}
        self._host, self._landed = host, dict[str, torch.Tensor]()
        #: What is updated instead of parameters: masters, copies on the host, and those of rows with gaps between them
        #: (of a transposed parameter), as the fused kernels read all memory from the first element on.
        self._kept = {
            name: nn.Parameter(_copied(local_part(own), host))
            for name, own in self.own.items()
            if host is not None or own.dtype in SIXTEEN_BITS or has_gaps(local_part(own.detach()))
        }
        self.masters = {name: kept for name, kept in self._kept.items() if self.own[name].dtype in SIXTEEN_BITS}
        #: What the optimizer updates, by the names of `named`: no DTensors, whose dispatch takes longer than the work.
        self.updated = {name: self._kept.get(name, _plain(own)) for name, own in self.own.items()}
        self.optimizer = made_of(GivenParameters(self.updated, self.copies), make) if self.updated else None
        self._one_rate = False

    @property
    def on_host(self) -> bool:
        """Whether the host updates."""
        return self._host is not None

    @torch.no_grad()  # of a DTensor its own rows are then there without a node of autograd for each
    def step(self, scale: float | torch.Tensor) -> None:
        """Update with all gradients multiplied by `scale`, then forget the gradients."""
        gradients = {name: self._gradient(name) for name, p in self.named.items() if p.grad is not None}
        if self.on_host:  # the device is faster at it
            _scaled(gradients.values(), scale)
        gradients = self._brought(gradients)
        for name in self.updated:
            self._hand_over(name, gradients.pop(name, None))
        if not self.on_host:  # those of 16 bits are in their masters' type by now, which keeps what is left of them
            _scaled((p.grad for p in self.updated.values() if p.grad is not None), scale)
        if self.optimizer is not None:
            self.optimizer.step()
        self.copy_masters()
        self.clear()

    def clear(self) -> None:
        """Forget the gradients."""
        for parameter in (*self.named.values(), *self.updated.values()):
            parameter.grad = None

    @torch.no_grad()
    def copy_masters(self) -> None:
        """Round the masters, and bring what the host updated, into the weights."""
        if self._host is None:
            if self._kept:  # few kernels for all
                torch._foreach_copy_(
                    [local_part(self.own[name].detach()) for name in self._kept], [*self._kept.values()]
                )
            return
        for name, kept in self._kept.items():
            landed = self._landed.get(name)
            staged = kept if landed is None or kept.dtype == landed.dtype else landed.copy_(kept)
            local_part(self.own[name].detach()).copy_(staged, non_blocking=True)

    @torch.no_grad()
    def refresh_masters(self) -> None:
        """Take the masters and the host's copies from the weights, after those were loaded."""
        for name, kept in self._kept.items():
            kept.copy_(local_part(self.own[name].detach()))

    @torch.no_grad()
    def refresh_copies(self) -> None:
        """Take the host's copies from the weights, after those and the masters were loaded."""
        for name, kept in self._kept.items():
            if name not in self.masters:
                kept.copy_(local_part(self.own[name].detach()))

    @torch.no_grad()
    def overruled(self) -> Iterator[str]:
        """The parameters that were written without what is updated in their place: the next step overwrites them."""
        for name, kept in self._kept.items():
            own = local_part(self.own[name].detach())
            if not same_numbers(kept.to(own), own):
                yield self.copies.get(name, name)

    def set_learning_rate(self, rate: float) -> None:
        """Use `rate` from the next step on; all ranks call it. Raises UsageError, on all of them, for what is no rate
        and where groups of parameters have rates of their own."""
        if not _is_rate(rate):
            raise UsageError(f"the learning rate is {rate!r}; give a finite number, 0 or more")
        rates = set() if self._one_rate else self._rates_of_all()
        self._one_rate = len(rates) <= 1
        if not self._one_rate:
            raise UsageError(
                f"the optimizer's groups have learning rates {', '.join(map(str, sorted(rates)))}, which one rate for "
                "all would make alike; set those of its param_groups, or give it a scheduler of torch.optim"
            )
        for group in self.optimizer.param_groups if self.optimizer is not None else ():
            group["lr"] = rate if isinstance(rate, torch.Tensor) else float(rate)

    def _rates_of_all(self) -> set[float]:
        """Of the groups of all ranks: each may hold those of one rate alone."""
        mine = {float(group["lr"]) for group in self.optimizer.param_groups} if self.optimizer is not None else set()
        if not dist.is_initialized():
            return mine
        every: list[set[float]] = [set()] * dist.get_world_size()
        dist.all_gather_object(every, mine)
        return set().union(*every)

    def _brought(self, gradients: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The gradients on the host, in memory that they are copied to beside each other."""
        if self._host is None:
            return gradients
        for name, gradient in gradients.items():
            if name not in self._landed:
                self._landed[name] = _empty(gradient, self._host, gradient.dtype)
            self._landed[name].copy_(gradient, non_blocking=True)
        for device in {gradient.device for gradient in gradients.values() if gradient.is_cuda}:
            torch.cuda.synchronize(device)
        return {name: self._landed[name] for name in gradients}

    def _hand_over(self, name: str, gradient: torch.Tensor | None) -> None:
        """Give what is updated its gradient, and its memory, which FSDP2 may have exchanged."""
        updated, own = self.updated[name], self.own[name]
        if name not in self._kept and updated is not own:
            updated.data = local_part(own.detach())
        updated.grad = None if gradient is None else gradient.to(updated.dtype)
        if updated is not self.named[name]:
            self.named[name].grad = None  # so that only one gradient is there twice
        _lay_gradient(updated)

    def _rows(self, name: str, parameter: nn.Parameter) -> nn.Parameter:
        return nn.Parameter(self._zero1[name].own(parameter)) if name in self._zero1 else parameter

    def _gradient(self, name: str) -> torch.Tensor:
        gradient = self.named[name].grad
        assert gradient is not None
        return local_part(self._zero1[name].own(gradient) if name in self._zero1 else gradient)


def rank_updater(
    plan: Plan, parameters: Mapping[int, Mapping[str, nn.Parameter]], zero1: Mapping[int, Zero1],
    optimizer: OptimizerFactory | None, device: torch.device,
) -> Updater:  # fmt: skip
    """What updates all parameters of a rank, by name; a second copy of a tied one is numbered by its stage."""
    named: dict[str, nn.Parameter] = {}
    divided: dict[str, Zero1] = {}
    copies: dict[str, str] = {}
    for stage, given in parameters.items():
        for own, parameter in given.items():
            name = name_beside(named, own, stage, copies)
            named[name] = parameter
            if stage in zero1:
                divided[name] = zero1[stage]
    make = optimizer or optimizer_factory(plan.settings, fused=True)
    return Updater(named, make, divided, host=host_of(plan, device), copies=copies)


def host_of(plan: Plan, device: torch.device) -> torch.device | None:
    """Where a rank on `device` keeps its optimizer's state, if not there; a process of a CPU has it on the host."""
    return torch.device("cpu") if plan.settings.offload == "optimizer" and device.type != "cpu" else None


def _plain(parameter: nn.Parameter) -> nn.Parameter:
    """The parameter, or one over this rank's rows of it, in the same memory."""
    return nn.Parameter(local_part(parameter.detach())) if isinstance(parameter, DTensor) else parameter


def _copied(tensor: torch.Tensor, host: torch.device | None) -> torch.Tensor:
    """What is updated instead of a parameter."""
    return _empty(tensor.detach(), host or tensor.device, summed_in(tensor.dtype)).copy_(tensor.detach())


def _empty(tensor: torch.Tensor, device: torch.device, dtype: torch.dtype) -> torch.Tensor:
    """Memory for what is as large as `tensor`; a GPU copies to and from that of its host at the speed of the link."""
    pinned = tensor.is_cuda and device.type == "cpu"
    return torch.empty_like(tensor, device=device, dtype=dtype, pin_memory=pinned)


def _lay_gradient(parameter: nn.Parameter) -> None:
    """Have the gradient lie in memory as its parameter: the fused kernels read both in the order of memory, and what
    `torch.autograd.grad` gives (a backward in two parts) may lie otherwise."""
    gradient = parameter.grad
    if gradient is not None and gradient.stride() != parameter.stride():
        parameter.grad = torch.empty_like(parameter).copy_(gradient)


@overload
def clip_scale(norm: float, limit: float | None) -> float: ...
@overload
def clip_scale(norm: torch.Tensor, limit: float | None) -> torch.Tensor | float: ...
def clip_scale(norm: float | torch.Tensor, limit: float | None) -> float | torch.Tensor:
    """The factor for all gradients of a model whose gradient norm is `norm`; no number where that is none."""
    if limit is None:
        return 1.0
    scale = limit / (norm + CLIP_EPSILON)
    if isinstance(scale, torch.Tensor):
        return scale.clamp(max=1.0)
    return 1.0 if scale > 1.0 else scale


def _is_rate(rate: object) -> bool:
    """Whether it is one finite real number, 0 or more."""
    if isinstance(rate, torch.Tensor):
        return rate.numel() == 1 and not rate.is_complex() and 0 <= rate.item() < math.inf
    try:
        return isinstance(rate, Real) and not isinstance(rate, bool) and 0 <= float(rate) < math.inf
    except OverflowError:
        return False


def _scaled(gradients: Iterable[torch.Tensor], scale: float | torch.Tensor) -> None:
    """Multiply gradients by a factor, all of one type by few kernels; a tensor lies where they do."""
    by_type: dict[torch.dtype, list[torch.Tensor]] = {}
    for gradient in gradients:
        by_type.setdefault(gradient.dtype, []).append(gradient)
    for dtype, own in by_type.items():
        if isinstance(scale, torch.Tensor):
            torch._foreach_mul_(own, scale.to(dtype))
        elif scale != 1.0:
            torch._foreach_mul_(own, scale)
