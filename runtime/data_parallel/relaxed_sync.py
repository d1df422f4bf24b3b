"""Replicas kept together less strictly than by every step. A replica is a column: one rank of each position; tied
parameters and the norm are summed over a column alone, over replicas by the plan's buckets.

Local SGD: every replica trains alone on its own rows; every K steps all replicas take their average.

    g_r(t) = (N / n_r) * gradient of replica r's share of the global loss at w_r     N rows of the batch, n_r of r
    w_r    = update of the plan's optimizer with g_r(t), clipped by the norm of g_r(t) alone
    w_r, m_r = sum over replicas q of (n_q / N) (w_q, m_q)                           after every K-th step

m are the optimizer's moments (AdamW's two, SGD's momentum), float32 masters stand for 16-bit weights. The share of
replica r is its rows' part of the global mean, so g_r is the gradient of the mean over its own rows; where labels are
ignored, the global count times n_r / N stands for their own count. With K = 1, SGD (momentum and weight decay too) and
no clipping this is the synchronous step, since all of it is linear; with AdamW or clipping it is not. The loss of a
step is the mean over the global batch, each row's at the weights of its replica; it alone is summed in every step.

Stale gradients: the summed gradients of a step are applied S steps later, and travel meanwhile.

    g(t)   = gradient of the global batch t at w(t)             its sum over replicas is begun after step t
    w(t+1) = update of the plan's optimizer with g(t - S), clipped by its norm; w(t) where t < S

All replicas hold the same weights at all times. S = 0 is the synchronous step. A gradient is never older than S steps.
A rank waits for a sum at the latest S steps after it was begun. Memory: S + 1 copies of the gradients.

In both all ranks also wait in every step for one number, its loss; not where each replica tells the loss of its own
rows (`Synchrony.own_loss`), the mean over these: its share of the loss of all times N / n_r.

Before the weights are read (for evaluations, checkpoints and at the end) replicas are averaged, or all that travels is
waited for and applied, in order, and the next S steps apply nothing again: after n steps and this, n updates were
made. Buffers are those of replica 0, as ever.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import distributed as dist

from placer.plans.plan import Plan
from placer.plans.transfers import position_of
from placer.program.buckets import shared_parameters
from placer.program.instructions import Collective, Program
from placer.runtime.data_parallel.gradients import Gradients
from placer.runtime.data_parallel.optimizer import Updater, clip_scale
from placer.runtime.data_parallel.synchrony import rows_of
from placer.runtime.distributed.tensors import flat, spread
from placer.runtime.observer import Observer

#: Purposes of the program's collectives that a replica does not do in every step, or does by itself.
_LEFT_OUT = frozenset({"gradients", "reached", "norm"})


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
    """This rank's part of the replica that its `program` is of; ranks, group: its own place in all replicas."""

    plan: Plan
    program: Program
    ranks: tuple[int, ...]
    group: dist.ProcessGroup
    gradients: Gradients
    updater: Updater
    observer: Observer

    def reduce(self, collective: Collective) -> None:
        """A collective of the synchronous program: tied gradients are summed within the replica, the others wait."""
        if collective.purpose in _LEFT_OUT:
            return
        ranks = collective.ranks[self.program.replica :: self.plan.meshes[0].replicas]
        if len(ranks) > 1:  # otherwise all holders are stages of this rank
            self.gradients.reduce(replace(collective, ranks=ranks))

    def own_gradients(self) -> list[torch.Tensor]:
        """Of the rows of this replica; zeros where nothing flowed."""
        self.gradients.finish()
        return self.laid(torch.zeros)

    def laid(self, fill: Callable[..., torch.Tensor]) -> list[torch.Tensor]:
        """The gradients that lie in the parameters, in their order; what `fill` makes where there is none."""
        for parameter in self.updater.named.values():
            if parameter.grad is None:
                parameter.grad = fill(parameter.shape, dtype=parameter.grad_dtype, device=parameter.device)
        return [parameter.grad for parameter in self.updater.named.values() if parameter.grad is not None]

    def norm(self) -> float:
        """Of the gradients that lie in this replica's parameters."""
        squared, ranks = self.gradients.squared(), replica_ranks(self.plan, self.program.replica)
        if len(ranks) > 1:
            norm = Collective(kind="all_reduce", engine="placer", purpose="norm", ranks=ranks, bytes=8, dtype="float64")
            self.gradients.sum_over(norm, squared)
        return float(squared.sqrt())

    def told(self, tensor: torch.Tensor) -> None:
        """Tell the observer of a sum over replicas."""
        size = tensor.numel() * tensor.element_size()
        self.observer.collective(
            Collective(kind="all_reduce", engine="placer", purpose="gradients", ranks=self.ranks, bytes=size)
        )

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
    return tuple(_column(plan, replica, positions) for positions in wanted for replica in replicas)


