"""Microbatch: what the executor gives its stages for one microbatch: this rank's rows of the global batch.

A `BatchSplit` makes a rank's microbatches of global batches. It knows what the model takes sums of over the whole
batch: the labels and class weights of its means, and whatever else the batch alone says (`batch_values`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import accumulate

import torch

from placer.errors import UsageError
from placer.graph import Graph, Input
from placer.plans.plan import Plan
from placer.runtime.distributed.tensors import on_device
from placer.runtime.stages.batch_values import Batch, BatchSums, BatchValues, Read
from placer.runtime.stages.block_code import CutModel
from placer.runtime.stages.captured_model import input_dtypes
from placer.runtime.stages.keyed_numbers import NO_ROW, row_keys
from placer.runtime.stages.pass_context import PassContext
from placer.spmd.cross_mesh import Mesh
from placer.tracer.inputs.constants import require_constant


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
    """What cuts batches for `replica` of a position on `device`. values: what sums over the batch are taken of."""

    plan: Plan
    position: int
    replica: int
    device: torch.device
    values: BatchValues

    @staticmethod
    def of(plan: Plan, cut: CutModel, read: Read, *, position: int, replica: int, device: torch.device) -> BatchSplit:
        """Of a model as it was cut; `read` gives whole parameters and buffers."""
        values = BatchValues.of(cut, read)
        return BatchSplit(plan=plan, position=position, replica=replica, device=device, values=values)

    def microbatches(self, batch: Batch, *, step: int | None, training: bool) -> tuple[Microbatch, ...]:
        """Those of the global batch; `step` keys random numbers, None for none.

        Raises UsageError for a wrong batch.
        """
        plan = self.plan
        batch = checked(batch, plan)
        sums = self._sums(batch, step, training)
        return microbatches_of(
            batch, plan, self.position, self.replica, sums=sums, step=step, training=training, device=self.device
        )

    def _sums(self, batch: Batch, step: int | None, training: bool) -> BatchSums:
        """What ops take of the whole batch.

        Rows are taken slice by slice as the plan does, so that a capture for fixed sizes can be used.
        """
        if self.values.none:
            return BatchSums()
        plan = self.plan
        rows = (one for replica in range(plan.meshes[0].replicas) for one in microbatch_rows(plan, 0, replica))
        cpu = torch.device("cpu")
        return self.values.sums(
            (_context(plan, one, step=step, training=training, device=cpu), sliced(batch, plan.graph, one))
            for one in rows
            if len(one)
        )


def checked(batch: Batch, plan: Plan) -> Batch:
    """The inputs of a plan's graph from `batch`. Raises UsageError for what is no dict of tensors, for missing inputs,
    another shape, another dtype, other values of a constant."""
    inputs, dtypes = plan.graph.inputs, input_dtypes(plan)
    _require_tensors(batch, [entry.name for entry in inputs])
    missing = [entry.name for entry in inputs if entry.name not in batch]
    if missing:
        raise UsageError(f"the batch lacks {', '.join(missing)}; it has {', '.join(batch) or 'nothing'}")
    for entry in inputs:
        _require_like(entry, batch[entry.name], plan.rows, dtypes[entry.name])
        require_constant(entry, batch[entry.name], plan.rows)
    return {entry.name: _recordable(batch[entry.name]) for entry in inputs}


def _recordable(given: torch.Tensor) -> torch.Tensor:
    """A tensor that was made in torch.inference_mode cannot be kept for a backward; its copy can."""
    return given.clone() if given.is_inference() else given


def _require_tensors(batch: object, names: list[str]) -> None:
    """Loops of people's own give what their loader yields: tuples, arrays."""
    wanted = f"a dict of tensors by the names of the model's inputs: {', '.join(names)}"
    if not isinstance(batch, Mapping):
        raise UsageError(f"the batch is a {type(batch).__name__}; give {wanted}")
    for name in names:
        if name in batch and not isinstance(batch[name], torch.Tensor):
            raise UsageError(f"input {name} of the batch is a {type(batch[name]).__name__}; give {wanted}")


def _require_like(entry: Input, given: torch.Tensor, rows: int, dtype: torch.dtype) -> None:
    """Sizes and dtype are in the captured ops: others would end in an error of torch's, or in other numbers."""
    found, planned = tuple(given.shape), entry.tensor.shape_at(rows)
    if entry.tensor.batched and (not found or found[0] != rows):
        last = "; drop_last=True of a loader leaves out its last, shorter batch" if found and found[0] < rows else ""
        raise UsageError(
            f"the plan is for batches of {rows} rows, input {entry.name} has shape {found}; "
            f"give the global batch on every rank, or plan again with its size{last}"
        )
    if found != planned:
        raise UsageError(
            f"input {entry.name} has shape {found}, and the plan is for {planned} alone; give that, or plan again "
            "with its size"
        )
    if given.dtype != dtype:
        have, want = (str(one).removeprefix("torch.") for one in (given.dtype, dtype))
        cast = "" if given.is_floating_point() and not dtype.is_floating_point else f"give .to({dtype}), or "
        again = f"plan again with a batch like this one: {entry.name}={'x'.join(map(str, found))}:{have}"
        raise UsageError(f"input {entry.name} is {have}, and the plan, in its precision, takes {want}; {cast}{again}")


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
    sums: BatchSums,
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
        mode = replace(
            _context(plan, rows, step=step, training=training, device=device),
            counts=sums.counts,
            totals=tuple(total.to(device) for total in sums.totals),
            updates=not ghost,
        )
        inputs = {f"x:{name}": on_device(tensor, device) for name, tensor in sliced(batch, plan.graph, rows).items()}
        return Microbatch(first=first, rows=0 if ghost else len(rows), inputs=inputs, mode=mode, ghost=ghost)

    return tuple(map(microbatch, (0, *accumulate(plan.microbatches)), microbatch_rows(plan, position, replica)))


def _context(plan: Plan, rows: range, *, step: int | None, training: bool, device: torch.device) -> PassContext:
    """Of a pass over these rows; nothing keys random numbers without a step."""
    context = PassContext(rows=len(rows), global_rows=plan.rows, training=training, found=None if training else {})
    if step is None:
        return context
    seed = plan.seed
    return replace(
        context,
        keys=row_keys(seed, step, rows.start, len(rows), device),
        batch_key=row_keys(seed, step, NO_ROW, 1, device),
        seed=(seed * 1_000_003 + step) * 1_000_003 + rows.start,
    )


def _fewest(plan: Plan) -> int:
    """Rows of which every device of a replica has one."""
    used = (plan.layouts[stage.layout] for stage in plan.stages if stage.layout is not None)
    return max((layout.apart for layout in used), default=1)
