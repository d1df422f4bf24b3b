"""What each axis of a replica's devices may cut: the dims of values between blocks, and the choices of ops.

tensor      values of three dims (batch, sequence, hidden) whole or cut on 1, others whole; no op cuts rows
height      images (batch, channels, height, width) whole or cut on 2; no op cuts rows or another dim of images
width       images whole or cut on 3; only where it is pinned, since what width can do height can
rows        values cut on their rows; ops cut rows, or a dim of what has no rows: what mixes rows gathers or sums them
sequence    values of three dims cut on 1; no op cuts rows or a parameter: each device has some tokens of every row
expert      as rows, and products of experts are cut on these
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TypeAlias

from placer.graph import BlockClass, Graph, Op, Parameter, Tensor
from placer.plans.plan import ROWS_APART
from placer.rules.expert_loads import experts_of
from placer.rules.graph_calls import tensor_arguments
from placer.rules.layouts import Choice, Cut, State, is_own
from placer.spmd.expert_order import APART

WHOLE = "whole"
# axis -> the dim on which values of so many dims may be cut.
DIMS: dict[str, dict[int, int]] = {
    "tensor": {3: 1},
    "height": {4: 2},
    "width": {4: 3},
    "sequence": {3: 1},
    "rows": {},
    "expert": {},
}


# Of two axes the outer one first: the inner one has the fast links. Tensor cuts say most, and say it between most ops.
OUTER_FIRST = ("expert", "rows", "sequence", "height", "width", "tensor")
Axes: TypeAlias = tuple[tuple[str, int], ...]


def devices_of(axes: Axes) -> int:
    """The devices of a replica that lies along `axes`."""
    return prod(count for _, count in axes)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaAxis:
    """An axis by name. `images`: whether images pass between the blocks of the model. `alone`: along `rows` those of a
    model that was captured for as many alone, in which no size depends on them; weights stay whole then.
    """

    name: str
    images: bool = False
    alone: int = 0

    @property
    def apart(self) -> bool:
        """Whether each device has rows of its own."""
        return self.name in ROWS_APART

    @property
    def always(self) -> bool:
        """Whether values between blocks are cut wherever they can be."""
        return self.apart or self.name == "sequence"

    def states(self, tensors: list[Tensor], degree: int) -> tuple[str, ...]:
        """How values between blocks that lie alike may lie."""
        dims = {self._dim(tensor) for tensor in tensors}
        dim = dims.pop() if len(dims) == 1 else None
        if dim is None or not all(self._divides(tensor, dim, degree) for tensor in tensors):
            return (WHOLE,)
        return (f"cut {dim}",) if self.always and not self.alone else (WHOLE, f"cut {dim}")

    def allows(self, kind: BlockClass, op: Op, choice: Choice) -> bool:
        """Whether an op may be done so."""
        if self.name == "expert" and experts_of(kind, op) and choice.name not in APART:
            return False
        values = [kind.tensor(reference) for reference in tensor_arguments(op)]
        if any(halo and _grows(value, halo.dim) for value, halo in zip(values, choice.halo, strict=False)):
            return False  # a window over rows, whose neighbours lie elsewhere for every number of them
        pairs = (*zip(values, choice.inputs, strict=True), *zip(op.outputs, choice.outputs, strict=True))
        if choice.counts and any(isinstance(state.value, Cut) and _grows(one, state.value.dim) for one, state in pairs):
            return False  # rows that are the groups of a convolution, whose number is another at each device
        return all(self._cuts(tensor, state) for tensor, state in pairs)

    def _cuts(self, tensor: Tensor | Parameter, state: State) -> bool:
        lay = state.value
        if is_own(lay):
            # Only where rows are cut do any get an order of their own.
            return self.apart
        if not isinstance(lay, Cut):
            return True
        if lay.every:
            return self.name == "sequence"
        if isinstance(tensor, Parameter):
            return self.name != "sequence" and not self.alone
        rows = bool(tensor.shape[lay.dim].per_row)
        if self.name == "rows" and rows:
            return tensor.shape[lay.dim].fixed == 0  # of some rows less than all pieces differ
        if self.apart:
            return rows or not tensor.batched
        barred = {2, 3} - {DIMS[self.name].get(4)} if self.images else set()
        return not rows and not (len(tensor.shape) == 4 and lay.dim in barred)

    def _dim(self, tensor: Tensor) -> int | None:
        return (0 if tensor.shape else None) if self.apart else DIMS[self.name].get(len(tensor.shape))

    def _divides(self, tensor: Tensor, dim: int, degree: int) -> bool:
        size = tensor.shape[dim]
        if self.alone:
            return size.fixed % self.alone == 0 and size.fixed % degree == 0
        if self.apart:
            return size.per_row != 0 and size.fixed == 0
        return tensor.requires_grad and size.per_row == 0 and size.fixed % degree == 0


def _grows(tensor: Tensor | Parameter, dim: int) -> bool:
    """Whether the size of a dim depends on the rows of the batch."""
    return isinstance(tensor, Tensor) and bool(tensor.shape[dim].per_row)


def rows_alone(graph: Graph) -> int:
    """The rows of a graph that knows of no other number of them; 0 where it does."""
    return 0 if any(size.per_row for entry in graph.inputs for size in entry.tensor.shape) else graph.rows


def row_lengths(graph: Graph) -> tuple[int, ...]:
    """Sizes of dim 1 of the values of three dims between blocks: tokens of a row, where it is a sequence."""
    made = (graph.value(reference) for block in graph.blocks for reference in block.inputs)
    return tuple(sorted({value.shape[1].fixed for value in made if len(value.shape) == 3 and value.batched}))


def longest_row(graph: Graph) -> int:
    """Tokens of a row: the most of `row_lengths`, 0 where there is none."""
    return max(row_lengths(graph), default=0)
