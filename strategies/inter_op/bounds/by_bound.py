"""All outlines of a problem by a first lower bound, ascending: hundreds of thousands, by arrays over positions.

In: the `Bounds` of the problem under no layout and under each of its layouts, by number. Out: pairs (seconds, outline),
the bound of `Bounds.step` (for several positions, on the fastest kind of device of the whole cluster), outlines of
equal bounds in the order of the enumeration.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from itertools import takewhile

import numpy as np
from numpy.typing import NDArray

from placer.plans.plan import ScheduleName
from placer.search.problem import Problem
from placer.strategies.background import MANY_DEVICES, from_both_ends
from placer.strategies.inter_op.bounds.outline import Bounds
from placer.strategies.inter_op.bounds.schedule import Rhythm
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
    rows: int
    pace: Rhythm
    positions: NDArray[np.int64]
    seconds: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Coarse:
    """How many outlines there are (shardings not counted), and all of them with their bounds, ascending."""

    count: int
    outlines: Iterator[tuple[float, Outline]]


def by_bound(all_bounds: Mapping[int, Bounds]) -> Coarse:
    """Every outline the pins allow with its bound; when the problem's seconds are over, those of what was reached."""
    problem = next(iter(all_bounds.values())).problem

    def reached(entry: tuple[int, Bounds]) -> list[_Family]:
        return list(takewhile(lambda _: not problem.spent, _families(*entry)))

    many = problem.cluster.size >= MANY_DEVICES
    each = from_both_ends(tuple(all_bounds.items()), reached, apart=many, over=lambda: problem.spent)
    families = [family for own in each for family in own]
    return Coarse(sum(len(family.seconds) for family in families), _ascending(problem, families))


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


def _families(layout: int, bounds: Bounds) -> Iterator[_Family]:
    """Bounds of all outlines under one layout, family by family."""
    problem, degree = bounds.problem, bounds.runs.costs.degree
    counts = position_counts(problem, degree)
    many = [p for p in counts if p > 1]
    allowed = {p: frozenset(replica_counts(problem, p, degree)) for p in counts}
    paces = {p: schedules(problem, p) for p in allowed}

    @cache
    def turns(positions: int, virtual: int) -> bool:
        """Whether several stages a position are searched: few of them, or stages of blocks that repeat."""
        stages = positions * virtual
        blocks = len(problem.graph.blocks)
        sizes = range(blocks // stages, -(-blocks // stages) + 1)
        return virtual == 1 or stages <= FEW_STAGES or bounds.runs.alike(sizes)

    for replicas in sorted({d for found in allowed.values() for d in found}):
        for rows in microbatch_rows(problem, replicas, bounds.runs.costs.apart):
            if replicas in allowed.get(1, ()):
                yield from _alone(layout, bounds, replicas, rows, paces[1])
            own = [p for p in many if replicas in allowed[p]]
            for choice in dict.fromkeys(choice for p in own for choice in paces[p]):
                pace = Rhythm(schedule=choice[0], virtual=choice[1], count=-(-problem.rows // rows))
                positions = np.array([p for p in own if choice in paces[p] and turns(p, choice[1])], dtype=np.int64)
                if not len(positions):
                    continue
                seconds = bounds.steps(positions, replicas, rows, pace)
                yield _Family(layout, degree, replicas, rows, pace, positions, seconds)


def _alone(
    layout: int, bounds: Bounds, replicas: int, rows: int, choices: tuple[tuple[ScheduleName, int], ...]
) -> Iterator[_Family]:
    """Families of one position."""
    for schedule, virtual in choices:
        pace = Rhythm(schedule=schedule, virtual=virtual, count=-(-bounds.problem.rows // rows))
        family = _Family(layout, bounds.runs.costs.degree, replicas, rows, pace, np.array([1]), np.zeros(1))
        yield replace(family, seconds=np.array([bounds.step(_outline(bounds.problem, family, 1))]))


def _outlines(problem: Problem, family: _Family, positions: int) -> Iterator[Outline]:
    """The outlines of a family with so many positions, one for each allowed sharding."""
    made = _outline(problem, family, positions)
    for sharding in shardings(problem.pins, family.replicas, family.pace.schedule):
        yield made if sharding == "none" else made.sharded(sharding)


def _outline(problem: Problem, family: _Family, positions: int) -> Outline:
    return Outline(
        positions=positions, replicas=family.replicas, virtual=family.pace.virtual, rows=problem.rows,
        microbatch=family.rows, schedule=family.pace.schedule, sharding="none", layout=family.layout,
        degree=family.degree,
    )  # fmt: skip
