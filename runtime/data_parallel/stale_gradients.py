"""Bounded staleness: the summed gradients of a step are applied S steps later, and travel meanwhile.

    g(t)   = gradient of the global batch t at w(t)             its sum over replicas is begun after step t
    w(t+1) = update of the plan's optimizer with g(t - S), clipped by its norm; w(t) where t < S

All replicas hold the same weights at all times. S = 0 is the synchronous step. Before the weights are read (for
evaluations, checkpoints and at the end) all that travels is waited for and applied, in order, and the next S steps
apply nothing again: after n steps and this, n updates were made. A gradient is never older than S steps. A rank waits
for a sum at the latest S steps after it was begun, and every step for one number, its loss.

Memory: S + 1 copies of the gradients.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import torch
from torch import distributed as dist

from placer.runtime.data_parallel.optimizer import clip_scale
from placer.runtime.data_parallel.relaxed_sync import Column, flat, spread


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sum:
    """A bucket of gradients on its way."""

    work: dist.Work
    elements: torch.Tensor


class StaleGradients:
    """The end of a step whose update uses the gradients of `staleness` steps before (S above)."""

    def __init__(self, column: Column, staleness: int) -> None:
        self._column, self._staleness = column, staleness
        self._travelling: deque[list[_Sum]] = deque()

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

    def _begun(self, bucket: list[torch.Tensor]) -> _Sum:
        elements = flat(bucket)
        work = dist.all_reduce(elements, group=self._column.group, async_op=True)
        assert work is not None  # this rank is of the group
        self._column.told(elements)
        return _Sum(work=work, elements=elements)

    def _apply(self) -> float | None:
        """Update with the oldest gradients on their way."""
        column, limit = self._column, self._column.plan.settings.clip_norm
        for parameter in column.updater.named.values():
            if parameter.grad is None:
                parameter.grad = torch.empty_like(parameter)
        gradients = [p.grad for p in column.updater.named.values() if p.grad is not None]
        with column.observer.during("reduction"):
            for one, bucket in zip(self._travelling.popleft(), column.buckets(gradients), strict=True):
                one.work.wait()
                spread(one.elements, bucket)
        norm = None if limit is None else column.norm()
        column.updater.step(clip_scale(norm or 0.0, limit))
        return norm
