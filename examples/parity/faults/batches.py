"""Faults of how the batch is divided and what its loss divides by."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch.nn import functional

from examples.parity.faults.fault import Fault, Plant, method, replaced
from placer.graph import Graph
from placer.plans.plan import Plan
from placer.runtime.stages import losses, microbatch
from placer.runtime.stages.batch_values import Batch, BatchSums
from placer.runtime.stages.microbatch import BatchSplit, Microbatch
from placer.runtime.stages.pass_context import PassContext

Real = Callable[..., Any]


def _one_row_before(real: Real, plan: Plan, position: int, replica: int) -> tuple[range, ...]:
    """Replicas after the first begin and end a row earlier."""
    return tuple(range(r.start - 1, r.stop - 1) if replica and len(r) else r for r in real(plan, position, replica))


def _equal_shares(real: Real, plan: Plan, position: int, replica: int) -> tuple[range, ...]:
    """The rows of equal numbers of rows: replica 0 repeats its first, which others have too."""
    return tuple(range(r.start, r.stop - 1) if not replica and len(r) > 1 else r for r in real(plan, position, replica))


def _first_again(real: Real, *given: object, **named: object) -> tuple[Microbatch, ...]:
    made: tuple[Microbatch, ...] = real(*given, **named)
    return (*made[:-1], made[0])


def _labels_of_the_row_before(real: Real, batch: Batch, graph: Graph, rows: range) -> Batch:
    made: Batch = real(batch, graph, rows)
    return {name: tensor.roll(1, 0) if name == "labels" else tensor for name, tensor in made.items()}


def _all_labels(real: Real, target: torch.Tensor, ignore_index: int, weight: torch.Tensor | None = None) -> float:
    return float(real(target, -(10**9), weight))


def _without_weights(real: Real, target: torch.Tensor, ignore_index: int, weight: torch.Tensor | None = None) -> float:
    return float(real(target, ignore_index))


def _of_a_microbatch(real: Real, self: BatchSplit, batch: Batch) -> BatchSums:
    made: BatchSums = real(self, batch)
    return replace(made, counts=tuple(count / len(self.plan.microbatches) for count in made.counts))


def _own_mean(real: Real, value: torch.Tensor, *, mode: PassContext) -> torch.Tensor:
    return value


def _not_smoothed(
    real: Real,
    scores: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None,
    ignore_index: int,
    smoothing: float,
    index: int,
    mode: PassContext,
) -> torch.Tensor:
    return losses.over_count(
        functional.cross_entropy(scores, target, weight, ignore_index=ignore_index, reduction="sum"), index, mode
    )


def of(original: Real, wrong: Real) -> Plant:
    """A function of the runtime, replaced."""
    return lambda: replaced(original, wrong)


FAULTS = (
    Fault(name="rows of the second replica shifted by one", subject="replicas, equal microbatches",
          plant=of(microbatch.microbatch_rows, _one_row_before)),
    Fault(name="a row of the larger share dropped", subject="replicas, unequal shares",
          plant=of(microbatch.microbatch_rows, _equal_shares)),
    Fault(name="the last microbatch dropped, the first computed again", subject="pipeline, equal microbatches",
          plant=of(microbatch.microbatches_of, _first_again)),
    Fault(name="labels of the row before", subject="pipeline",
          plant=of(microbatch.sliced, _labels_of_the_row_before)),
    Fault(name="ignored labels counted", subject="pipeline", plant=of(losses.counted, _all_labels)),
    Fault(name="weights of classes dropped from the count", subject="class weights",
          plant=of(losses.counted, _without_weights)),
    Fault(name="the loss divided by a microbatch's count", subject="pipeline, equal microbatches",
          plant=lambda: method(BatchSplit, "_sums", _of_a_microbatch)),
    Fault(name="a mean over a microbatch's own rows", subject="mean squares",
          plant=of(losses.times_share, _own_mean)),
    Fault(name="labels not smoothed", subject="smoothed labels", plant=of(losses.cross_entropy, _not_smoothed)),
)  # fmt: skip
