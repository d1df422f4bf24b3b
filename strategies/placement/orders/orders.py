"""Orders of the classes of a folded problem: to begin with, moved, crossed; each class behind those it needs."""

from __future__ import annotations

import random

from placer.strategies.engine.ideals import members, turned
from placer.strategies.placement.contraction import Folded, topological_orders
from placer.strategies.placement.orders.cuts import Order

# How far a class is moved at most, as a share of the order.
FAR = 0.25


class Orders:
    """Moves and crossings, drawn by `rng`."""

    def __init__(self, folded: Folded, rng: random.Random) -> None:
        self._folded, self._rng = folded, rng
        self._needs = [frozenset(members(bits)) for bits in folded.needs]
        self._needed = [frozenset(members(bits)) for bits in turned(folded.needs)]

    def first(self) -> tuple[Order, ...]:
        """Some that differ much."""
        return tuple(dict.fromkeys(topological_orders(self._folded)))

    def moved(self, order: Order) -> Order:
        """With one class elsewhere, as far as those it needs, or those that need it, let it."""
        place, way = self._rng.randrange(len(order)), self._rng.choice((-1, 1))
        blocked = (self._needs if way < 0 else self._needed)[order[place]]
        end, most = place, max(1, round(FAR * len(order)))
        while abs(end - place) < most and 0 <= end + way < len(order) and order[end + way] not in blocked:
            end += way
        if end == place:
            return order
        rest = list(order[:place] + order[place + 1 :])
        rest.insert(self._rng.randint(min(place + way, end), max(place + way, end)), order[place])
        return tuple(rest)

    def crossed(self, one: Order, other: Order) -> Order:
        """The begin of one, and the rest as the other has it: what begins an order is a down-closed set."""
        begin = one[: self._rng.randint(1, len(one))]
        held = frozenset(begin)
        return (*begin, *(index for index in other if index not in held))
