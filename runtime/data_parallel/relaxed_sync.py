"""What both ways to keep replicas together less strictly are made of: a replica's own gradients, whole, and sums over
replicas by the plan's buckets.

A replica is a column: one rank of each position. Tied parameters and the norm are summed over a column alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import distributed as dist

from placer.plans.plan import Plan
from placer.program.buckets import shared_parameters
from placer.program.instructions import Collective, Program
from placer.program.ranks import position_of
from placer.runtime.data_parallel.gradients import Gradients
from placer.runtime.data_parallel.optimizer import Updater
from placer.runtime.observer import Observer

#: Purposes of the program's collectives that a replica does not do in every step, or does by itself.
_LEFT_OUT = frozenset({"gradients", "norm"})


class RelaxedSync(Protocol):
    """The end of a step where replicas are not held together by every one."""

    def finish_step(self, done: int) -> float | None:
        """Clip and update after `done` steps of the whole run; the norm before clipping, None where nothing is."""
        ...

    def consolidate(self) -> None:
        """Bring all replicas to the same state, as a reader of the weights needs it; all ranks call it."""
        ...


@dataclass(frozen=True, kw_only=True)
class Column:
    """This rank's part of its replica. column: the ranks of the replica; ranks, group: its own place in all
    replicas."""

    plan: Plan
    replica: int
    ranks: tuple[int, ...]
    group: dist.ProcessGroup
    column: tuple[int, ...]
    gradients: Gradients
    updater: Updater
    observer: Observer

    def reduce(self, collective: Collective) -> None:
        """A collective of the synchronous program: tied gradients are summed within the replica, the others wait."""
        if collective.purpose in _LEFT_OUT:
            return
        ranks = collective.ranks[self.replica :: self.plan.meshes[0].replicas]
        if len(ranks) > 1:  # otherwise all holders are stages of this rank
            self.gradients.reduce(replace(collective, ranks=ranks))

    def own_gradients(self) -> list[torch.Tensor]:
        """Of the rows of this replica, in the order of the parameters; zeros where nothing flowed."""
        self.gradients.finish()
        for parameter in self.updater.named.values():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        return [parameter.grad for parameter in self.updater.named.values() if parameter.grad is not None]

    def norm(self) -> float:
        """Of the gradients that lie in this replica's parameters."""
        squared = self.gradients.squared()
        if len(self.column) > 1:
            ranks = self.column
            self.gradients.sum_over(_collective(ranks, "norm"), squared)
        return float(squared.sqrt())

    def told(self, tensor: torch.Tensor) -> None:
        """Tell the observer of a sum over replicas."""
        size = tensor.numel() * tensor.element_size()
        self.observer.collective(replace(_collective(self.ranks, "gradients"), bytes=size))

    def buckets(self, tensors: Iterable[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
        """`tensors` in order, packed by type into buckets of about the plan's size."""
        limit, open_ = self.plan.bucket_bytes, dict[torch.dtype, list[torch.Tensor]]()
        for tensor in tensors:
            bucket = open_.setdefault(tensor.dtype, [])
            bucket.append(tensor)
            if sum(one.numel() * one.element_size() for one in bucket) >= limit:
                yield open_.pop(tensor.dtype)
        yield from open_.values()


def columns(plan: Plan) -> tuple[tuple[int, ...], ...]:
    """The ranks of every replica, whole and those that share a tied parameter, for `Groups`: stages of one device a
    replica."""
    at = position_of(plan)
    holders = {tuple(sorted({at[stage] for stage in stages})) for stages in shared_parameters(plan).values()}
    wanted = sorted({*holders, tuple(range(len(plan.meshes)))})
    replicas = range(plan.meshes[0].replicas)
    return tuple(_column(plan, positions, replica) for positions in wanted for replica in replicas)


def column_of_rank(plan: Plan, program: Program) -> tuple[int, ...]:
    """The ranks of the replica that `program` is of."""
    return _column(plan, tuple(range(len(plan.meshes))), program.replica)


def _column(plan: Plan, positions: tuple[int, ...], replica: int) -> tuple[int, ...]:
    return tuple(plan.first_ranks[position] + replica for position in positions)


def _collective(ranks: tuple[int, ...], purpose: str) -> Collective:
    if purpose == "norm":
        return Collective(kind="all_reduce", engine="placer", purpose="norm", ranks=ranks, bytes=8, dtype="float64")
    return Collective(kind="all_reduce", engine="placer", purpose="gradients", ranks=ranks, bytes=0)


def flat(tensors: list[torch.Tensor]) -> torch.Tensor:
    """The elements of `tensors` in one."""
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])


@torch.no_grad()
def spread(source: torch.Tensor, into: list[torch.Tensor]) -> None:
    """Give `into` the elements of `source`, as `flat` put them there."""
    offset = 0
    for tensor in into:
        tensor.copy_(source[offset : offset + tensor.numel()].view_as(tensor))
        offset += tensor.numel()
