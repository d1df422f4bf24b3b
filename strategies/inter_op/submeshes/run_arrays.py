"""Arrays over runs of blocks [first, last), and what fills them by name."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from placer.costs.memory.block_ranges import BlockRanges
from placer.graph import Affine

Floats = NDArray[np.float64]
Blocks = NDArray[np.int64]
NEVER = float("inf")
# What a run holds, whatever its rows, and what is so much and so much a row.
A_ROW = " a row"
HELD = ("parameters", "trainable", "buffers")
GROWING = ("saved", "inputs", "staying", "staying_apart", "returned")
SIZES = (*HELD, *GROWING, *(name + A_ROW for name in GROWING))


def size_of(spans: BlockRanges, name: str, first: int, last: int) -> int:
    """What `SIZES` names of a run."""
    span = spans.of(first, last)
    if name in HELD:
        held: int = getattr(span.counts, name)
        return held
    size: Affine = getattr(span, name.removesuffix(A_ROW))
    return size.per_row if name.endswith(A_ROW) else size.fixed


@dataclass(frozen=True, slots=True, eq=False)
class Ends:
    """Where runs begin and end: two arrays of blocks that are broadcast together."""

    first: Blocks
    last: Blocks

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of an array over the runs."""
        return np.broadcast_shapes(self.first.shape, self.last.shape)

    def __iter__(self) -> Iterator[tuple[tuple[int, ...], int, int]]:
        """The place in such an array, first and last block of each run that has blocks."""
        both = np.broadcast(self.first, self.last)
        for index, (first, last) in zip(np.ndindex(self.shape), both, strict=True):
            if first < last:
                yield index, int(first), int(last)

    def over(self, sums: Floats) -> Floats:
        """Of prefix sums the sum of every run."""
        return sums[self.last] - sums[self.first]

    def over_pairs(self, sums: Floats) -> Floats:
        """Of sums over the gaps before block b what lies between the first and the last block of every run."""
        return self.of_last(sums) - self.of_first(sums)

    def of_first(self, each: Floats) -> Floats:
        """What each first block has."""
        return each[np.minimum(self.first, len(each) - 1)]

    def of_last(self, each: Floats) -> Floats:
        """What each last block has."""
        return each[np.maximum(self.last - 1, 0)]


def every_run(blocks: int) -> Ends:
    """All runs: an array over them is of shape (blocks + 1, blocks + 1)."""
    ends = np.arange(blocks + 1)
    return Ends(ends[:, None], ends[None, :])


def heads_and_rests(blocks: int) -> Ends:
    """The runs before each inner cut, then those behind it, then every block alone."""
    cuts, each = np.arange(1, blocks), np.arange(blocks)
    return Ends(np.concatenate([0 * cuts, cuts, each]), np.concatenate([cuts, 0 * cuts + blocks, each + 1]))
