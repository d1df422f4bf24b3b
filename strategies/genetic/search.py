"""`genetic`: a population of plans that are crossed, moved, repaired and selected by NSGA-II.

    begin     the baselines' plans, plans drawn at random from the outlines
    turn      as many children as there are plans: two parents (the better of two drawn ones each, by rank or by seconds
              alone), crossed or not, then moved up to three times; of both generations the survivors
              the fastest plan goes on by itself for some moves, as `local` does

In: a Problem. Out: the fastest plan seen, without a bound, and as alternatives the front: the plans that take less
memory or fewer devices than any faster one. Needs DEAP (`pip install "placer-planner[genetic]"`).
"""

from __future__ import annotations

from collections.abc import Sequence

from placer.errors import Infeasible, require_extra
from placer.plans.plan import Alternative
from placer.search.problem import Problem, Solution
from placer.strategies.genetic.crossover import crossed
from placer.strategies.local.descent import descended
from placer.strategies.moves.table import drawn, kinds, moved
from placer.strategies.moves.walk import Seen, Walk

POPULATION = 40
# How many children have two parents, and how many parents are chosen by seconds alone.
CROSSED, BY_SECONDS = 0.6, 0.5
# Moves in a row without a better plan after which the fastest rests until the next turn.
POLISH = 60
# Turns without a faster plan after which a search ends where no budget is given.
STALE = 25
MOST_MOVES = 3
MOST_ALTERNATIVES = 12
GIB = 2**30


class Genetic:
    """NSGA-II over plans; deterministic by the problem's seed."""

    name = "genetic"
    exact = False

    def solve(self, problem: Problem) -> Solution | Infeasible:
        """The fastest plan found within the budget; what binds where none fits. Raises UsageError for contradicting
        pins, and where DEAP is missing."""
        require_extra("genetic", "deap")
        walk = Walk(problem)
        beaten_by_none = _evolved(walk)
        best = walk.best[0] if walk.best else None
        told = () if best is None else tuple(_alternative(seen, best) for seen in beaten_by_none if seen is not best)
        return walk.result(self.name, told[:MOST_ALTERNATIVES])


def _evolved(walk: Walk) -> list[Seen]:
    """The front after the last turn."""
    from placer.strategies.genetic.selection import front, survivors  # DEAP may be missing

    people = _beginning(walk)
    best, stale, kept = _fastest(walk), 0, front(people)
    while people and not walk.over and (walk.limited or stale < STALE):
        people = survivors([*people, *_children(walk, people)], POPULATION)
        fastest = _fastest(walk)
        if fastest is not None:
            people = [*people[: POPULATION - 1], descended(walk, fastest, POLISH)]
        kept = front([*kept, *people])
        stale = stale + 1 if _fastest(walk) is best else 0
        best = _fastest(walk)
    return kept


def _beginning(walk: Walk) -> list[Seen]:
    """The seeds, and as many drawn plans as make a population; some may be found nowhere."""
    people = walk.seeds()
    for _ in range(POPULATION):
        if len(people) >= POPULATION or walk.over:
            break
        made = walk.begun()
        people += [made] if made is not None and all(made is not seen for seen in people) else []
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
    for _ in range(rng.randint(1, MOST_MOVES)):
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


def _alternative(seen: Seen, best: Seen) -> Alternative:
    """What a plan of the front has for being slower."""
    gains = []
    if seen.devices < best.devices:
        gains.append(f"{seen.devices} devices instead of {best.devices}")
    if seen.score.peak < best.score.peak:
        gains.append(f"{seen.score.peak / GIB:.3g} GiB on its fullest device instead of {best.score.peak / GIB:.3g}")
    return Alternative(
        name=f"front: {seen.devices} devices, {seen.score.peak / GIB:.3g} GiB",
        step_seconds=seen.seconds,
        reason=f"{seen.seconds / best.seconds - 1:.1%} slower, with {' and '.join(gains) or 'no less of anything'}",
    )
