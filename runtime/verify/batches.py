"""The batches that `verify` runs where none are given: random, legal, and uneven where that could go wrong.

Labels are left out unevenly (their `ignore_index`), in every step but the first all of those of one microbatch. Only
inputs that nothing reads but the losses that leave them out get such labels: an id that is also looked up in a table
stays one.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

import torch

from placer import tracer
from placer.graph import Block, BlockClass, Graph, Op
from placer.plans.plan import Plan
from placer.rules.graph_calls import call_of
from placer.runtime.stages.captured_model import run_dtype

Batch = dict[str, torch.Tensor]

_LABELLED = frozenset({"cross_entropy_loss", "nll_loss", "nll_loss_nd", "nll_loss2d"})
_IGNORED_AT = 4  # of the arguments of those
# What puts other numbers in the place of labels that do not count, or makes no indices of them.
_REPLACING = frozenset({"masked_fill", "masked_fill_", "where", "clamp", "clamp_min", "new_zeros", "zeros_like"})
# What only hands integers on.
_HANDING = frozenset({
    "view", "reshape", "slice", "select", "to", "_to_copy", "clone", "contiguous", "expand", "flatten", "unsqueeze",
    "squeeze", "transpose", "permute", "alias", "detach", "unflatten", "pad", "constant_pad_nd", "slice_scatter",
    "select_scatter", "copy", "copy_", "fill_", "cat", "type_as", "t", "narrow", "split", "chunk", "unbind", "getitem",
})  # fmt: skip


def uneven_batch(plan: Plan, seed: int) -> Batch:
    """A random batch of the plan's rows; the seed is the number of the step."""
    batch = tracer.random_batch(plan.graph, plan.rows, seed)
    batch = {name: t.to(run_dtype(plan, t.dtype)) for name, t in batch.items()}
    for name, ignored in left_out(plan.graph).items():
        batch[name] = _with_gaps(batch[name].clone(), plan.microbatches, ignored, seed)
    return batch


def left_out(graph: Graph) -> dict[str, int]:
    """The inputs whose labels may be left out, each with the number that says so."""
    found = {}
    for entry in graph.inputs:
        if entry.tensor.dtype.startswith(("int", "uint")) and entry.tensor.batched:
            numbers = _ignoring(graph, entry.name)
            if len(numbers) == 1 and None not in numbers:
                found[entry.name] = next(number for number in numbers if number is not None)
    return found


def _with_gaps(labels: torch.Tensor, microbatches: tuple[int, ...], ignored: int, seed: int) -> torch.Tensor:
    for row in range(labels.shape[0]):
        if labels.dim() > 1:
            labels[row].view(-1)[: row % 3 * labels[row].numel() // 4] = ignored
        elif row % 5 == 3:
            labels[row] = ignored
    if len(microbatches) > 1 and seed:
        empty = -seed % len(microbatches)
        starts = (*accumulate(microbatches, initial=0),)
        labels[starts[empty] : starts[empty + 1]] = ignored
    return labels


def _ignoring(graph: Graph, name: str) -> set[int | None]:
    """What the readers of an input leave out; None for one that looks it up or does something else with it."""
    reach, numbers = {f"x:{name}"}, set[int | None]()
    every: list[tuple[int, Block]] = [(-1, graph.prologue), *enumerate(graph.blocks)]
    for index, block in every:
        kind = graph.classes[block.kind]
        local = {f"i{number}" for number, reference in enumerate(block.inputs) if reference in reach}
        for number, op in enumerate(kind.ops):
            if not local.isdisjoint(op.inputs):
                read = _read(kind, op, frozenset(local), graph.rows)
                numbers |= read.numbers
                local |= {f"o{number}.{k}" for k in range(len(op.outputs)) if read.hands_on}
        reach |= {f"b{index}.{k}" for k, reference in enumerate(kind.outputs) if reference in local}
    return numbers


@dataclass(frozen=True, slots=True)
class _Read:
    numbers: frozenset[int | None]
    hands_on: bool = False


def _read(kind: BlockClass, op: Op, local: frozenset[str], rows: int) -> _Read:
    """What an op does with labels among its inputs."""
    name = op.target.split(".")[1] if "." in op.target else op.target
    if name in _REPLACING or all(not out.dtype.startswith(("int", "uint", "float", "bfloat")) for out in op.outputs):
        return _Read(frozenset())
    if name in _LABELLED and op.inputs[0] not in local:
        given = call_of(kind, op, rows).arguments
        number = given[_IGNORED_AT] if len(given) > _IGNORED_AT else -100
        return _Read(frozenset({number if isinstance(number, int) else None}))
    if name in _HANDING:
        return _Read(frozenset(), hands_on=True)
    return _Read(frozenset({None}))
