"""take_turn(way, job): what each process of a way does when it is its turn: make the trainer, train, say what came.

    setup   from the plain model to the end of the first steps, which warm up and are not timed
    steps   the timed ones, mean seconds of a step
    epochs  where they are asked for: all pictures once, then accuracy on others, judged by the plain model with the
            trained weights

Every process makes the same pictures and the same first weights; a trainer is given the global batch of a step.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Protocol

import torch

from placer.runtime.bench.parallel.models import Pictures, accuracy, pictures

Batch = dict[str, torch.Tensor]
HELD_OUT = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What is trained in a turn. rows: of one process; samples: pictures of an epoch."""

    model: str
    ranks: int
    rows: int
    warmup: int = 1
    steps: int = 3
    epochs: int = 0
    samples: int = 512

    @property
    def global_rows(self) -> int:
        """Of a step."""
        return self.rows * self.ranks

    @property
    def epoch_steps(self) -> int:
        """Steps that see all pictures, without a last smaller one."""
        return max(1, self.samples // self.global_rows)


class Trainer(Protocol):
    """Something that trains; `close` leaves what the next turn cannot use."""

    def step(self, batch: Batch) -> float:
        """One step on the global batch; the loss of this process's rows, or of all."""
        ...

    def weights(self) -> dict[str, torch.Tensor]:
        """The whole model by its own names; every process calls it."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTurn:
    """What one process saw of a turn; accuracies only on the first."""

    setup_seconds: float
    step_seconds: float
    losses: tuple[float, ...]
    accuracies: tuple[float, ...]
    epoch_seconds: tuple[float, ...]


def take_turn(make: Callable[[Job, int], Trainer], job: Job, rank: int) -> RankTurn:
    """Make the trainer of this process and train."""
    data, began = _pictures(job.samples, 0), time.perf_counter()
    trainer = make(job, rank)
    rows, losses = job.global_rows, []
    for step in range(job.warmup):
        losses.append(trainer.step(data.part(step * rows, rows)))
    setup = time.perf_counter() - began
    batches = [data.part(step * rows, rows) for step in range(job.warmup, job.warmup + job.steps)]
    gc.collect()
    began = time.perf_counter()
    losses += [trainer.step(batch) for batch in batches]
    seconds = (time.perf_counter() - began) / max(1, job.steps)
    accuracies, epochs = _epochs(trainer, data, job, rank)
    return RankTurn(
        setup_seconds=setup, step_seconds=seconds, losses=tuple(losses), accuracies=accuracies, epoch_seconds=epochs
    )


def _epochs(trainer: Trainer, data: Pictures, job: Job, rank: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    accuracies, seconds = [], []
    for _ in range(job.epochs):
        began = time.perf_counter()
        for step in range(job.epoch_steps):
            trainer.step(data.part(step * job.global_rows, job.global_rows))
        seconds.append(time.perf_counter() - began)
        weights = trainer.weights()
        if rank == 0:
            accuracies.append(accuracy(job.model, weights, _pictures(HELD_OUT, 1)))
    return tuple(accuracies), tuple(seconds)


@cache
def _pictures(count: int, seed: int) -> Pictures:
    return pictures(count, seed)
