"""Ideals of a folded problem with their sums, and what lies between two of them.

Of many pairs at once: tables whose rows are earlier ideals, columns later ones.

For I' inside I and S = I - I', a hyperedge P is cut by S unless P misses S (|P in I| = |P in I'|) or lies in S
(|P in I| = |P| and |P in I'| = 0). Both are products of a fact about I and a fact about I', so the weights that are
*not* cut are a matrix product over the few hyperedges for which neither side is constant in the table.

One step of a dynamic program over them (`take_step`): one more device takes what lies between two.

    V(I) = min(V(I), min over ideals I' inside I of  combine(V'(I'), load(I - I')))

with V' the values one device before. Throughput combines by the maximum, latency by the sum; which I can follow which
I' at all (`near`) is theirs to say. Ideals that are alike share a table, so few columns hold none of its rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from placer.strategies.engine.arrays import Flags, Floats, Ints
from placer.strategies.placement.contraction import Folded
from placer.strategies.placement.limits import Effort

Words = NDArray[np.uint64]
Counts = NDArray[np.int16]
WORD_BITS = 64
CHUNK = 1024  # ideals summed at a time: their bits stay in the cache
# What sums over ideals may be off by, as a share of the largest: of seconds, of bytes.
ROUNDING, MEMORY_ROUNDING = 1e-9, 1e-12


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
    unsupported: Ints
    inside: Counts
    weights: Floats
    lengths: Counts
    walk: Ints

    @property
    def count(self) -> int:
        """How many ideals there are."""
        return len(self.accelerator)

    def members(self, index: int) -> frozenset[int]:
        """The classes of one ideal."""
        bits = np.unpackbits(self.words[index].view(np.uint8), bitorder="little")
        return frozenset(np.flatnonzero(bits).tolist())


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


def accelerator_loads(ideals: Ideals, memory: float, rows: Ints, columns: Ints) -> Floats:
    """load(I - I'), infinite where I' is not inside I, bytes do not fit or a class is not supported."""
    table = _crossing(ideals, rows, columns)
    table += ideals.accelerator[columns] - ideals.accelerator[rows][:, None]
    if ideals.size[-1] > memory:
        full = memory + MEMORY_ROUNDING * float(ideals.size[-1])
        table[ideals.size[columns] - ideals.size[rows][:, None] > full] = np.inf
    if ideals.unsupported[-1]:
        table[ideals.unsupported[columns] > ideals.unsupported[rows][:, None]] = np.inf
    return _inside_only(ideals, rows, columns, table)


def host_loads(ideals: Ideals, rows: Ints, columns: Ints) -> Floats:
    """host(I - I'), infinite where I' is not inside I."""
    return _inside_only(ideals, rows, columns, ideals.host[columns] - ideals.host[rows][:, None])


def _inside_only(ideals: Ideals, rows: Ints, columns: Ints, table: Floats) -> Floats:
    """The table, infinite where the row is not inside the column."""
    early, late = ideals.words[rows], ideals.words[columns]
    open_bits = np.bitwise_or.reduce(early, axis=0) & ~np.bitwise_and.reduce(late, axis=0)
    words = np.flatnonzero(open_bits)
    if len(words):
        stray = ((early[:, word] & open_bits[word])[:, None] & ~late[:, word] for word in words)
        table[reduce(np.bitwise_or, stray) != 0] = np.inf
    return table


def _crossing(ideals: Ideals, rows: Ints, columns: Ints) -> Floats:
    """The weight of the hyperedges cut by each difference; meaningless where a row is not inside its column."""
    early, late, length = ideals.inside[rows], ideals.inside[columns], ideals.lengths
    before_all = early.min(axis=0) == length  # inside every I': outside every S
    after_all = late.max(axis=0) == 0
    starts_late = (early.max(axis=0) == 0) & ~after_all
    ends_early = (late.min(axis=0) == length) & ~before_all & ~starts_late
    mixed = np.flatnonzero(~(before_all | after_all | starts_late | ends_early))
    by_column = _open(late[:, starts_late], length[starts_late]) @ ideals.weights[starts_late]
    by_row = _open(early[:, ends_early], length[ends_early]) @ ideals.weights[ends_early]
    table = (by_row + ideals.weights[mixed].sum())[:, None] + by_column
    if len(mixed):
        table -= _uncut(early[:, mixed], late[:, mixed], length[mixed], ideals.weights[mixed])
    return np.asarray(table)


def _open(inside: Counts, length: Counts) -> Flags:
    """Hyperedges that an ideal holds in part."""
    return np.asarray((inside > 0) & (inside < length))


def _uncut(early: Counts, late: Counts, length: Counts, weights: Floats) -> Floats:
    """The weight of the hyperedges that miss S or lie in S."""
    missed = [(count, count, np.flatnonzero(length >= count)) for count in range(int(length.max()) + 1)]
    rows, columns = [], []
    for before, until, which in (*missed, (0, length, np.arange(len(length)))):
        of_row, of_column = early[:, which] == before, late[:, which] == until
        useful = np.flatnonzero(of_row.any(axis=0) & of_column.any(axis=0))
        rows.append(of_row[:, useful] * weights[which[useful]])
        columns.append(of_column[:, useful])
    return np.asarray(np.concatenate(rows, axis=1) @ np.concatenate(columns, axis=1).astype(np.float64).T)


def common(ideals: Ideals, rows: Ints, columns: Ints) -> Ints:
    """Those of `columns` that hold everything that all `rows` hold: no other can hold one of them."""
    shared = np.bitwise_and.reduce(ideals.words[rows], axis=0)
    holds = np.ones(len(columns), np.bool_)
    for word in np.flatnonzero(shared):
        holds &= (ideals.words[columns, word] & shared[word]) == shared[word]
    return columns[holds]


ROWS = 32  # alike ideals in one table: fewer share more, and leave fewer columns that hold one of them
# (rows, columns) -> what a device takes for the classes between each pair.
Loads = Callable[[Ints, Ints], Floats]


@dataclass(frozen=True, kw_only=True)
class Step:
    """What one more device of a kind does: its loads, how they combine, the ideals that can follow some rows.

    `columns` is how many ideals a table has at most.
    """

    loads: Loads
    combine: np.ufunc
    near: Callable[[Ints], Ints]
    columns: int


def take_step(step: Step, ideals: Ideals, values: Floats, earlier: Floats, rows: Ints, effort: Effort) -> None:
    """Lowers `values` to what one more device reaches from `rows` of the values before it."""
    for block, columns in _tables(step, ideals, rows):
        effort.spend(len(block) * len(columns))
        candidates = step.combine(step.loads(block, columns), earlier[block][:, None])
        values[columns] = np.minimum(values[columns], candidates.min(axis=0))


def _tables(step: Step, ideals: Ideals, rows: Ints) -> Iterator[tuple[Ints, Ints]]:
    """Those of `rows` that are alike, and the ideals near them that may hold one of them."""
    rows = rows[np.argsort(ideals.walk[rows])]
    for block in (rows[start : start + ROWS] for start in range(0, len(rows), ROWS)):
        columns = common(ideals, block, step.near(block))
        for start in range(0, len(columns), step.columns):
            yield block, columns[start : start + step.columns]


def best_before(step: Step, earlier: Floats, rows: Ints, index: int) -> tuple[float, int]:
    """The least value that one more device reaches for an ideal, and the ideal before it; infinite without rows."""
    if not len(rows):
        return np.inf, index
    values = step.combine(step.loads(rows, np.array([index]))[:, 0], earlier[rows])
    return float(values.min()), int(rows[values.argmin()])
