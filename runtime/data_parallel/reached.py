"""Which weights a step reached, on any rank, where only the step tells: in a model with opaque parts.

On one device a weight that no gradient reaches has none, and the optimizer leaves it as it is. Here every rank takes
part in every sum, with zeros where it has nothing, and engines (DDP, FSDP2) wait for all weights or pass over those
without a gradient, rank by rank. So the backward comes to all of them (`coming_to`), `Heard` listens to which of them
it brings a gradient, and in the end the ranks add up what they heard.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import torch
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp._fully_shard._fsdp_param import FSDPParam
from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup

from placer.runtime.stages.stage import StageModule


class Heard:
    """The weights of one rank's stage that a gradient reached in this step, by name: those it was told to listen to.

    deaf: while the rank runs a backward of rows it does not have.
    """

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.deaf = False
        self._listening: set[str] = set()

    def listen(self, named: Mapping[str, torch.Tensor]) -> None:
        """Hear of these from now on: what autograd adds gradients to."""
        for name, weight in named.items():
            if weight.requires_grad and name not in self._listening:
                self._listening.add(name)
                weight.register_post_accumulate_grad_hook(self._hook(name))  # type: ignore[no-untyped-call]

    def _hook(self, name: str) -> Callable[[torch.Tensor], None]:
        def reached(weight: torch.Tensor) -> None:
            if weight.grad is not None and not self.deaf:  # torch calls it too where no gradient came
                self.names.add(name)

        return reached


class _ComingTo(torch.autograd.Function):
    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, loss: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        ctx.weights = len(weights)  # type: ignore[attr-defined]
        return loss.clone()

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, *gradients: torch.Tensor) -> object:
        return (*gradients, *(None for _ in range(ctx.weights)))  # type: ignore[attr-defined]


def coming_to(loss: torch.Tensor, weights: Iterable[torch.Tensor]) -> torch.Tensor:
    """`loss`, whose backward comes to all `weights` and brings no gradient to those that nothing else brings one: hooks
    of DDP are called there all the same."""
    found: torch.Tensor = _ComingTo.apply(loss, *weights)  # type: ignore[no-untyped-call]
    return found


def shards(stage: StageModule, sharded: Iterable[FSDPModule]) -> dict[str, FSDPParam]:
    """What FSDP2 keeps of each weight that it shards, by the model's names; to be asked before the first forward."""
    names = {parameter: name for name, parameter in stage.own_parameters().items()}
    groups = (group for module in sharded for group in module._get_fsdp_state()._fsdp_param_groups)
    return {names[one.sharded_param]: one for group in groups for one in group.fsdp_params}


def gathered(shards: Mapping[str, FSDPParam]) -> dict[str, torch.Tensor]:
    """Those of the weights that were gathered once: what autograd adds gradients to."""
    return {name: one._unsharded_param for name, one in shards.items() if hasattr(one, "_unsharded_param")}


def fill_in(module: FSDPModule) -> None:
    """Have FSDP2 scatter zeros where `module` has no gradient, as other ranks scatter theirs: by itself it would leave
    out what this rank lacks. (torch's own setting for it makes zeros of one type and adds up in another.)"""
    for group in module._get_fsdp_state()._fsdp_param_groups:
        group.post_backward = _filling(group, group.post_backward)  # type: ignore[method-assign]


def _filling(group: FSDPParamGroup, scatter: Callable[..., None]) -> Callable[..., None]:
    def post_backward(*unused: object) -> None:
        for one in group.fsdp_params if group.reduce_grads else ():
            weight = getattr(one, "_unsharded_param", None)
            if weight is None or not weight.requires_grad:
                continue
            if weight.grad is None and one.unsharded_accumulated_grad is None:
                weight.grad = torch.zeros_like(weight)
            if one.unsharded_accumulated_grad is None:
                one.to_accumulated_grad_if_needed()
        scatter(*unused)

    return post_backward


def told(names: Iterable[str], heard: set[str], device: torch.device) -> torch.Tensor:
    """Of each name whether it was heard, as numbers that ranks add up."""
    return torch.tensor([float(name in heard) for name in names], dtype=torch.float32, device=device)
