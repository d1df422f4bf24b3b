"""MessageParts: what a message carries of what a rank holds of a value, where the two ranks do not hold alike.

A message names rows of the microbatch and ranges of whole values; a rank holds some rows, and of a value that is cut
its piece. Dim by dim the part begins as many entries behind the rank's first.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from placer.graph import Tensor
from placer.plans.plan import Plan
from placer.program.instructions import Message
from placer.rules.layouts import piece
from placer.rules.two_axis_layouts import pieces
from placer.spmd.cross_mesh import Range, Ranges, row_dim
from placer.spmd.parameter_layouts import value_state

Rows = tuple[int, int]


class MessageParts:
    """The parts of messages at the devices numbered `inner` in their replicas."""

    def __init__(self, plan: Plan, inner: int) -> None:
        self._plan, self._inner = plan, inner

    def of(self, message: Message, number: int, rows: Rows) -> Ranges:
        """The part of value `number` within what this rank, which has `rows`, holds of it; () is all of that."""
        if message.rows == rows and not message.cuts:
            return ()
        cuts = message.cuts[number] if message.cuts else ()
        tensor = self._plan.graph.value(message.values[number])
        stage = message.source_stage if message.direction == "send" else message.target_stage
        return (*_row_range(tensor, message.rows, rows), *self._own(message.values[number], tensor, stage, cuts))

    def _own(self, value: str, tensor: Tensor, stage: int, cuts: Ranges) -> Iterable[Range]:
        if not cuts:
            return
        lay = value_state(self._plan, value, stage).value
        for part in cuts:
            size = tensor.shape[part.dim].fixed
            first, last = 0, size
            for one, count, at, _ in pieces(lay, self._plan.stages[stage].degree, self._inner):
                if one.dim == part.dim:
                    first, last = piece(size, count, at)
            if (part.start, part.stop) != (first, last):
                yield Range(part.dim, part.start - first, part.stop - first)


def narrowed(tensor: torch.Tensor, part: Ranges) -> torch.Tensor:
    """A view of a part of `tensor`."""
    for one in part:
        tensor = tensor.narrow(one.dim, one.start, one.stop - one.start)
    return tensor


def narrowed_shape(shape: tuple[int, ...], part: Ranges) -> tuple[int, ...]:
    """The shape of a part of a tensor of `shape`."""
    sizes = list(shape)
    for one in part:
        sizes[one.dim] = one.stop - one.start
    return tuple(sizes)


def _row_range(tensor: Tensor, carried: Rows, held: Rows) -> Iterable[Range]:
    dim = row_dim(tensor) if tensor.batched and carried != held else None
    if dim is not None:
        each = tensor.shape[dim].per_row
        yield Range(dim, (carried[0] - held[0]) * each, (carried[1] - held[0]) * each)
