"""Feeder: the feeds of one rank from global batches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from placer.plans import Plan
from placer.runtime.cut import Cut
from placer.runtime.feed import Batch, Feed, checked, feeds, global_counts
from placer.runtime.labels import Read, class_weights, labels_of
from placer.runtime.rewrite import Count


@dataclass(frozen=True, slots=True, kw_only=True)
class Feeder:
    """What feeds `replica` of a position on `device`. counts, weights, labels: of each loss op what it counts, its
    weights of classes, its labels from some rows of a batch."""

    plan: Plan
    position: int
    replica: int
    device: torch.device
    counts: tuple[Count, ...]
    weights: tuple[torch.Tensor | None, ...]
    labels: Callable[[Batch], tuple[torch.Tensor, ...]]

    @staticmethod
    def of(plan: Plan, cut: Cut, read: Read, *, position: int, replica: int, device: torch.device) -> Feeder:
        """The feeder of a model as it was cut; `read` gives whole parameters and buffers."""
        return Feeder(
            plan=plan, position=position, replica=replica, device=device, counts=cut.rewrites.counts,
            weights=class_weights(cut, read), labels=labels_of(cut, read),
        )  # fmt: skip

    def feeds(self, batch: Batch, *, step: int | None, training: bool) -> tuple[Feed, ...]:
        """One feed per microbatch of the global batch; `step` keys random numbers, None for none.

        Raises UsageError for a wrong batch.
        """
        plan = self.plan
        batch = checked(batch, plan.graph, plan.rows)
        counts = global_counts(batch, plan, self.counts, labels=self.labels, weights=self.weights)
        return feeds(
            batch, plan, self.position, self.replica, counts=counts, step=step, training=training, device=self.device
        )
