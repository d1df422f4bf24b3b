"""One choice per item within a capacity, at the least cost: the multiple-choice knapsack, exact or within a bound.

    minimise  sum_i cost[i, x_i]     subject to  sum_i size[i, x_i] <= capacity,   x_i one of the choices of item i

In: two arrays, items x choices (a choice that is not there costs inf). Out: a KnapsackChoice with a proven lower bound.
Start from the cheapest choice of every item. The steps of an item walk down the lower convex hull of its (size, cost)
points; sorted by cost per size saved they give the optimum of the relaxation, and rounded up a first answer. Then the
items one by one, those nearest to the step that was cut first: the partial sums (size, cost) that no other dominates,
without those whose relaxed rest exceeds the best answer (Nemhauser and Ullmann 1969 with Dantzig's bound).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from placer.strategies.engine.arrays import Floats, Ints
from placer.strategies.engine.fronts import undominated

# Sums of hundreds of terms differ in the last bits with their order.
ROUNDING = 5e-13
# Partial sums kept at once; beyond them the bound is what is proved and the answer what was found.
KEPT = 200_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """Ways down from the cheapest choices, best first: `saved` size for `extra` cost, item `item` to choice `to`."""

    cheapest: Ints
    item: Ints
    to: Ints
    saved: Floats
    extra: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class KnapsackChoice:
    """The choice of each item and its cost; `bound` is at most the least cost. `cost` is inf where nothing fits."""

    chosen: Ints
    cost: float
    bound: float


def steps_down(cost: Floats, size: Floats) -> Steps:
    """The hull of each item, all sorted by cost per size saved; ties keep the order within an item."""
    rows = np.arange(len(cost))
    current = np.lexsort((size, cost), axis=1)[:, 0] if cost.shape[1] > 1 else np.zeros(len(cost), dtype=np.int64)
    cheapest = current.copy()
    found: list[tuple[Ints, Ints, Floats, Floats]] = []
    for _ in range(cost.shape[1] - 1):
        saved = size[rows, current][:, None] - size
        extra = cost - cost[rows, current][:, None]
        with np.errstate(divide="ignore", invalid="ignore"):
            rate = np.where((saved > 0) & np.isfinite(extra), extra / saved, np.inf)
        to = np.lexsort((-saved, rate), axis=1)[:, 0]
        moves = np.flatnonzero(np.isfinite(rate[rows, to]))
        if not len(moves):
            break
        found.append((moves, to[moves], saved[moves, to[moves]], extra[moves, to[moves]]))
        current = current.copy()
        current[moves] = to[moves]
    if not found:
        none, nothing = np.zeros(0, dtype=np.int64), np.zeros(0)
        return Steps(cheapest=cheapest, item=none, to=none, saved=nothing, extra=nothing)
    item, to, saved, extra = (np.concatenate(parts) for parts in zip(*found, strict=True))
    order = np.argsort(extra / saved, kind="stable")
    return Steps(cheapest=cheapest, item=item[order], to=to[order], saved=saved[order], extra=extra[order])


def cheapest_choice(cost: Floats, size: Floats, capacity: float, *, kept: int = KEPT) -> KnapsackChoice:
    """The least cost within `capacity`; proved where `bound` equals `cost` but for rounding."""
    rows = np.arange(len(cost))
    steps = steps_down(cost, size)
    need = float(size[rows, steps.cheapest].sum()) - capacity * (1 + ROUNDING)
    base = float(cost[rows, steps.cheapest].sum())
    if need <= 0:
        return KnapsackChoice(chosen=steps.cheapest, cost=base, bound=base)
    saved, extra = np.cumsum(steps.saved), np.cumsum(steps.extra)
    cut = int(np.searchsorted(saved, need))
    if cut == len(saved):
        return KnapsackChoice(chosen=steps.cheapest, cost=np.inf, bound=np.inf)
    chosen = steps.cheapest.copy()
    for item, to in zip(steps.item[: cut + 1], steps.to[: cut + 1], strict=True):
        chosen[item] = to
    chosen = _undone(cost, size, chosen, steps.cheapest, capacity * (1 + ROUNDING))
    answer = float(cost[rows, chosen].sum())
    bound = base + float(extra[cut]) - float(saved[cut] - need) * float(steps.extra[cut] / steps.saved[cut])
    if answer <= bound * (1 + ROUNDING):
        return KnapsackChoice(chosen=chosen, cost=answer, bound=min(bound, answer))
    return _exact(
        cost, size, capacity * (1 + ROUNDING), KnapsackChoice(chosen=chosen, cost=answer, bound=bound), steps, cut, kept
    )


def _undone(cost: Floats, size: Floats, chosen: Ints, cheapest: Ints, capacity: float) -> Ints:
    """`chosen` with the steps taken back that turn out not to be needed, the dearest first."""
    rows = np.arange(len(cost))
    free = capacity - float(size[rows, chosen].sum())
    gain = cost[rows, chosen] - cost[rows, cheapest]
    for item in np.argsort(-gain, kind="stable"):
        wanted = float(size[item, cheapest[item]] - size[item, chosen[item]])
        if gain[item] > 0 and wanted <= free:
            chosen[item] = cheapest[item]
            free -= wanted
    return chosen


def _exact(
    cost: Floats, size: Floats, capacity: float, best: KnapsackChoice, steps: Steps, cut: int, kept: int
) -> KnapsackChoice:
    """`best` or what is cheaper, by partial sums; the bound of `best` where more than `kept` sums would be needed."""
    order = _nearest_first(len(cost), steps, cut)
    least = best.cost * (1 - ROUNDING)
    costs, sizes, levels = np.zeros(1), np.zeros(1), list[tuple[Ints, Ints]]()
    for at, item in enumerate(order):
        there = np.flatnonzero(np.isfinite(cost[item]))
        parent, by = np.repeat(np.arange(len(costs)), len(there)), np.tile(there, len(costs))
        costs, sizes = costs[parent] + cost[item, by], sizes[parent] + size[item, by]
        useful = _can_win(costs, sizes, capacity, least, cost, size, steps, order[at + 1 :])
        useful = useful[undominated(sizes[useful], costs[useful])]
        if len(useful) == 0:
            return KnapsackChoice(chosen=best.chosen, cost=best.cost, bound=best.cost)
        if len(useful) > kept:
            return best
        costs, sizes = costs[useful], sizes[useful]
        levels.append((parent[useful], by[useful]))
    at = int(np.argmin(costs))
    chosen = np.zeros(len(cost), dtype=np.int64)
    reached = float(costs[at])
    for item, (before, taken) in zip(order[::-1], levels[::-1], strict=True):
        chosen[item] = taken[at]
        at = int(before[at])
    return KnapsackChoice(chosen=chosen, cost=reached, bound=reached)


def _nearest_first(items: int, steps: Steps, cut: int) -> Ints:
    """The items, those whose first step lies nearest to the cut one first; those without a step last."""
    distance = np.full(items, len(steps.item) + 1, dtype=np.int64)
    np.minimum.at(distance, steps.item, np.abs(np.arange(len(steps.item)) - cut))
    return np.argsort(distance, kind="stable")


def _can_win(
    costs: Floats, sizes: Floats, capacity: float, least: float, cost: Floats, size: Floats, steps: Steps, rest: Ints
) -> Ints:
    """The partial sums whose relaxed rest fits and stays below `least`."""
    inside = np.isin(steps.item, rest)
    saved = np.concatenate(([0.0], np.cumsum(steps.saved[inside])))
    extra = np.concatenate(([0.0], np.cumsum(steps.extra[inside])))
    need = sizes + size[rest, steps.cheapest[rest]].sum() - capacity
    bound = costs + cost[rest, steps.cheapest[rest]].sum() + np.interp(need, saved, extra)
    return np.flatnonzero((need <= saved[-1]) & (bound < least))
