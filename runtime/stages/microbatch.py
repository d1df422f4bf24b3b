"""Microbatch: what the executor gives its stages for one microbatch: this rank's rows of the global batch.

A `BatchSplit` makes a rank's microbatches of global batches. It knows the labels and class weights of each loss op of
the cut model: what the global count of a mean is taken from.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import fx

from placer.errors import UsageError
from placer.graph import Graph
from placer.plans.plan import Plan
from placer.runtime.stages.block_code import CutModel
from placer.runtime.stages.dropout import row_keys
from placer.runtime.stages.losses import counted
from placer.runtime.stages.pass_context import PassContext
from placer.runtime.stages.rewrite import Count
from placer.runtime.stages.stage import attribute
from placer.spmd.cross_mesh import Mesh

Batch = dict[str, torch.Tensor]
Read = Callable[[str], torch.Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Microbatch:
    """A microbatch at this rank: `inputs` by `x:name`. A ghost has a row a device that counts nothing: a rank without
    rows still takes part in the collectives of its stage. first: its first row within the microbatch."""

    first: int
    rows: int
    inputs: dict[str, torch.Tensor]
    mode: PassContext
    ghost: bool = False


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
            weights=_class_weights(cut, read), labels=_labels_of(cut, read),
        )  # fmt: skip

    def microbatches(self, batch: Batch, *, step: int | None, training: bool) -> tuple[Microbatch, ...]:
        """Those of the global batch; `step` keys random numbers, None for none.

        Raises UsageError for a wrong batch.
        """
        plan = self.plan
        batch = checked(batch, plan.graph, plan.rows)
        counts = self._global_counts(batch)
        return microbatches_of(
            batch, plan, self.position, self.replica, counts=counts, step=step, training=training, device=self.device
        )

    def _global_counts(self, batch: Batch) -> tuple[float, ...]:
        """What each loss op of the model divides by, over the whole batch.

        Rows are taken slice by slice as the plan does, so that a capture for fixed sizes can be used.
        """
        totals = [0.0] * len(self.counts)
        for replica in range(self.plan.meshes[0].replicas) if self.counts else ():
            for rows in microbatch_rows(self.plan, 0, replica):
                if len(rows):
                    for index, target in enumerate(self.labels(sliced(batch, self.plan.graph, rows))):
                        totals[index] += counted(target, self.counts[index].ignore_index, self.weights[index])
        return tuple(totals)


def checked(batch: Batch, graph: Graph, rows: int) -> Batch:
    """The inputs of `graph` from `batch`. Raises UsageError for missing inputs and a wrong number of rows."""
    missing = [entry.name for entry in graph.inputs if entry.name not in batch]
    if missing:
        raise UsageError(f"the batch lacks {', '.join(missing)}; it has {', '.join(batch) or 'nothing'}")
    for entry in graph.inputs:
        found = batch[entry.name].shape
        if entry.tensor.batched and (not found or found[0] != rows):
            raise UsageError(
                f"the plan is for batches of {rows} rows, input {entry.name} has shape {tuple(found)}; "
                "give the global batch on every rank, or plan again with its size"
            )
    return {entry.name: batch[entry.name] for entry in graph.inputs}


def microbatch_rows(plan: Plan, position: int, replica: int) -> tuple[range, ...]:
    """For each microbatch the rows of the global batch that `replica` of a position computes."""
    division = Mesh.of(plan, plan.meshes[position]).division
    starts = (0, *accumulate(plan.microbatches))
    found = []
    for start, rows in zip(starts, plan.microbatches, strict=False):
        first, last = division.spans(rows)[replica]
        found.append(range(start + first, start + last))
    return tuple(found)


def sliced(batch: Batch, graph: Graph, rows: range) -> Batch:
    """The rows `rows` of the batched inputs, the others whole."""
    return {
        entry.name: batch[entry.name][rows.start : rows.stop] if entry.tensor.batched else batch[entry.name]
        for entry in graph.inputs
    }


def microbatches_of(
    batch: Batch,
    plan: Plan,
    position: int,
    replica: int,
    *,
    counts: tuple[float, ...],
    step: int | None,
    training: bool,
    device: torch.device,
) -> tuple[Microbatch, ...]:
    """The microbatches of the ranks of `replica` of a position.

    step: what its random numbers are keyed by, None for none.
    """

    def microbatch(start: int, rows: range) -> Microbatch:
        first, ghost = rows.start - start, not len(rows)
        if ghost:
            rows = range(_fewest(plan))
        mode = PassContext(
            rows=len(rows),
            global_rows=plan.rows,
            training=training,
            counts=counts,
            keys=row_keys(plan.seed, step, rows.start, len(rows), device) if training and step is not None else None,
            updates=not ghost,
        )
        inputs = {f"x:{name}": tensor.to(device) for name, tensor in sliced(batch, plan.graph, rows).items()}
        return Microbatch(first=first, rows=0 if ghost else len(rows), inputs=inputs, mode=mode, ghost=ghost)

    return tuple(map(microbatch, (0, *accumulate(plan.microbatches)), microbatch_rows(plan, position, replica)))


def _fewest(plan: Plan) -> int:
    """Rows of which every device of a replica has one."""
    used = (plan.layouts[stage.layout] for stage in plan.stages if stage.layout is not None)
    return max((layout.apart for layout in used), default=1)


def _class_weights(cut: CutModel, read: Read) -> tuple[torch.Tensor | None, ...]:
    """The class weights of each loss op, on the CPU; `read` gives the model's own tensors by name."""
    names = (None if count.weight is None else str(count.weight.target) for count in cut.rewrites.counts)
    return tuple(None if name is None else _value(cut, read, name) for name in names)


def _labels_of(cut: CutModel, read: Read) -> Callable[[Batch], tuple[torch.Tensor, ...]]:
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
