"""Data-parallel training with torch as its users write it, a class each: `Trainer`s over the default process group.

Alone            each process trains its rows and tells nobody: what communication adds is counted from it
Whole            the whole batch in one process
Threads          nn.DataParallel, which without GPUs has no devices and runs the module as it is
Ddp, Fsdp2       DistributedDataParallel; fully_shard around each block and the whole
ParameterServer  process 0 collects gradients, updates, and sends weights; it has rows of its own too
LocalSgd         PeriodicModelAverager: the mean of all weights every few steps; another mathematics
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import distributed as dist
from torch import nn
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from placer.runtime.bench.parallel.models import MOMENTUM, RATES, Classifier, classifier
from placer.runtime.bench.parallel.turn import Batch, Job

AVERAGED_EVERY = 4


def sgd(model: str, parameters: Iterable[nn.Parameter]) -> torch.optim.SGD:
    """The optimizer of every way."""
    return torch.optim.SGD(parameters, lr=RATES[model], momentum=MOMENTUM)


class Alone:
    """A process on its own rows."""

    def __init__(self, job: Job, rank: int) -> None:
        self.model = classifier(job.model)
        self.first, self.rows = rank * job.rows, job.rows
        self.wrapped = self.wrap(self.model)
        self.optimizer = sgd(job.model, self.model.parameters())

    def wrap(self, model: Classifier) -> nn.Module:
        """What is called instead of the model."""
        return model

    def step(self, batch: Batch) -> float:
        """Forward, backward, update."""
        self.optimizer.zero_grad()
        loss = self.wrapped(**{name: all_[self.first : self.first + self.rows] for name, all_ in batch.items()})
        loss.backward()
        self.update()
        return float(loss.detach())

    def update(self) -> None:
        """By this process's gradients."""
        self.optimizer.step()

    def weights(self) -> dict[str, torch.Tensor]:
        """As they lie here."""
        return self.model.state_dict()


class Whole(Alone):
    """One process, all rows."""

    def __init__(self, job: Job, rank: int) -> None:
        super().__init__(job, rank)
        self.rows = job.global_rows


class Threads(Whole):
    """DataParallel: a thread for each GPU there is."""

    def wrap(self, model: Classifier) -> nn.Module:
        """Around the model."""
        return nn.DataParallel(model)


class Ddp(Alone):
    """Buckets of gradients are averaged while backward goes on."""

    def wrap(self, model: Classifier) -> nn.Module:
        """Around the model."""
        return DistributedDataParallel(model)


class Fsdp2(Alone):
    """Weights, gradients and optimizer state divided; a block's weights are gathered where it computes."""

    def wrap(self, model: Classifier) -> nn.Module:
        """In place."""
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        for module in list(model.modules()):
            if isinstance(module, nn.ModuleList):
                for block in module:
                    fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
        return model

    def weights(self) -> dict[str, torch.Tensor]:
        """Gathered."""
        return {
            name: one.full_tensor() if isinstance(one, DTensor) else one
            for name, one in self.model.state_dict().items()
        }


class ParameterServer(Alone):
    """One vector of gradients to process 0, one of weights back, nothing beside backward."""

    def __init__(self, job: Job, rank: int) -> None:
        super().__init__(job, rank)
        self.rank, self.ranks = rank, job.ranks
        self.all = list(self.model.parameters())

    def update(self) -> None:
        """Process 0 sums in the order of ranks and updates; the others take what it sends."""
        flat = torch.cat([p.grad.reshape(-1) for p in self.all if p.grad is not None])
        if self.rank == 0:
            self._serve(flat)
            return
        dist.send(flat, 0)
        dist.recv(flat, 0)
        with torch.no_grad():
            torch._foreach_copy_([p.data for p in self.all], self._pieces(flat))

    def _serve(self, flat: torch.Tensor) -> None:
        theirs = torch.empty_like(flat)
        for rank in range(1, self.ranks):
            dist.recv(theirs, rank)
            flat += theirs
        flat /= self.ranks
        for parameter, piece in zip(self.all, self._pieces(flat), strict=True):
            parameter.grad = piece
        self.optimizer.step()
        updated = torch.cat([p.detach().reshape(-1) for p in self.all])
        sent = [dist.isend(updated, rank) for rank in range(1, self.ranks)]
        for work in sent:
            if work is not None:
                work.wait()

    def _pieces(self, flat: torch.Tensor) -> list[torch.Tensor]:
        split = torch.split(flat, [p.numel() for p in self.all])
        return [piece.view_as(parameter) for piece, parameter in zip(split, self.all, strict=True)]


class LocalSgd(Alone):
    """Each process steps alone, and every few steps all take the average of their weights."""

    def __init__(self, job: Job, rank: int) -> None:
        super().__init__(job, rank)
        self.averager = PeriodicModelAverager(period=AVERAGED_EVERY, warmup_steps=0)

    def update(self) -> None:
        """By this process's gradients, then perhaps the average."""
        self.optimizer.step()
        self.averager.average_parameters(self.model.parameters())
