"""What a rank holds of the model's parameters and buffers: its pieces of those that are cut, the others whole."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn
from torch.distributed.tensor import DTensor, distribute_tensor

from placer.rules.layouts import Cut, State
from placer.runtime.lowering.axis import Axis


class Pieces:
    """`states` of the parameters and buffers that are not held alike everywhere, on the ranks of `axis`."""

    def __init__(self, states: Mapping[str, State], axis: Axis) -> None:
        self._states, self._axis = states, axis

    @property
    def first(self) -> bool:
        """Whether this rank counts what all ranks of its replica hold alike."""
        return self._axis.rank == 0

    def is_cut(self, name: str) -> bool:
        """Whether each rank of a replica has a piece of its own."""
        return self._lay(name) is not None

    def counts(self, name: str) -> bool:
        """Whether this rank's elements of `name` count among those of its replica."""
        return self.first or self.is_cut(name)

    def piece(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """This rank's part of a whole parameter or buffer; itself where it is held whole."""
        lay = self._lay(name)
        if lay is None:
            return tensor
        mine = self._axis.own(tensor.detach(), lay).clone()
        return nn.Parameter(mine, requires_grad=tensor.requires_grad) if isinstance(tensor, nn.Parameter) else mine

    def joined(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """The whole of the pieces that the ranks of a replica hold, all of which must ask, in the same order.

        What is not cut is given as it is (a DTensor where the replicas shard it).
        """
        lay = self._lay(name)
        if lay is None:
            return tensor
        plain = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
        return self._axis.all_gather(plain, lay, self._size(plain, lay.dim))

    def take(self, name: str, target: torch.Tensor, source: torch.Tensor) -> None:
        """Copy this rank's part of a whole `source` into `target`."""
        lay = self._lay(name)
        mine = source if lay is None or isinstance(source, DTensor) else self._axis.own(source, lay)
        if isinstance(target, DTensor) and not isinstance(mine, DTensor):
            mine = distribute_tensor(mine.to(target.device), target.device_mesh, target.placements)
        target.copy_(mine)

    def _lay(self, name: str) -> Cut | None:
        state = self._states.get(name)
        return state.value if state is not None and isinstance(state.value, Cut) else None

    def _size(self, mine: torch.Tensor, dim: int) -> int:
        """The size of the whole, which a rank's piece alone does not tell."""
        total = torch.tensor(mine.shape[dim], device=mine.device)
        return int(self._axis.all_reduce(total))
