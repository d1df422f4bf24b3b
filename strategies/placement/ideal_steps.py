"""One step of a dynamic program over ideals of a folded problem: one more device takes what lies between two.

    V(I) = min(V(I), min over ideals I' inside I of  combine(V'(I'), load(I - I')))

with V' the values one device before. Throughput combines by the maximum, latency by the sum; which I can follow which
I' at all (`near`) is theirs to say. Ideals that are alike share a table, so few columns hold none of its rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from placer.strategies.engine.arrays import Floats, Ints
from placer.strategies.placement.ideals import Ideals, common
from placer.strategies.placement.limits import Effort

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
