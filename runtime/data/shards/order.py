"""The order of samples in shards: random, yet read nearly in sequence, and known at every place without history.

    epoch      the shards in an order of its own, one after the other: a stream of samples
    lane       one of `LANES` equal pieces of that stream; samples are taken from the lanes in turn
    window     so many samples of a lane that follow each other, shuffled among themselves
    ahead      while a window is given out, the one after it is read ahead: with each sample one, as they are stored

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
from placer.runtime.data.batches import HELD_OUT_SHARE, drawn

# So many ranks read shards apart from each other; fewer where there are fewer shards.
LANES = 64
# Samples of a window: of images of 110 kB some 110 MB; for every lane the page cache holds one and what of the next is
# read ahead.
WINDOW = 1024


@dataclass(frozen=True, slots=True)
class Place:
    """A sample: the number of its shard, and its own in there."""

    shard: int
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Window:
    """The `number`-th window of a lane in an epoch: `count` samples from the `first` of the lane on."""

    epoch: int
    lane: int
    number: int
    first: int
    count: int


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
        window, inner = self._window_of(index)
        shuffled = _permuted(window.count, self._seed, window.epoch, window.lane, window.number)
        return self._streamed(window, int(shuffled[inner]))

    def ahead(self, index: int) -> Place:
        """The sample to have read ahead meanwhile: of the next window of its lane, which this reaches as it is stored.

        A window longer than the one before it (an epoch ends with a short one) is reached in steps of some samples.
        """
        window, inner = self._window_of(index)
        following = self._next(window)
        return self._streamed(following, max(0, (inner + 1) * following.count // window.count - 1))

    def held_out(self, index: int) -> Place:
        """Those held out, in order, over and over; the first sample where none is."""
        place = self.trained + index % self.kept if self.kept else 0
        shard = bisect_right(self._ends, place)
        return Place(shard, place - (self._ends[shard - 1] if shard else 0))

    def _window_of(self, index: int) -> tuple[_Window, int]:
        """The window of the sample after `index` others, and how many of it come before."""
        epoch, within = divmod(index, self.trained)
        place, lane = divmod(within, self.lanes)
        number, inner = divmod(place, self._window)
        return self._window_at(epoch, lane, number), inner

    def _next(self, window: _Window) -> _Window:
        """The window that follows in the same lane."""
        if window.first + window.count < self._size(window.lane):
            return self._window_at(window.epoch, window.lane, window.number + 1)
        return self._window_at(window.epoch + 1, window.lane, 0)

    def _window_at(self, epoch: int, lane: int, number: int) -> _Window:
        first = number * self._window
        count = min(self._window, self._size(lane) - first)
        return _Window(epoch=epoch, lane=lane, number=number, first=first, count=count)

    def _size(self, lane: int) -> int:
        each, more = divmod(self.trained, self.lanes)
        return each + (lane < more)

    def _streamed(self, window: _Window, inner: int) -> Place:
        """The `inner`-th sample of a window as its shards store them."""
        each, more = divmod(self.trained, self.lanes)
        place = window.lane * each + min(window.lane, more) + window.first + inner
        shards, ends = _shards(self._trained, self._seed, window.epoch)
        at = bisect_right(ends, place)
        return Place(shards[at], place - (ends[at - 1] if at else 0))


@lru_cache(maxsize=2 * LANES)
def _permuted(
    size: int, seed: int, epoch: int, lane: int, window: int
) -> numpy.ndarray[tuple[int], numpy.dtype[numpy.int64]]:
    return drawn(seed, epoch, 1, lane, window).permutation(size)


@lru_cache(maxsize=3)  # a batch may span two epochs, and what is read ahead is of the one after it
def _shards(trained: tuple[int, ...], seed: int, epoch: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The shards in the order of an epoch, and how many samples come before the end of each."""
    order = [int(one) for one in drawn(seed, epoch, 0).permutation(len(trained))]
    return tuple(order), tuple(accumulate(trained[one] for one in order))
