"""Tables of best splits by the states of borders, in which only those are looked for that the smallest sum takes.

In: of each block class what is known of its best split for the states of its groups: the split, or seconds below which
none is (`OpenSplit`). Out: the splits of the smallest sum over all blocks. Where that takes an open entry, the entry is
worked out further and the sum is made anew: what is left open is proven to be no better.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from placer.plans.plan import Split
from placer.strategies.intra_op.block_borders import Borders, Factor, best_states
from placer.strategies.intra_op.block_ilp import BestSplit, OpenSplit

# By the states of a class's groups; absent where there is no split.
Table: TypeAlias = dict[tuple[str, ...], BestSplit | OpenSplit]


def least_splits(
    borders: Borders, counts: Mapping[int, int], tables: Mapping[int, Table], states: Sequence[tuple[str, ...]]
) -> dict[int, Split] | None:
    """Of each class the split in the layout of the fewest seconds, `counts` blocks of each; None where there is none.

    Entries of `tables` that it takes are found in these afterwards.
    """
    while True:
        factors = [_factor(borders.of_class[kind], count, tables[kind]) for kind, count in counts.items()]
        best = best_states(factors, states)
        if best is None:
            return None
        keys = {kind: tuple(best[group] for group in borders.of_class[kind]) for kind in counts}
        found = {kind: entry.split for kind, key in keys.items() if isinstance(entry := tables[kind][key], BestSplit)}
        if len(found) == len(counts):
            return found
        for kind in counts.keys() - found.keys():
            _look_nearer(tables[kind], keys[kind])


def _factor(groups: tuple[int, ...], count: int, table: Table) -> Factor:
    return Factor(groups=groups, seconds={key: count * entry.seconds for key, entry in table.items()})


def _look_nearer(table: Table, key: tuple[str, ...]) -> None:
    entry = table.pop(key)
    nearer = entry.nearer() if isinstance(entry, OpenSplit) else entry
    if nearer is not None:
        table[key] = nearer
