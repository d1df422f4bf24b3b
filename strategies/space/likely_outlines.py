"""The outlines of searches that look at a few: positions that are alike, microbatches in powers of two."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from placer.plans.plan import Layout, ScheduleName
from placer.search.problem import Problem
from placer.strategies.space.device_orders import device_orders
from placer.strategies.space.outline import Outline, microbatch_rows, position_counts, replica_counts, shardings

# More microbatches than this per position change little.
MOST_MICROBATCHES = 8


def likely_outlines(
    problem: Problem, layouts: Sequence[Layout | None], schedule: ScheduleName, positions: range
) -> list[tuple[Outline, Layout | None]]:
    """Outlines under each of the layouts, in the first allowed way to keep the state: those of most devices first, of
    them those of fewest microbatches, then of positions."""
    found = [
        (outline, layout)
        for layout in layouts
        for count in position_counts(problem, 1 if layout is None else layout.degree)
        if count in positions
        for outline in _divided(problem, count, 1 if layout is None else layout.degree, schedule)
    ]
    return sorted(found, key=lambda entry: (-len(entry[0].used), entry[0].count, entry[0].positions, entry[0]))


def _divided(problem: Problem, positions: int, degree: int, schedule: ScheduleName) -> Iterator[Outline]:
    pinned = problem.pins.microbatches is not None
    for replicas in replica_counts(problem, positions, degree):
        state = shardings(problem, replicas, schedule)[:1]
        for rows in microbatch_rows(problem, replicas):
            count = -(-problem.rows // rows)
            if (count & (count - 1) and not pinned) or count > MOST_MICROBATCHES * positions:
                continue
            for order in device_orders(problem.cluster, positions, replicas, degree) if state else ():
                yield Outline(
                    positions=positions, replicas=replicas, virtual=1, rows=problem.rows, microbatch=rows,
                    schedule=schedule, sharding=state[0], layout=-1, degree=degree, device_order=order,
                )  # fmt: skip
