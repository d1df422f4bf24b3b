"""What all data is: batches by position, in an order that follows from the seed alone; and random batches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy
import torch

from placer.graph import Graph
from placer.plans.plan import SEEDS
from placer.tracer.inputs.batches import random_batch
from placer.tracer.inputs.constants import constant_of

Batch = dict[str, torch.Tensor]

HELD_OUT_SHARE = 20  # one sample in this many is kept for evaluation, the last ones of the data
# Seeds of random training and evaluation batches lie apart; a run is shorter than this.
EVALUATION_OFFSET = 2**31


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """Batches by position; the same position gives the same batch, whatever was asked before.

    name: for the log. batch: for training, counted from 0 and never ending: epochs follow each other. held_out: for
    evaluation; its rows are never trained on (unless the data is one sample). samples: how many rows there are, those
    for evaluation too; None of random ones.
    """

    name: str
    batch: Callable[[int], Batch]
    held_out: Callable[[int], Batch]
    samples: int | None = None


def synthetic_data(graph: Graph, rows: int, seed: int) -> Data:
    """Random values of the right shapes, types and ranges, seeded by position, with nothing to learn in them."""
    return Data(
        name="synthetic",
        batch=lambda position: random_batch(graph, rows, _wrapped(seed + position)),
        held_out=lambda position: random_batch(graph, rows, _wrapped(EVALUATION_OFFSET + seed + position)),
    )


def with_constants(data: Data, graph: Graph, rows: int) -> Data:
    """The data with the inputs of `graph` that are the same in every step, which no data holds."""
    made = {entry.name: constant_of(entry, rows, getattr(torch, entry.tensor.dtype)) for entry in graph.inputs}
    constants = {name: one for name, one in made.items() if one is not None}
    if not constants:
        return data
    batch, held_out = data.batch, data.held_out
    return replace(data, batch=lambda at: {**batch(at), **constants}, held_out=lambda at: {**held_out(at), **constants})


def drawn(seed: int, *more: int) -> numpy.random.Generator:
    """What draws by any seed that torch takes, and by more numbers; numpy takes none below 0."""
    return numpy.random.default_rng([seed % SEEDS.stop, *more])


def _wrapped(seed: int) -> int:
    """A seed that torch takes; the largest is followed by 0."""
    return seed if seed < SEEDS.stop else seed - SEEDS.stop


def named(name: str, *, trained: int, kept: int, rows: int) -> str:
    """`name` with what batches of `rows` are made of: which samples are only evaluated, where a batch repeats some."""
    over = f", where they repeat within a batch of {rows}" if kept < rows else ""
    held = f", the last {kept} held out for evaluation{over}" if kept else ""
    few = f" - only {trained} to train on, which repeat within each batch of {rows}" if trained < rows else ""
    return f"{name}{held}{few}"


def without_numbers(batch: Batch) -> str:
    """The inputs of a batch that hold NaN, in words, each with the first of its rows that does; "" where none does."""
    bad = {name: given.isnan() for name, given in batch.items() if given.is_floating_point() and given.isnan().any()}
    return ", ".join(f"{name} (row {int(at.nonzero()[0, 0]) if at.dim() else 0})" for name, at in bad.items())


class SampleOrder:
    """The samples of each batch. An epoch visits each training sample once, shuffled by seed and epoch."""

    def __init__(self, samples: int, rows: int, seed: int) -> None:
        self._rows, self._seed = rows, seed
        self._kept = max(1, samples // HELD_OUT_SHARE) if samples > 1 else 0
        self._trained = samples - self._kept

    def data(self, name: str, gather: Callable[[list[int]], Batch]) -> Data:
        """The batches that `gather` makes of samples; the name says which are held out, and what repeats in a batch."""
        return Data(
            name=named(name, trained=self._trained, kept=self._kept, rows=self._rows),
            batch=lambda position: gather(self._training(position)),
            held_out=lambda position: gather(self._evaluation(position)),
            samples=self._trained + self._kept,
        )

    def _training(self, position: int) -> list[int]:
        start = position * self._rows
        return [self._sample(index) for index in range(start, start + self._rows)]

    def _evaluation(self, position: int) -> list[int]:
        """Held-out samples, in order, over and over."""
        if not self._kept:
            return [0] * self._rows
        start = position * self._rows
        return [self._trained + index % self._kept for index in range(start, start + self._rows)]

    def _sample(self, index: int) -> int:
        epoch, place = divmod(index, self._trained)
        return int(_shuffled(self._trained, self._seed, epoch)[place])


@lru_cache(maxsize=2)  # a batch may span two epochs
def _shuffled(count: int, seed: int, epoch: int) -> numpy.ndarray[tuple[int], numpy.dtype[numpy.int64]]:
    return drawn(seed, epoch).permutation(count)
