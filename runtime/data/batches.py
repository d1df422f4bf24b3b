"""What all data is: batches by position, in an order that follows from the seed alone."""

from __future__ import annotations

from functools import lru_cache
from typing import Protocol

import numpy
import torch

Batch = dict[str, torch.Tensor]

HELD_OUT_SHARE = 20  # one sample in this many is kept for evaluation, the last ones of the data


class Data(Protocol):
    """Batches by position; the same position gives the same batch, whatever was asked before."""

    @property
    def name(self) -> str:
        """What the data is, for the log."""
        ...

    def batch(self, position: int) -> Batch:
        """The training batch at `position`, counted from 0 and never ending: epochs follow each other."""
        ...

    def held_out(self, position: int) -> Batch:
        """The evaluation batch at `position`; its rows are never trained on (unless the data is one sample)."""
        ...


class SampleOrder:
    """The samples of each batch. An epoch visits each training sample once, shuffled by seed and epoch.

    repeats: there are fewer training samples than rows in a batch, so that one batch holds the same sample again.
    """

    def __init__(self, samples: int, rows: int, seed: int) -> None:
        self._rows, self._seed = rows, seed
        self._kept = max(1, samples // HELD_OUT_SHARE) if samples > 1 else 0
        self._trained = samples - self._kept
        self.repeats = self._trained < rows

    @property
    def note(self) -> str:
        """What the name of the data should say of it; "" for data of ordinary size."""
        if not self.repeats:
            return ""
        return f" - only {self._trained} to train on, which repeat within each batch of {self._rows}"

    def training(self, position: int) -> list[int]:
        """Sample numbers of the batch at `position`."""
        start = position * self._rows
        return [self._sample(index) for index in range(start, start + self._rows)]

    def evaluation(self, position: int) -> list[int]:
        """Held-out sample numbers of the batch at `position`, in order, over and over."""
        if not self._kept:
            return [0] * self._rows
        start = position * self._rows
        return [self._trained + index % self._kept for index in range(start, start + self._rows)]

    def _sample(self, index: int) -> int:
        epoch, place = divmod(index, self._trained)
        return int(_shuffled(self._trained, self._seed, epoch)[place])


@lru_cache(maxsize=2)  # a batch may span two epochs
def _shuffled(count: int, seed: int, epoch: int) -> numpy.ndarray[tuple[int], numpy.dtype[numpy.int64]]:
    return numpy.random.default_rng([seed, epoch]).permutation(count)
