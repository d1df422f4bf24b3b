"""Microbatch: what the executor gives its stages for one microbatch: this rank's rows of the global batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate

import torch

from placer.errors import UsageError
from placer.graph import Graph
from placer.plans.plan import Plan
from placer.runtime.stages.dropout import row_keys
from placer.runtime.stages.losses import counted
from placer.runtime.stages.pass_context import PassContext
from placer.runtime.stages.rewrite import Count
from placer.spmd.cross_mesh import Mesh

Batch = dict[str, torch.Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Microbatch:
    """A microbatch at this rank: `inputs` by `x:name`. A ghost has a row a device that counts nothing: a rank without
    rows still takes part in the collectives of its stage. first: its first row within the microbatch."""

    first: int
    rows: int
    inputs: dict[str, torch.Tensor]
    mode: PassContext
    ghost: bool = False


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


def global_counts(
    batch: Batch,
    plan: Plan,
    counts: tuple[Count, ...],
    *,
    labels: Callable[[Batch], tuple[torch.Tensor, ...]],
    weights: tuple[torch.Tensor | None, ...],
) -> tuple[float, ...]:
    """What each loss op of the model divides by, over the whole batch. `labels` computes the labels of some rows.

    Rows are taken slice by slice as the plan does, so that a capture for fixed sizes can be used.
    """
    totals = [0.0] * len(counts)
    if not counts:
        return ()
    for replica in range(plan.meshes[0].replicas):
        for rows in microbatch_rows(plan, 0, replica):
            if len(rows):
                for index, target in enumerate(labels(sliced(batch, plan.graph, rows))):
                    totals[index] += counted(target, counts[index].ignore_index, weights[index])
    return tuple(totals)


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
    starts = (0, *accumulate(plan.microbatches))
    return tuple(
        _microbatch(batch, plan, rows, rows.start - start, counts, step, training, device)
        for start, rows in zip(starts, microbatch_rows(plan, position, replica), strict=False)
    )


def _fewest(plan: Plan) -> int:
    """Rows of which every device of a replica has one."""
    used = (plan.layouts[stage.layout] for stage in plan.stages if stage.layout is not None)
    return max((layout.apart for layout in used), default=1)


def _microbatch(
    batch: Batch, plan: Plan, rows: range, first: int, counts: tuple[float, ...], step: int | None, training: bool,
    device: torch.device,
) -> Microbatch:  # fmt: skip
    ghost = not len(rows)
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
    parts = sliced(batch, plan.graph, rows)
    inputs = {f"x:{name}": tensor.to(device) for name, tensor in parts.items()}
    return Microbatch(first=first, rows=0 if ghost else len(rows), inputs=inputs, mode=mode, ghost=ghost)
