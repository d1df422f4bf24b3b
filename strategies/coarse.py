"""All outlines of a problem by a first lower bound, ascending: hundreds of thousands, by arrays over positions.

In: `Bounds`. Out: pairs (seconds, outline), the bound of `Bounds.step` (for several positions, on the fastest kind of
device of the whole cluster), outlines of equal bounds in the order of the enumeration.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from placer.plans import ScheduleName
from placer.strategies.floors import Bounds, Rhythm
from placer.strategies.space import (
    Outline,
    microbatch_rows,
    position_counts,
    replica_counts,
    require_pins,
    schedules,
    shardings,
)


@dataclass(frozen=True, slots=True)
class _Family:
    """Outlines that differ in positions and sharding only, and their bounds."""

    replicas: int
    rows: int
    pace: Rhythm
    positions: NDArray[np.int64]
    seconds: NDArray[np.float64]


def by_bound(bounds: Bounds) -> Iterator[tuple[float, Outline]]:
    """Every outline the pins allow with its bound, ascending. Raises UsageError for pins that contradict."""
    require_pins(bounds.problem)
    families = list(_families(bounds))
    if not families:
        return
    seconds = np.concatenate([family.seconds for family in families])
    starts = np.cumsum([0, *(len(family.seconds) for family in families)])
    for index in np.argsort(seconds, kind="stable"):
        number = int(np.searchsorted(starts, index, side="right")) - 1
        family = families[number]
        for outline in _outlines(bounds, family, int(family.positions[index - starts[number]])):
            yield float(seconds[index]), outline


def _families(bounds: Bounds) -> Iterator[_Family]:
    """Bounds of all outlines, family by family."""
    problem = bounds.problem
    many = [p for p in position_counts(problem) if p > 1]
    allowed = {p: frozenset(replica_counts(problem, p)) for p in (*position_counts(problem)[:1], *many)}
    paces = {p: schedules(problem, p) for p in allowed}
    for replicas in sorted({d for found in allowed.values() for d in found}):
        for rows in microbatch_rows(problem, replicas):
            if replicas in allowed.get(1, ()):
                yield from _alone(bounds, replicas, rows, paces[1])
            own = [p for p in many if replicas in allowed[p]]
            for choice in dict.fromkeys(choice for p in own for choice in paces[p]):
                pace = Rhythm(schedule=choice[0], virtual=choice[1], count=-(-problem.rows // rows))
                positions = np.array([p for p in own if choice in paces[p]], dtype=np.int64)
                yield _Family(replicas, rows, pace, positions, bounds.steps(positions, replicas, rows, pace))


def _alone(
    bounds: Bounds, replicas: int, rows: int, choices: tuple[tuple[ScheduleName, int], ...]
) -> Iterator[_Family]:
    """Families of one position."""
    for schedule, virtual in choices:
        pace = Rhythm(schedule=schedule, virtual=virtual, count=-(-bounds.problem.rows // rows))
        made = _outline(bounds, replicas, rows, pace, 1)
        yield _Family(replicas, rows, pace, np.array([1]), np.array([bounds.step(made)]))


def _outlines(bounds: Bounds, family: _Family, positions: int) -> Iterator[Outline]:
    """The outlines of a family with so many positions, one for each allowed sharding."""
    made = _outline(bounds, family.replicas, family.rows, family.pace, positions)
    for sharding in shardings(bounds.problem.pins, family.replicas, family.pace.schedule):
        yield made if sharding == "none" else made.sharded(sharding)


def _outline(bounds: Bounds, replicas: int, rows: int, pace: Rhythm, positions: int) -> Outline:
    return Outline(
        positions=positions, replicas=replicas, virtual=pace.virtual, rows=bounds.problem.rows, microbatch=rows,
        schedule=pace.schedule, sharding="none",
    )  # fmt: skip