def replica_ranks(plan: Plan, replica: int) -> tuple[int, ...]:
    """Those of a replica, one of each position."""
    return _column(plan, replica, range(len(plan.meshes)))


def _column(plan: Plan, replica: int, positions: Iterable[int]) -> tuple[int, ...]:
    return tuple(plan.first_ranks[position] + replica for position in positions)


class LocalSgd:
    """The end of a step of local SGD; `every`: the steps between two averages (K above)."""

    def __init__(self, column: Column, every: int) -> None:
        self._column, self._every = column, every
        self._share = rows_of(column.plan, column.program.replica) / column.plan.rows
        self._apart = False

    def finish_step(self, done: int) -> float | None:
        """Update this replica; average all where K divides `done`."""
        column, limit = self._column, self._column.plan.settings.clip_norm
        column.own_gradients()
        norm = None if limit is None else column.norm() / self._share
        column.updater.step(clip_scale(norm or 0.0, limit) / self._share)
        self._apart = True
        if done % self._every == 0:
            self.consolidate()
        return norm

    def consolidate(self) -> None:
        """Average, where replicas have stepped since the last time."""
        if not self._apart:
            return
        self._apart = False
        with self._column.observer.during("reduction"):
            for bucket in self._column.buckets(self._averaged()):
                self._average(bucket)
        self._column.updater.copy_masters()

    def _average(self, bucket: list[torch.Tensor]) -> None:
        summed = flat(bucket).mul_(self._share)
        dist.all_reduce(summed, group=self._column.group)
        self._column.told(summed)
        spread(summed, bucket)

    def _averaged(self) -> Iterator[torch.Tensor]:
        """What the optimizer updates and its moments; counts of steps are equal everywhere."""
        updater = self._column.updater
        for tensor in updater.updated.values():
            yield tensor
            state = updater.optimizer.state.get(tensor, {}) if updater.optimizer is not None else {}
            for _, value in sorted(state.items()):
                if isinstance(value, torch.Tensor) and value.dim():
                    yield value


class StaleGradients:
    """The end of a step whose update uses the gradients of `staleness` steps before (S above)."""

    def __init__(self, column: Column, staleness: int) -> None:
        self._column, self._staleness = column, staleness
        self._travelling: deque[list[tuple[dist.Work, torch.Tensor]]] = deque()

    def finish_step(self, done: int) -> float | None:
        """Send this step's gradients off; update with those whose time has come. The norm is that of the latter."""
        own = self._column.own_gradients()
        self._travelling.append([self._begun(bucket) for bucket in self._column.buckets(own)])
        if len(self._travelling) > self._staleness:
            return self._apply()
        self._column.updater.clear()
        return None

    def consolidate(self) -> None:
        """Apply all that travels."""
        while self._travelling:
            self._apply()

    def _begun(self, bucket: list[torch.Tensor]) -> tuple[dist.Work, torch.Tensor]:
        elements = flat(bucket)
        work = dist.all_reduce(elements, group=self._column.group, async_op=True)
        assert work is not None  # this rank is of the group
        self._column.told(elements)
        return work, elements

    def _apply(self) -> float | None:
        """Update with the oldest gradients on their way."""
        column, limit = self._column, self._column.plan.settings.clip_norm
        gradients = column.laid(torch.empty)
        with column.observer.during("reduction"):
            for (work, elements), bucket in zip(self._travelling.popleft(), column.buckets(gradients), strict=True):
                work.wait()
                spread(elements, bucket)
        norm = None if limit is None else column.norm()
        column.updater.step(clip_scale(norm or 0.0, limit))
        return norm
