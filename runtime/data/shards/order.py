"""The order of samples in shards: random, yet read nearly in sequence, and known at every place without history.

    epoch      the shards in an order of its own, one after the other: a stream of samples
    lane       one of `LANES` equal pieces of that stream; samples are taken from the lanes in turn
    window     so many samples of a lane that follow each other, shuffled among themselves

It follows from the seed, the epoch and the shards' sizes alone, so a run goes on at any sample, on any number of ranks,
with any batch: every sample comes exactly once an epoch. Rank r of n takes the samples whose number leaves r when
divided by n: where n divides the lanes, these are lanes of its own, and a shard is read by one rank (by two where lanes
meet).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate

import numpy

from placer.errors import UsageError
from placer.runtime.data.batches import HELD_OUT_SHARE

# So many ranks read shards apart from each other; fewer where there are fewer shards.
LANES = 64
# Samples of a window: of images of 110 kB some 110 MB, which the page cache holds for every lane.
WINDOW = 1024


@dataclass(frozen=True, slots=True)
class Place:
    """A sample: the number of its shard, and its own in there."""

    shard: int
    number: int


class ShardOrder:
    """Where the n-th sample that is trained on lies, counted from the first epoch on without end.

    The last of the data, one sample in `HELD_OUT_SHARE`, are held out where `hold_out` says so, and there are two.
    """

    def __init__(self, counts: Sequence[int], seed: int, *, window: int = WINDOW, hold_out: bool = True) -> None:
        if window < 1:
            raise UsageError(f"a window of {window} samples holds none; give 1 or more")
        self._seed, self._window = seed, window
        self._ends = tuple(accumulate(counts))
        self.samples = self._ends[-1]
        self.kept = max(1, self.samples // HELD_OUT_SHARE) if hold_out and self.samples > 1 else 0
        self.trained = self.samples - self.kept
        starts = (end - count for end, count in zip(self._ends, counts, strict=True))
        self._trained = tuple(
            max(0, min(count, self.trained - start)) for count, start in zip(counts, starts, strict=True)
        )
        self.lanes = min(LANES, sum(1 for count in self._trained if count))

    def training(self, index: int) -> Place:
        """The sample that is trained on after `index` others."""
        epoch, within = divmod(index, self.trained)
        each, more = divmod(self.trained, self.lanes)
        place, lane = divmod(within, self.lanes)
        size = each + (lane < more)
        window, inner = divmod(place, self._window)
        first = window * self._window
        shuffled = _permuted(min(self._window, size - first), self._seed, epoch, lane, window)
        return self._streamed(epoch, lane * each + min(lane, more) + first + int(shuffled[inner]))

    def held_out(self, index: int) -> Place:
        """Those held out, in order, over and over; the first sample where none is."""
        place = self.trained + index % self.kept if self.kept else 0
        shard = bisect_right(self._ends, place)
        return Place(shard, place - (self._ends[shard - 1] if shard else 0))

    def _streamed(self, epoch: int, place: int) -> Place:
        """The sample at a place of an epoch's stream of shards."""
        shards, ends = _shards(self._trained, self._seed, epoch)
        at = bisect_right(ends, place)
        return Place(shards[at], place - (ends[at - 1] if at else 0))


@lru_cache(maxsize=2 * LANES)
def _permuted(
    size: int, seed: int, epoch: int, lane: int, window: int
) -> numpy.ndarray[tuple[int], numpy.dtype[numpy.int64]]:
    return numpy.random.default_rng([seed, epoch, 1, lane, window]).permutation(size)


@lru_cache(maxsize=2)  # a batch may span two epochs
def _shards(trained: tuple[int, ...], seed: int, epoch: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The shards in the order of an epoch, and how many samples come before the end of each."""
    order = [int(one) for one in numpy.random.default_rng([seed, epoch, 0]).permutation(len(trained))]
    return tuple(order), tuple(accumulate(trained[one] for one in order))
