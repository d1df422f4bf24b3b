"""Which block ranges bounds of stages are asked for at once: arrays of where these begin and end."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from placer.strategies.inter_op.bounds.schedule import Counts, Floats


@dataclass(frozen=True, slots=True, eq=False)
class RangeEnds:
    """Where block ranges begin and end: two arrays of blocks that are broadcast together.

    parts: whether they stand for parts of stages, and for all ways to cut them into stages.
    """

    first: Counts
    last: Counts
    parts: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of an array over the block ranges."""
        return np.broadcast_shapes(self.first.shape, self.last.shape)

    def __iter__(self) -> Iterator[tuple[tuple[int, ...], int, int]]:
        """The place in such an array, first and last block of each range that has blocks."""
        both = np.broadcast(self.first, self.last)
        for index, (first, last) in zip(np.ndindex(self.shape), both, strict=True):
            if first < last:
                yield index, int(first), int(last)

    def over(self, sums: Floats) -> Floats:
        """Of prefix sums the sum of every block range."""
        return sums[self.last] - sums[self.first]

    def over_pairs(self, sums: Floats) -> Floats:
        """Of sums over the gaps before block b what lies between the first and the last block of every range."""
        return self.of_last(sums) - self.of_first(sums)

    def of_first(self, each: Floats) -> Floats:
        """What each first block has."""
        return each[np.minimum(self.first, len(each) - 1)]

    def of_last(self, each: Floats) -> Floats:
        """What each last block has."""
        return each[np.maximum(self.last - 1, 0)]


def every_range(blocks: int) -> RangeEnds:
    """All block ranges: an array over them is of shape (blocks + 1, blocks + 1)."""
    ends = np.arange(blocks + 1)
    return RangeEnds(ends[:, None], ends[None, :])


def heads_and_rests(blocks: int) -> RangeEnds:
    """The block ranges before each inner cut, then those behind it, then every block alone."""
    cuts, each = np.arange(1, blocks), np.arange(blocks)
    firsts, lasts = (0 * cuts, cuts, each), (cuts, 0 * cuts + blocks, each + 1)
    return RangeEnds(np.concatenate(firsts), np.concatenate(lasts), parts=True)
