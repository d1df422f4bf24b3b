"""One population: an epoch of turns, from what an island was to what it is then.

    begin     what the search begins with, and plans drawn at random from the outlines
    turn      as many children as there are plans: two parents (the better of two drawn ones each, by rank or by seconds
              alone), crossed or not, then moved up to three times; of both generations the survivors
              the fastest plan goes on by itself for some moves, as `local` does

An epoch ends with the first turn after which it has evaluated `EPOCH` plans. It depends on the island and on the walk's
random source and limit, and on nothing that the process did before. Needs DEAP.
"""

from __future__ import annotations

from collections.abc import Sequence

from placer.strategies.genetic.crossover import crossed
from placer.strategies.genetic.island import Island, choices, recalled
from placer.strategies.genetic.selection import front, survivors
from placer.strategies.local.descent import descended
from placer.strategies.moves.table import drawn, kinds, moved
from placer.strategies.moves.walk import Seen, Walk

POPULATION = 40
EPOCH = 1_000
# How many children have two parents, and how many parents are chosen by seconds alone.
CROSSED, BY_SECONDS = 0.6, 0.5
# Moves in a row without a better plan after which the fastest rests until the next turn.
POLISH = 60
# Turns without a faster plan after which a population rests where no budget is given.
STALE = 25
MOST_MOVES = 3
# Moves more of a child that is known: a population that is nearly one plan has hardly another within few.
MOST_MORE = 6


def evolved(walk: Walk, island: Island, *, first: bool) -> Island:
    """The island after an epoch; the `first` one draws what the population lacks."""
    people, kept = recalled(walk, island.people), recalled(walk, island.front)
    before, stale = _fastest(walk), island.stale
    arrived = recalled(walk, island.arrived)
    if _fastest(walk) is not before:
        stale = 0
    elif island.rests:
        return island
    if arrived:
        people = survivors([*people, *arrived], POPULATION)
    if first:
        people = _begun(walk, people)
    best, kept = _fastest(walk), front([*kept, *people])
    while people and not walk.over and walk.evaluations < EPOCH and not _rests(walk, stale):
        people = survivors([*people, *_children(walk, people)], POPULATION)
        fastest = _fastest(walk)
        if fastest is not None:
            people = [*people[: POPULATION - 1], descended(walk, fastest, POLISH)]
        kept = front([*kept, *people])
        stale = stale + 1 if _fastest(walk) is best else 0
        best = _fastest(walk)
    rests = not people or _rests(walk, stale)
    return Island(people=choices(people), front=choices(kept), stale=stale, rests=rests)


def _rests(walk: Walk, stale: int) -> bool:
    """Whether there is nothing new, or without a budget nothing faster for long."""
    return walk.barren or (not walk.limited and stale >= STALE)


def _begun(walk: Walk, people: list[Seen]) -> list[Seen]:
    """As many drawn plans more as make a population; some may be found nowhere."""
    for _ in range(POPULATION):
        if len(people) >= POPULATION or walk.over:
            break
        made = walk.begun()
        people = [*people, *([made] if made is not None and all(made is not seen for seen in people) else [])]
    return people


def _children(walk: Walk, people: Sequence[Seen]) -> list[Seen]:
    """New plans of parents among `people`, which stand in the order of their rank."""
    known, found = {id(seen) for seen in people}, list[Seen]()
    for _ in range(POPULATION):
        made = _child(walk, people)
        if made is not None and id(made) not in known:
            known.add(id(made))
            found.append(made)
    return found


def _child(walk: Walk, people: Sequence[Seen]) -> Seen | None:
    rng, around = walk.rng, walk.around
    plan = _parent(walk, people).plan
    if rng.random() < CROSSED:
        plan = crossed(around, plan, _parent(walk, people).plan, rng) or plan
    few = rng.randint(1, MOST_MOVES)
    for number in range(few + MOST_MORE):
        if number >= few and not walk.knows(plan):
            break
        plan = moved(around, plan, drawn(kinds(around, plan), rng, {}), rng) or plan
    return walk.lightened(walk.tried(plan))


def _parent(walk: Walk, people: Sequence[Seen]) -> Seen:
    """The better of two, by rank or by seconds."""
    one, other = walk.rng.randrange(len(people)), walk.rng.randrange(len(people))
    if walk.rng.random() < BY_SECONDS:
        return min(people[one], people[other])
    return people[min(one, other)]


def _fastest(walk: Walk) -> Seen | None:
    return walk.best[0] if walk.best else None
