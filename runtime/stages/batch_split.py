"""BatchSplit: the microbatches of one rank from global batches.

The labels and class weights of each loss op of a cut model: what the global count of a mean is taken from.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import fx

from placer.errors import UsageError
from placer.plans.plan import Plan
from placer.runtime.stages.block_code import CutModel
from placer.runtime.stages.microbatch import Batch, Microbatch, checked, global_counts, microbatches_of
from placer.runtime.stages.rewrite import Count
from placer.runtime.stages.stage import attribute


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSplit:
    """What cuts batches for `replica` of a position on `device`. counts, weights, labels: of each loss op what it
    counts, its weights of classes, its labels from some rows of a batch."""

    plan: Plan
    position: int
    replica: int
    device: torch.device
    counts: tuple[Count, ...]
    weights: tuple[torch.Tensor | None, ...]
    labels: Callable[[Batch], tuple[torch.Tensor, ...]]

    @staticmethod
    def of(plan: Plan, cut: CutModel, read: Read, *, position: int, replica: int, device: torch.device) -> BatchSplit:
        """Of a model as it was cut; `read` gives whole parameters and buffers."""
        return BatchSplit(
            plan=plan, position=position, replica=replica, device=device, counts=cut.rewrites.counts,
            weights=class_weights(cut, read), labels=labels_of(cut, read),
        )  # fmt: skip

    def microbatches(self, batch: Batch, *, step: int | None, training: bool) -> tuple[Microbatch, ...]:
        """The microbatches of the global batch; `step` keys random numbers, None for none.

        Raises UsageError for a wrong batch.
        """
        plan = self.plan
        batch = checked(batch, plan.graph, plan.rows)
        counts = global_counts(batch, plan, self.counts, labels=self.labels, weights=self.weights)
        return microbatches_of(
            batch, plan, self.position, self.replica, counts=counts, step=step, training=training, device=self.device
        )


Read = Callable[[str], torch.Tensor]


def class_weights(cut: CutModel, read: Read) -> tuple[torch.Tensor | None, ...]:
    """The class weights of each loss op, on the CPU; `read` gives the model's own tensors by name."""
    names = (None if count.weight is None else str(count.weight.target) for count in cut.rewrites.counts)
    return tuple(None if name is None else _value(cut, read, name) for name in names)


def labels_of(cut: CutModel, read: Read) -> Callable[[Batch], tuple[torch.Tensor, ...]]:
    """A function from model inputs to the labels of each loss op. Raises UsageError where parameters make them."""
    nodes: list[fx.Node] = [count.target for count in cut.rewrites.counts]
    names = [cut.name(node) for node in nodes]
    code = cut.prologue(names)
    unknown = [name for name in names if not name.startswith("x:") and name not in code.outputs]
    if unknown:
        raise UsageError("the labels of the loss are computed from parameters; give them as a model input")

    own = {n: read(n[2:]).cpu() for n in code.inputs if n.startswith("p:")}

    def labels(batch: Batch) -> tuple[torch.Tensor, ...]:
        values = {**{f"x:{name}": tensor for name, tensor in batch.items()}, **own}
        given = [values[name] for name in code.inputs]
        values.update(zip(code.outputs, code.module(None, *given), strict=True))
        return tuple(values[name] for name in names)

    return labels


def _value(cut: CutModel, read: Read, name: str) -> torch.Tensor:
    """A tensor of the model, or a constant of its graph; that of the graph where the model has no memory."""
    own = cut.state(name)
    return (attribute(cut.module, name) if own is None or own.is_meta else read(name)).cpu()
