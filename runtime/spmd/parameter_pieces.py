"""What a rank holds of the model's parameters and buffers: its pieces of those that are cut, the others whole."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch.distributed.tensor import DTensor, distribute_tensor

from placer.rules.layouts import State, ranges
from placer.rules.two_axis_layouts import INNER, OUTER, AxisPiece, fast_of, pieces
from placer.runtime.distributed.tensors import all_rows
from placer.runtime.spmd.axis import Axis


class Pieces:
    """`states` of the parameters and buffers that are not held alike everywhere, on the ranks of `axis`."""

    def __init__(self, states: Mapping[str, State], axis: Axis) -> None:
        self._states, self._axis = states, axis

    @property
    def first(self) -> bool:
        """Whether this rank counts what all ranks of its replica hold alike."""
        return self._axis.rank == 0

    def counts(self, name: str) -> bool:
        """Whether this rank's elements of `name` count among its replica's: the first rank of those that hold them."""
        cuts = self._cuts(name)
        if not cuts:
            return self.first
        along = {one.axis for one in cuts}
        fast = fast_of(self._states[name])
        return None in along or all(axis in along or self._axis.lines(fast)[axis].rank == 0 for axis in (OUTER, INNER))

    def cuts(self, name: str, shape: tuple[int, ...]) -> tuple[tuple[int, tuple[tuple[int, int], ...]], ...]:
        """Of a whole parameter or buffer of `shape` the dims this rank has a part of, and the ranges it has."""
        found = ((one.lay.dim, ranges(one.lay, shape[one.lay.dim], one.degree, one.rank)) for one in self._cuts(name))
        return tuple(sorted((dim, parts or ((0, 0),)) for dim, parts in found))

    def joined(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """The whole of the pieces that the ranks of a replica hold, all of which must ask, in the same order.

        What is not cut is given as it is (a DTensor where the replicas shard it).
        """
        cuts = self._cuts(name)
        if not cuts:
            return tensor
        plain = all_rows(tensor)
        for one in cuts:
            axis = self._along(name, one)
            plain = axis.all_gather(plain, one.lay, _size(axis, plain, one.lay.dim))
        return plain

    def take(self, name: str, target: torch.Tensor, source: torch.Tensor) -> None:
        """Copy this rank's part of a whole `source` into `target`."""
        mine = source
        for one in () if isinstance(source, DTensor) else self._cuts(name):
            mine = self._along(name, one).own(mine, one.lay)
        if isinstance(target, DTensor) and not isinstance(mine, DTensor):
            mine = distribute_tensor(mine.to(target.device), target.device_mesh, target.placements)
        target.copy_(mine)

    def _cuts(self, name: str) -> tuple[AxisPiece, ...]:
        state = self._states.get(name)
        return () if state is None else pieces(state.value, self._axis.degree, self._axis.rank)

    def _along(self, name: str, one: AxisPiece) -> Axis:
        return self._axis if one.axis is None else self._axis.lines(fast_of(self._states[name]))[one.axis]


def _size(axis: Axis, mine: torch.Tensor, dim: int) -> int:
    """The size of the whole, which a rank's piece alone does not tell."""
    total = torch.tensor(mine.shape[dim], device=mine.device)
    return int(axis.all_reduce(total))
