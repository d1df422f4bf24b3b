"""`genetic`: orders that are crossed, moved and selected by DEAP (tournaments of three, the best always survive).

Needs DEAP (`pip install "placer-planner[genetic]"`).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from deap import tools

from placer.strategies.placement.contraction import Folded
from placer.strategies.placement.orders.cuts import Cut, Cuts
from placer.strategies.placement.orders.orders import Orders

POPULATION, SURVIVORS = 24, 6
MOST_MOVES = 4
# Of the moves that make the first generation of few orders many.
FIRST_MOVES = 12


class _Individual:
    """A cut as DEAP's tournaments want it: the larger fitness wins."""

    def __init__(self, cut: Cut) -> None:
        self.cut, self.fitness = cut, -cut.value


def genetic(cuts: Cuts, folded: Folded, rng: random.Random, over: Callable[[], bool]) -> Cut:
    """The best cut of all generations."""
    orders, drawn = Orders(folded, rng), random.getstate()
    people = [_Individual(cuts.best(order)) for order in orders.first()]
    try:
        # DEAP draws from the module's own source.
        random.seed(rng.getrandbits(64))
        while len(people) < POPULATION and not over():
            people.append(
                _Individual(cuts.best(_moved(orders, rng, people[len(people) % 4 % len(people)], FIRST_MOVES)))
            )
        while not over():
            best = tools.selBest(people, SURVIVORS)
            people = [*best, *(_child(cuts, orders, rng, people) for _ in range(POPULATION - SURVIVORS) if not over())]
    finally:
        random.setstate(drawn)
    return min((person.cut for person in people), key=lambda cut: cut.value)


def _child(cuts: Cuts, orders: Orders, rng: random.Random, people: Sequence[_Individual]) -> _Individual:
    one, other = tools.selTournament(people, 2, tournsize=3)
    crossed = _Individual(Cut(value=0.0, order=orders.crossed(one.cut.order, other.cut.order), devices=()))
    return _Individual(cuts.best(_moved(orders, rng, crossed if rng.random() < 0.5 else one, MOST_MOVES)))


def _moved(orders: Orders, rng: random.Random, person: _Individual, most: int) -> tuple[int, ...]:
    order = person.cut.order
    for _ in range(rng.randint(1, most)):
        order = orders.moved(order)
    return order
