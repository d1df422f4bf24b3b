"""Data-parallel training whose gradients MPI sums: a ring by hand. DDP over MPI is `torch_ways.Ddp` in its world.

A ring of k processes, of a vector in k pieces: in k - 1 rounds each sends the piece it got last to the next one, which
adds its own, so that each then has the whole sum of one piece; in k - 1 more they go round as they are.
"""

from __future__ import annotations

from typing import Any

import torch

from placer.errors import require_extra
from placer.runtime.bench.parallel.torch_ways import Alone
from placer.runtime.bench.parallel.turn import Job


class MpiRing(Alone):
    """One vector of gradients in a ring of `MPI_Sendrecv`, behind the backward."""

    def __init__(self, job: Job, rank: int) -> None:
        super().__init__(job, rank)
        mpi: Any = require_extra("mpi", "mpi4py.MPI")
        self._comm = mpi.COMM_WORLD
        self._parameters = list(self.model.parameters())

    def update(self) -> None:
        """By the mean of all processes' gradients."""
        gradients = [p.grad for p in self._parameters if p.grad is not None]
        flat = torch.cat([one.reshape(-1) for one in gradients])
        self._sum(flat)
        flat /= self._comm.size
        for gradient, piece in zip(gradients, torch.split(flat, [one.numel() for one in gradients]), strict=True):
            gradient.copy_(piece.view_as(gradient))
        self.optimizer.step()

    def _sum(self, flat: torch.Tensor) -> None:
        rank, size = self._comm.rank, self._comm.size
        if size == 1:
            return
        pieces = torch.tensor_split(flat, size)
        room = torch.empty_like(pieces[0])  # the first ones are the largest
        for turn in range(size - 1):
            own = pieces[(rank - turn - 1) % size]
            self._pass_on(pieces[(rank - turn) % size], room[: own.numel()])
            own += room[: own.numel()]
        for turn in range(size - 1):
            self._pass_on(pieces[(rank - turn + 1) % size], pieces[(rank - turn) % size])

    def _pass_on(self, sent: torch.Tensor, into: torch.Tensor) -> None:
        rank, size = self._comm.rank, self._comm.size
        self._comm.Sendrecv(sent.numpy(), (rank + 1) % size, 0, into.numpy(), (rank - 1) % size, 0)
