"""Ideals: the down-closed sets of classes of a folded problem, as bitsets.

In topological numbering every ideal but the empty one has exactly one parent, itself without its largest number, so a
walk down that tree meets each ideal once:  children(I) = { I + v : v > max(I), before(v) inside I }.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from placer.strategies.folding import Folded

Floats = NDArray[np.float64]
Words = NDArray[np.uint64]
Counts = NDArray[np.int16]
WORD_BITS = 64
CHUNK = 1024  # ideals summed at a time: their bits stay in the cache


@dataclass(frozen=True, kw_only=True)
class Ideals:
    """Ideals sorted by accelerator time, with what a pair of them needs to be priced.

    `words` (ideals, words) the bitsets; `accelerator`, `host`, `size` (ideals) sums over the ideal, `unsupported` how
    many of its classes accelerators refuse; `inside` (ideals, hyperedges) how many classes of each hyperedge it holds;
    `walk` (ideals) its place in the tree walk: neighbours there are alike.
    """

    words: Words
    accelerator: Floats
    host: Floats
    size: Floats
    unsupported: NDArray[np.int64]
    inside: Counts
    weights: Floats
    lengths: Counts
    walk: NDArray[np.int64]

    @property
    def count(self) -> int:
        """How many ideals there are."""
        return len(self.accelerator)

    def members(self, index: int) -> frozenset[int]:
        """The classes of one ideal."""
        bits = np.unpackbits(self.words[index].view(np.uint8), bitorder="little")
        return frozenset(np.flatnonzero(bits).tolist())


def every_ideal(folded: Folded, limit: int) -> tuple[int, ...] | None:
    """All ideals as integers whose bit v is class v, in walk order; None where there are more than `limit`."""
    before = [sum(1 << other for other in earlier) for earlier in folded.before]
    after = [sorted(later) for later in folded.after]
    found = [0]
    stack = [(0, [v for v, mask in enumerate(before) if mask == 0])]
    while stack:
        ideal, addable = stack.pop()
        for position, v in enumerate(addable):
            larger = ideal | 1 << v
            enabled = [w for w in after[v] if before[w] & ~larger == 0]
            found.append(larger)
            stack.append((larger, sorted(addable[position + 1 :] + enabled)))
        if len(found) > limit:
            return None
    return tuple(found)


def prefixes(order: Iterable[int]) -> tuple[int, ...]:
    """The ideals along one topological order."""
    found = [0]
    for v in order:
        found.append(found[-1] | 1 << v)
    return tuple(found)


def ideals_of(folded: Folded, bitsets: Iterable[int]) -> Ideals:
    """`bitsets` (any ideals of `folded`, the empty and the full one among them) with their sums."""
    masks = tuple(bitsets)
    words = _words(masks, folded.count)
    # What accelerators refuse has no accelerator time: no set that holds it is priced as one.
    seconds = np.where(folded.supported, folded.accelerator, 0.0)
    costs = np.column_stack([np.ones(folded.count), seconds, folded.host, folded.size, ~np.array(folded.supported)])
    touches = np.zeros((folded.count, len(folded.hyperedges)), np.float32)
    for column, (members, _) in enumerate(folded.hyperedges):
        touches[list(members), column] = 1
    sums, inside = _summed(words, costs, touches)
    order = np.lexsort((sums[:, 0], sums[:, 1]))
    return Ideals(
        words=words[order], accelerator=sums[order, 1], host=sums[order, 2], size=sums[order, 3],
        unsupported=np.rint(sums[order, 4]).astype(np.int64), inside=inside[order],
        weights=np.array([weight for _, weight in folded.hyperedges]),
        lengths=touches.sum(axis=0).astype(np.int16), walk=order,
    )  # fmt: skip


def _summed(words: Words, costs: Floats, touches: NDArray[np.float32]) -> tuple[Floats, Counts]:
    """For each ideal the sums of its classes' costs, and how many classes of each hyperedge it holds; by chunks."""
    sums = np.empty((len(words), costs.shape[1]))
    inside = np.empty((len(words), touches.shape[1]), np.int16)
    for start in range(0, len(words), CHUNK):
        part = slice(start, start + CHUNK)
        member = np.unpackbits(words[part].view(np.uint8), axis=1, bitorder="little")[:, : len(costs)]
        single = member.astype(np.float32)
        inside[part] = single @ touches
        sums[part] = single.astype(np.float64) @ costs
    return sums, inside


def _words(masks: tuple[int, ...], bits: int) -> Words:
    width = -(-bits // WORD_BITS) * WORD_BITS // 8
    raw = b"".join(mask.to_bytes(width, "little") for mask in masks)
    return np.frombuffer(raw, np.uint64).reshape(len(masks), -1)
