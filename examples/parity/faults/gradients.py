"""Faults of gradients after backward: sums over replicas and stages, ZeRO's pieces, the norm and clipping."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel

from examples.parity.faults.fault import Fault, method, replaced
from placer.program.instructions import Collective
from placer.runtime.data_parallel.gradients import Gradients
from placer.runtime.data_parallel.optimizer import Updater, clip_scale
from placer.runtime.data_parallel.replicas import DdpReplica
from placer.runtime.data_parallel.zero1 import Zero1
from placer.runtime.distributed import tensors

Real = Callable[..., Any]
GRID, CLIPPED = "pipeline x replicas", "pipeline x replicas, clipped"


def _nothing(real: Real, *given: object) -> None:
    return None


def _only_last(real: Real, self: DdpReplica, last: bool) -> None:
    if last:
        for parameter in self.stage.parameters():
            parameter.grad = None
    real(self, last)


def _halved_factor(real: Real, self: FSDPModule, factor: float) -> None:
    real(self, 2.0 * factor)


def _own_tied(real: Real, self: Gradients, collective: Collective) -> None:
    self._summed.add(collective.unit)


def _twice(real: Real, self: Gradients, name: str) -> torch.Tensor | None:
    total = real(self, name)
    return None if total is None else 2.0 * total


def _without(purpose: str) -> Real:
    def reduce(real: Real, self: Gradients, collective: Collective) -> None:
        if collective.purpose != purpose:
            real(self, collective)

    return reduce


def _own_norm(real: Real, self: Gradients, collective: Collective) -> None:
    if collective.purpose in ("gradients", "parts", "tied", "parameters"):
        real(self, collective)
    else:
        self._squared = self._local_squared()


def _every_replica(real: Real, self: Gradients) -> torch.Tensor:
    self.counts_own = True
    return real(self)


def _in_bfloat16(real: Real, self: Gradients, collective: Collective, tensor: torch.Tensor) -> None:
    real(self, collective, tensor)
    tensor.copy_(tensor.bfloat16())


def _one_further(real: Real, source: torch.Tensor, into: list[torch.Tensor]) -> None:
    real(source.roll(1), into)


def _not_gathered(real: Real, self: Zero1, parameters: Sequence[torch.Tensor]) -> int:
    return 0


def _one_further_row(
    real: Real, self: Zero1, packed: torch.Tensor, parameters: Sequence[torch.Tensor], rank: int
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    found = list(real(self, packed, parameters, rank))
    if rank == self._mesh.get_local_rank():
        return found
    return [(where, rows.roll(1, dims=0) if rows.dim() > 1 else rows) for where, rows in found]


def _rows_of_the_other(real: Real, self: Updater, name: str) -> torch.Tensor:
    found = real(self, name)
    return found.flip(0) if name in self._zero1 and found.dim() > 1 else found


FAULTS = (
    Fault(name="a bucket of gradients is not summed over replicas", subject=GRID,
          plant=lambda: method(Gradients, "_reduce_bucket", _nothing)),
    Fault(name="DDP's mean over replicas for the sum", subject="replicas",
          plant=lambda: method(DistributedDataParallel, "register_comm_hook", _nothing)),
    Fault(name="only the last microbatch's gradients reach DDP", subject="replicas",
          plant=lambda: method(DdpReplica, "before_backward", _only_last)),
    Fault(name="FSDP divides gradients by two", subject="FSDP",
          plant=lambda: method(FSDPModule, "set_gradient_divide_factor", _halved_factor)),
    Fault(name="a bucket's elements given back one further", subject=GRID,
          plant=lambda: replaced(tensors.spread, _one_further)),
    Fault(name="gradients rounded to bfloat16 on the way", subject=GRID,
          plant=lambda: method(Gradients, "sum_over", _in_bfloat16)),
    Fault(name="tied gradients are not summed over stages", subject="pipeline",
          plant=lambda: method(Gradients, "_reduce_tied", _own_tied)),
    Fault(name="tied gradients counted twice", subject="pipeline",
          plant=lambda: method(Gradients, "_sum_over_stages", _twice)),
    Fault(name="parts of a shared parameter's gradient are not summed", subject="cut products",
          plant=lambda: method(Gradients, "reduce", _without("parts"))),
    Fault(name="ZeRO: rows that others updated are not fetched", subject="ZeRO 1",
          plant=lambda: method(Zero1, "gather", _not_gathered)),
    Fault(name="ZeRO: rows that others updated are put one further", subject="ZeRO 1",
          plant=lambda: method(Zero1, "_pairs", _one_further_row)),
    Fault(name="ZeRO: gradients of other rows", subject="ZeRO 1",
          plant=lambda: method(Updater, "_gradient", _rows_of_the_other)),
    Fault(name="clipping is left out", subject="pipeline, clipped",
          plant=lambda: replaced(clip_scale, lambda real, norm, limit: 1.0)),
    Fault(name="gradients below the limit are scaled up to it", subject="pipeline, below the limit",
          plant=lambda: replaced(clip_scale, lambda real, norm, limit: limit / norm)),
    Fault(name="clipping by a rank's own norm", subject="pipeline, clipped",
          plant=lambda: method(Gradients, "reduce", _own_norm)),
    Fault(name="the norm counts every replica", subject=CLIPPED,
          plant=lambda: method(Gradients, "squared", _every_replica)),
)  # fmt: skip
