"""`local`: one order, moved again and again; what is no worse is kept, after `STALE` moves in vain another begins."""

from __future__ import annotations

import random
from collections.abc import Callable

from placer.strategies.placement.contraction import Folded
from placer.strategies.placement.orders.cuts import Cut, Cuts
from placer.strategies.placement.orders.orders import Orders

STALE = 150
MOST_MOVES = 3


def local(cuts: Cuts, folded: Folded, rng: random.Random, over: Callable[[], bool]) -> Cut:
    """The best cut of all orders seen."""
    orders = Orders(folded, rng)
    begun = sorted((cuts.best(order) for order in orders.first()), key=lambda cut: cut.value)
    best, turn = begun[0], 0
    while not over():
        now, stale = begun[turn % len(begun)] if turn else best, 0
        turn += 1
        while stale < STALE and not over():
            order = now.order
            for _ in range(rng.randint(1, MOST_MOVES)):
                order = orders.moved(order)
            stale += 1
            found = cuts.best(order)
            if found.value <= now.value:
                stale = 0 if found.value < now.value else stale
                now = found
        best = min(best, now, key=lambda cut: cut.value)
    return best
