"""`local`: the honest simple rival of every other search, and what polishes its result.

    descend from the best baseline
    again and again: a few moves wherever they lead (a kick), descend; go on from the better one of the two
    after `TURNS` kicks without a better plan: begin anew from another baseline or a plan drawn at random

In: a Problem. Out: the best plan seen, without a bound: it proves nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from placer.errors import Infeasible
from placer.search.problem import Problem, Solution
from placer.strategies.local.descent import descended
from placer.strategies.moves.walk import Seen, Walk
from placer.strategies.space.parts import best_by_speed

# Kicks without a better plan after which a search begins anew, and beginnings without one after which it ends where no
# budget is given.
TURNS = 6
STALE = 6
MOST_KICKS = 4


class LocalSearch:
    """Iterated local search; deterministic by the problem's seed."""

    name = "local"
    exact = False

    def solve(self, problem: Problem) -> Solution | Infeasible:
        """The best plan found within the budget; what binds where none fits. Raises UsageError for contradicting
        pins."""
        return best_by_speed(problem, self._solved)

    def _solved(self, problem: Problem) -> Solution | Infeasible:
        walk = Walk(problem)
        return best_after(walk, self.name, lambda: search_from(walk, walk.seeds()))


def best_after(walk: Walk, name: str, search: Callable[[], None]) -> Solution | Infeasible:
    """The best plan that a walk knows after a search, or what binds; after an interrupt of it the best so far. Raises
    KeyboardInterrupt where that came before a legal plan."""
    interrupted = False
    try:
        search()
    except KeyboardInterrupt:
        interrupted = bool(walk.best)
        if not interrupted:
            raise
    found = walk.result(name)
    return replace(found, ended="interrupt") if interrupted and isinstance(found, Solution) else found


def search_from(walk: Walk, seeds: Sequence[Seen]) -> None:
    """Search from one seed after the other, then from plans drawn at random."""
    stale, begun = 0, 0
    while not walk.over and (walk.limited or stale < STALE):
        before = walk.best[0] if walk.best else None
        start = seeds[begun] if begun < len(seeds) else walk.begun()
        if start is not None:
            _searched(walk, start)
        begun += 1
        stale = stale + 1 if walk.best and walk.best[0] is before else 0


def _searched(walk: Walk, start: Seen) -> Seen:
    """The best plan that kicks and descents lead to."""
    found, failed = descended(walk, start), 0
    while failed < TURNS and not walk.over:
        made = descended(walk, _kicked(walk, found))
        if made.better(found):
            found, failed = made, 0
        else:
            failed += 1
    return found


def _kicked(walk: Walk, seen: Seen) -> Seen:
    """Where a few moves lead."""
    for _ in range(walk.rng.randint(1, MOST_KICKS)):
        made = walk.neighbour(seen)
        seen = seen if made is None else made
    return seen
