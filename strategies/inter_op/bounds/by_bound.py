"""All outlines of a problem by a first lower bound, ascending: hundreds of thousands, by arrays over positions.

In: the `OutlineBounds` of the problem under no layout and under each of its layouts, by number. Out: pairs (seconds,
outline), the bound of `OutlineBounds.steps` (on the fastest kind of device of the whole cluster), outlines of equal
bounds in the order of the enumeration.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import takewhile

import numpy as np
from numpy.typing import NDArray

from placer.search.problem import Problem
from placer.strategies.background import MANY_DEVICES, from_both_ends
from placer.strategies.inter_op.bounds.outline import OutlineBounds
from placer.strategies.inter_op.bounds.schedule import ScheduleTerms
from placer.strategies.space.outline import (
    Outline,
    microbatch_rows,
    position_counts,
    replica_counts,
    schedules,
    shardings,
)

# Interleaved stages of blocks that do not repeat are searched up to so many.
FEW_STAGES = 12


@dataclass(frozen=True, slots=True)
class _Family:
    """Outlines that differ in positions and sharding only, and their bounds."""

    layout: int
    degree: int
    replicas: int
    terms: ScheduleTerms
    positions: NDArray[np.int64]
    seconds: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class OutlinesByBound:
    """How many outlines there are (shardings not counted), and all of them with their bounds, ascending."""

    count: int
    outlines: Iterator[tuple[float, Outline]]


def by_bound(all_bounds: Mapping[int, OutlineBounds]) -> OutlinesByBound:
    """Every outline the pins allow with its bound; when the problem's seconds are over, those of what was reached."""
    problem = next(iter(all_bounds.values())).problem

    def reached(entry: tuple[int, OutlineBounds]) -> list[_Family]:
        return list(takewhile(lambda _: not problem.spent, _families(*entry)))

    many = problem.cluster.size >= MANY_DEVICES
    each = from_both_ends(tuple(all_bounds.items()), reached, apart=many, over=lambda: problem.spent)
    families = [family for own in each for family in own]
    return OutlinesByBound(sum(len(family.seconds) for family in families), _ascending(problem, families))


def _ascending(problem: Problem, families: list[_Family]) -> Iterator[tuple[float, Outline]]:
    if not families:
        return
    seconds = np.concatenate([family.seconds for family in families])
    starts = np.cumsum([0, *(len(family.seconds) for family in families)])
    for index in np.argsort(seconds, kind="stable"):
        number = int(np.searchsorted(starts, index, side="right")) - 1
        family = families[number]
        for outline in _outlines(problem, family, int(family.positions[index - starts[number]])):
            yield float(seconds[index]), outline


def _families(layout: int, bounds: OutlineBounds) -> Iterator[_Family]:
    """Bounds of all outlines under one layout, family by family."""
    problem, degree = bounds.problem, bounds.ranges.costs.degree
    allowed = {p: frozenset(replica_counts(problem, p, degree)) for p in position_counts(problem, degree)}
    choices = {p: schedules(problem, p) for p in allowed}

    @cache
    def turns(positions: int, virtual: int) -> bool:
        """Whether several stages a position are searched: few of them, or stages of blocks that repeat."""
        stages = positions * virtual
        blocks = len(problem.graph.blocks)
        sizes = range(blocks // stages, -(-blocks // stages) + 1)
        return virtual == 1 or stages <= FEW_STAGES or bounds.ranges.alike(sizes)

    for replicas in sorted({d for found in allowed.values() for d in found}):
        for rows in microbatch_rows(problem, replicas, bounds.ranges.costs.apart):
            own = [p for p in allowed if replicas in allowed[p]]
            for schedule, virtual in dict.fromkeys(choice for p in own for choice in choices[p]):
                having = [p for p in own if (schedule, virtual) in choices[p] and turns(p, virtual)]
                if having:
                    terms = ScheduleTerms(rows=rows, schedule=schedule, turns=virtual, batch=problem.rows)
                    positions = np.array(having, dtype=np.int64)
                    yield _Family(layout, degree, replicas, terms, positions, bounds.steps(positions, replicas, terms))


def _outlines(problem: Problem, family: _Family, positions: int) -> Iterator[Outline]:
    """The outlines of a family with so many positions, one for each allowed sharding."""
    terms = family.terms
    made = Outline(
        positions=positions, replicas=family.replicas, virtual=terms.turns, rows=problem.rows,
        microbatch=terms.rows, schedule=terms.schedule, sharding="none", layout=family.layout, degree=family.degree,
    )  # fmt: skip
    for sharding in shardings(problem, family.replicas, terms.schedule):
        yield made if sharding == "none" else made.sharded(sharding)
