"""Where to cut a row of ops into stages, given what each range takes as each stage: least maximum, then least sum."""

from __future__ import annotations

import numpy as np

from placer.strategies.engine.arrays import Flags, Floats, Ints


def least_maximum(tables: tuple[Floats, ...]) -> float:
    """The least largest stage; `tables[i][a, b]` is stage i of ops a to b - 1."""
    reached = tables[0][0]
    for table in tables[1:]:
        reached = np.maximum(reached[:, None], table).min(axis=0)
    return float(reached[-1])


def possible_starts(tables: tuple[Floats, ...], limit: float) -> tuple[Flags, ...]:
    """Per stage the ops it can begin with so that no stage exceeds `limit`."""
    before = [np.where(np.arange(len(tables[0])) == 0, 0.0, np.inf)]
    for table in tables[:-1]:
        before.append(np.maximum(before[-1][:, None], table).min(axis=0))
    after = [tables[-1][:, -1]]
    for table in reversed(tables[:-1]):
        after.append(np.maximum(table, after[-1][None, :]).min(axis=1))
    return tuple(np.maximum(b, a) <= limit for b, a in zip(before, reversed(after), strict=True))


def least_sum(tables: tuple[Floats, ...], limit: float = np.inf) -> tuple[float, tuple[int, ...]]:
    """The least sum of stages none of which exceeds `limit`, and the cuts; inf and no cuts where there is none."""
    reached = np.where(tables[0][0] <= limit, tables[0][0], np.inf)
    back = list[Ints]()
    for table in tables[1:]:
        total = reached[:, None] + np.where(table <= limit, table, np.inf)
        back.append(total.argmin(axis=0))
        reached = total.min(axis=0)
    if not np.isfinite(reached[-1]):
        return np.inf, ()
    cuts = [len(reached) - 1]
    for parents in reversed(back):
        cuts.append(int(parents[cuts[-1]]))
    return float(reached[-1]), tuple(reversed(cuts))


def best_cuts(tables: tuple[Floats, ...], count: int) -> tuple[float, tuple[int, ...]]:
    """The cuts of the least (count - 1) max + sum found: each maximum from the least up to where it cannot pay."""
    limit = least_maximum(tables)
    if not np.isfinite(limit):
        return np.inf, ()
    fewest, _ = least_sum(tables)
    values = np.unique(np.concatenate([table[np.isfinite(table)] for table in tables]))
    best: tuple[float, tuple[int, ...]] = (np.inf, ())
    while (count - 1) * limit + fewest < best[0]:
        total, cuts = least_sum(tables, limit)
        step = (count - 1) * max(t[a, b] for t, a, b in zip(tables, (0, *cuts), cuts, strict=False)) + total
        best = min(best, (step, cuts))
        above = values[np.searchsorted(values, limit, side="right") :]
        if not len(above):
            break
        limit = float(above[0])
    return best
