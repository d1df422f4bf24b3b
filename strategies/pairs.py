"""What lies between two ideals, for many pairs at once: tables whose rows are earlier ideals, columns later ones.

For I' inside I and S = I - I', a hyperedge P is cut by S unless P misses S (|P in I| = |P in I'|) or lies in S
(|P in I| = |P| and |P in I'| = 0). Both are products of a fact about I and a fact about I', so the weights that are
*not* cut are a matrix product over the few hyperedges for which neither side is constant in the table.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from placer.strategies.ideals import Counts, Floats, Ideals

Indices = NDArray[np.int64]
Flags = NDArray[np.bool_]


def crossing(ideals: Ideals, rows: Indices, columns: Indices) -> Floats:
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


def outside(ideals: Ideals, rows: Indices, columns: Indices) -> Flags | None:
    """Where the row is not inside the column; None where every row is inside every column."""
    early, late = ideals.words[rows], ideals.words[columns]
    open_bits = np.bitwise_or.reduce(early, axis=0) & ~np.bitwise_and.reduce(late, axis=0)
    found: NDArray[np.uint64] | None = None
    for word in np.flatnonzero(open_bits):
        stray = (early[:, word] & open_bits[word])[:, None] & ~late[:, word]
        found = stray if found is None else found | stray
    return None if found is None else found != 0


def common(ideals: Ideals, rows: Indices, columns: Indices) -> Indices:
    """Those of `columns` that hold everything that all `rows` hold: no other can hold one of them."""
    shared = np.bitwise_and.reduce(ideals.words[rows], axis=0)
    holds = np.ones(len(columns), np.bool_)
    for word in np.flatnonzero(shared):
        holds &= (ideals.words[columns, word] & shared[word]) == shared[word]
    return columns[holds]
