"""Local SGD: every replica trains alone on its own rows; every K steps all replicas take their average.

    g_r(t) = (N / n_r) * gradient of replica r's share of the global loss at w_r     N rows of the batch, n_r of r
    w_r    = update of the plan's optimizer with g_r(t), clipped by the norm of g_r(t) alone
    w_r, m_r = sum over replicas q of (n_q / N) (w_q, m_q)                           after every K-th step

m are the optimizer's moments (AdamW's two, SGD's momentum), float32 masters stand for 16-bit weights. The share of
replica r is its rows' part of the global mean, so g_r is the gradient of the mean over its own rows; where labels are
ignored, the global count times n_r / N stands for their own count. With K = 1, SGD (momentum and weight decay too) and
no clipping this is the synchronous step, since all of it is linear; with AdamW or clipping it is not.

Replicas are averaged also before the weights are read: for evaluations, checkpoints and at the end. The loss of a step
is the mean over the global batch, each row's at the weights of its replica; it alone is summed in every step.
Buffers are those of replica 0, as ever.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import distributed as dist

from placer.runtime.data_parallel.optimizer import clip_scale
from placer.runtime.data_parallel.relaxed_sync import Column, flat, spread
from placer.runtime.data_parallel.synchrony import rows_of


class LocalSgd:
    """The end of a step of local SGD; `every`: the steps between two averages (K above)."""

    def __init__(self, column: Column, every: int) -> None:
        self._column, self._every = column, every
        self._share = rows_of(column.plan, column.replica) / column.plan.rows
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
