"""The order in which FSDP2 gathers and scatters the units of a stage in backward, the same on every rank.

FSDP2 hooks the values between units: it gathers a unit when a gradient comes to what the unit made, and scatters it
when one came to what it read, or else in the end. With opaque parts gradients come to some values on some ranks, and
ranks would wait for each other in unlike units. Here the hooks hang on a cord beside the values, one knot before and
one behind each unit, and every backward runs along all of it. Nothing that the model computes hangs on it, so that what
no gradient reaches has none, as on one device. Autograd runs what is ready in the reverse order of forward: all that a
gradient reaches of a unit between its two knots.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

import torch
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup
from torch.distributed.fsdp._fully_shard._fsdp_state import FSDPState

Visit = Callable[[torch.Tensor], object]
_Call = tuple[tuple[object, ...], dict[str, object]]


class UnitCord:
    """The cord of the forward at hand; of `root` only the beginning is on it, as it ends last."""

    def __init__(self, units: Iterable[FSDPModule], root: FSDPModule, device: torch.device) -> None:
        self._device = device
        self._end: torch.Tensor | None = None
        for unit in units:
            state = unit._get_fsdp_state()
            state._register_pre_backward_hook = partial(self._behind, state)  # type: ignore[method-assign]
            for group in state._fsdp_param_groups:
                before = _unhooked if unit is root else partial(self._before, group)
                group._register_post_backward_hook = before  # type: ignore[method-assign]

    def cut(self) -> torch.Tensor | None:
        """What the backward of the forward that has ended begins with; None where there is none."""
        end, self._end = self._end, None
        return end

    def _before(self, group: FSDPParamGroup, args: tuple[object, ...], kwargs: dict[str, object]) -> _Call:
        self._tie(group.post_backward)
        return args, kwargs

    def _behind(self, state: FSDPState, output: object) -> object:
        self._tie(state._pre_backward)
        return output

    def _tie(self, visit: Visit) -> None:
        if torch.is_grad_enabled():
            end = torch.zeros((), device=self._device, requires_grad=True) if self._end is None else self._end
            self._end = _Knot.apply(end, visit)  # type: ignore[no-untyped-call]


def _unhooked(args: tuple[object, ...], kwargs: dict[str, object]) -> _Call:
    return args, kwargs


class _Knot(torch.autograd.Function):
    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, cord: torch.Tensor, visit: Visit) -> torch.Tensor:
        ctx.visit = visit  # type: ignore[attr-defined]
        return cord.clone()

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, *gradients: torch.Tensor) -> object:
        ctx.visit(gradients[0])  # type: ignore[attr-defined]
        return gradients[0], None
