"""Islands: several populations that evolve apart, and after each epoch send their fastest plans on in a ring.

    begin    the seeds of a walk, which all islands have
    epoch    each island evolves by a random source of its own, within its share of what is left of the budget
    ring     island i + 1 gets the `SENT` fastest plans of the front of island i, when all are done

In: a walk that has seen nothing. Out: an `Archipelago`, and another one after every epoch: what an epoch makes of it
depends on the problem and on it alone, not on which process does so or on what was done before.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from random import Random

from placer.io.bounds import Count
from placer.plans.plan import Layout
from placer.strategies.background import in_shares
from placer.strategies.genetic.island import Island, choices, recalled
from placer.strategies.genetic.population import evolved
from placer.strategies.genetic.selection import front
from placer.strategies.min_cut.search import MinCut
from placer.strategies.moves.walk import EVALUATIONS, Seen, Walk

SENT = 4
# Below so many seconds the part of them that cuts get is shorter than their first answer takes (`auto`).
LEAST_SECONDS = 2.0
# Where nobody asks for a number: so many islands within so many evaluations, one population within fewer. Four end
# nearer to the best than one within 16,000 (0.1% and 1.5% from it in the mean of three problems), as near within 4,000
# (1.5%, 1.4%), farther within 1,000 (7.5%, 5.0%). They are few and noisy (26 November 2026,
# examples/measured/README.md); to repeat: `python -m examples.measured.islands --drawn 5 --budgets 1000 4000 16000`.
ISLANDS, FROM_EVALUATIONS = 4, 16_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Archipelago:
    """The islands after so many epochs and evaluated plans, and the layouts that their plans' stages number."""

    layouts: tuple[Layout, ...]
    islands: tuple[Island, ...]
    evaluations: Count
    epoch: Count = 0


def begun(walk: Walk, kept: Archipelago | None = None) -> Archipelago:
    """What an earlier search has kept; else the islands before their first epoch, each with the seeds."""
    if kept is not None:
        walk.take_up(kept.layouts)
        _recall_fastest(walk, kept)
        return kept
    seeds = choices(_seeds(walk))
    many = (walk.problem.budget or 0) >= FROM_EVALUATIONS
    count = walk.problem.islands or (ISLANDS if many else 1)
    return Archipelago(
        layouts=walk.around.layouts, islands=(Island(people=seeds),) * count, evaluations=walk.evaluations
    )


def _seeds(walk: Walk) -> list[Seen]:
    """Those of a walk; where seconds end the search, what cuts find in a part of them too, which know nothing else."""
    found = walk.seeds()
    hurried = walk.problem.until is None or walk.problem.until - time.perf_counter() < LEAST_SECONDS
    return found if hurried else sorted([*found, *walk.asked(MinCut(), found)])


def epochs(walk: Walk, before: Archipelago) -> Iterator[Archipelago]:
    """The islands after each epoch, until the budget is used up or all of them rest."""
    now = before
    while not walk.problem.spent and _left(walk, now) != 0 and not all(island.rests for island in now.islands):
        now = _epoch(walk, now)
        _recall_fastest(walk, now)
        yield now


def gathered(walk: Walk, now: Archipelago) -> list[Seen]:
    """The front of all islands; `walk` then knows their plans, those last that lack least, and what they took."""
    found: list[Seen] = []
    for island in now.islands:
        found += recalled(walk, (*reversed(island.people), *island.front))
    walk.evaluations = now.evaluations
    return front(found)


def _recall_fastest(walk: Walk, now: Archipelago) -> None:
    """Let `walk`, and who listens to it, know the fastest plan of every island."""
    for island in now.islands:
        recalled(walk, island.front[:1])


def _epoch(walk: Walk, before: Archipelago) -> Archipelago:
    """Every island after its epoch, and what the one before it sends."""
    shares = _shares(_left(walk, before), before.islands)

    def evolve(number: int) -> tuple[Island, int]:
        seed = f"{walk.problem.seed}, island {number}, epoch {before.epoch}"
        own = walk.anew(Random(seed), shares[number])
        return evolved(own, before.islands[number], first=before.epoch == 0), own.evaluations

    made = in_shares(range(len(before.islands)), evolve)
    islands = [island for island, _ in made]
    sent = [island.front[:SENT] if len(islands) > 1 else () for island in islands]
    return Archipelago(
        layouts=before.layouts,
        islands=tuple(replace(island, arrived=sent[number - 1]) for number, island in enumerate(islands)),
        evaluations=before.evaluations + sum(evaluations for _, evaluations in made),
        epoch=before.epoch + 1,
    )


def _left(walk: Walk, now: Archipelago) -> int | None:
    """Plans that may still be evaluated; None where seconds alone end the search."""
    most = walk.problem.budget if walk.limited else EVALUATIONS
    return None if most is None else max(0, most - now.evaluations)


def _shares(left: int | None, islands: Sequence[Island]) -> list[int | None]:
    """How many of them each island may evaluate in an epoch: those awake equally many, the first of them one more."""
    if left is None:
        return [None] * len(islands)
    awake = [number for number, island in enumerate(islands) if not island.rests]
    each, more = divmod(left, max(1, len(awake)))
    given = {number: each + (place < more) for place, number in enumerate(awake)}
    return [given.get(number, 0) for number in range(len(islands))]
