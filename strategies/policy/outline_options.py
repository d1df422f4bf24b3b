"""The options of each field of an outline, none of which leaves a later field without one.

Fields are chosen in the order of `FIELDS`. Until a field's turn it has what `_preferred` would take, so that an option
is always a whole outline, which can be described and priced in part.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from placer.costs.costs import Costs
from placer.io.memo import remembered
from placer.plans.plan import BY_FSDP, Layout, Sharding
from placer.search.problem import Problem
from placer.strategies.intra_op.layouts import pinned_degree
from placer.strategies.policy.stage_ends import stage_ends
from placer.strategies.space.outline import (
    Outline,
    microbatch_rows,
    position_counts,
    replica_counts,
    schedules,
    shardings,
)
from placer.strategies.space.row_shares import with_devices

T = TypeVar("T")

FIELDS = ("layout", "positions", "replicas", "rows", "schedule", "devices", "sharding")
# Options of one decision; more are thinned out.
MOST_OPTIONS = 16
# Microbatches per position at which the bubble is small: Huang et al., GPipe, 2019, section 2.3 ("M >= 4 x K").
MICROBATCHES_PER_POSITION = 4


@dataclass(frozen=True, eq=False)
class OutlineOptions:
    """The outlines of one problem, field by field; remembers them."""

    problem: Problem
    layouts: tuple[Layout, ...]

    @property
    def blank(self) -> Outline:
        """Before the first field."""
        return Outline(
            positions=1, replicas=1, virtual=1, rows=self.problem.rows, microbatch=self.problem.rows, schedule="1f1b",
            sharding="none",
        )  # fmt: skip

    @remembered
    def of(self, field: int, outline: Outline) -> tuple[Outline, ...]:
        """The options of a field, the ones before it being as in `outline`; empty where pins leave none."""
        return tuple(self._completed(option, field + 1) for option in thinned(self._values(field, outline)))

    def _completed(self, outline: Outline, field: int) -> Outline:
        for later in range(field, len(FIELDS)):
            outline = _preferred(FIELDS[later], self._values(later, outline))
        return outline

    @remembered
    def _values(self, field: int, outline: Outline) -> tuple[Outline, ...]:
        return tuple(getattr(self, f"_{FIELDS[field]}")(outline))

    def _layout(self, outline: Outline) -> Iterator[Outline]:
        """None and each layout; with an axis pinned only layouts."""
        whole = (-1,) if pinned_degree(self.problem.pins) == 1 else ()
        for layout in (*whole, *range(len(self.layouts))):
            degree = self.layouts[layout].degree if layout >= 0 else 1
            option = replace(outline, layout=layout, degree=degree)
            if self._values(FIELDS.index("positions"), option):
                yield option

    def _positions(self, outline: Outline) -> Iterator[Outline]:
        for positions in position_counts(self.problem, outline.degree):
            option = replace(outline, positions=positions)
            if self._values(FIELDS.index("replicas"), option):
                yield option

    def _replicas(self, outline: Outline) -> Iterator[Outline]:
        for replicas in replica_counts(self.problem, outline.positions, outline.degree):
            option = replace(outline, replicas=replicas, device_order=(), shares=())
            rows = next(self._rows(option), None)
            if rows is not None and any(self._schedule(option)) and any(self._devices(rows)):
                yield option

    def _rows(self, outline: Outline) -> Iterator[Outline]:
        apart = self.layouts[outline.layout].apart if outline.layout >= 0 else 1
        for rows in microbatch_rows(self.problem, outline.replicas, apart):
            yield replace(outline, microbatch=rows, device_order=(), shares=())

    def _schedule(self, outline: Outline) -> Iterator[Outline]:
        for schedule, virtual in schedules(self.problem, outline.positions):
            option = replace(outline, schedule=schedule, virtual=virtual)
            if self._states(option) and self._has_cuts(outline.positions, virtual):
                yield option

    @remembered
    def _has_cuts(self, positions: int, virtual: int) -> bool:
        """Whether pinned blocks leave cuts for so many stages."""
        return bool(stage_ends(self.problem, replace(self.blank, positions=positions, virtual=virtual)))

    def _devices(self, outline: Outline) -> Iterator[Outline]:
        """Every order and shares of devices on which the state can be kept as pinned."""
        pinned = self.problem.pins.shard or "none"
        plain = replace(outline, device_order=(), shares=(), sharding="none" if pinned == "none" else "optimizer")
        made = with_devices(self.problem, plain, self._costs(outline))
        return (replace(option, sharding=outline.sharding) for option in made)

    def _sharding(self, outline: Outline) -> Iterator[Outline]:
        unlike = any(self.problem.cluster.unlike(outline.devices(p)) for p in range(outline.positions))
        for sharding in self._states(outline):
            if sharding == "none" or not unlike:
                yield outline.sharded(sharding)

    def _states(self, outline: Outline) -> tuple[Sharding, ...]:
        """Ways to keep the state; FSDP2 cannot hold a weight that two stages of one position share."""
        tied = outline.virtual > 1 and bool(self.problem.graph.tied)
        free = shardings(self.problem, outline.replicas, outline.schedule)
        return tuple(kept for kept in free if not (tied and kept in BY_FSDP))

    def _costs(self, outline: Outline) -> Costs:
        return self.problem.costs.under(self.layouts[outline.layout] if outline.layout >= 0 else None)


def _preferred(field: str, options: Sequence[Outline]) -> Outline:
    """What stands for a field until it is chosen: most replicas, enough microbatches, else the first."""
    if field == "replicas":
        return options[-1]
    if field == "rows":
        least = [MICROBATCHES_PER_POSITION * o.positions if o.positions > 1 else 1 for o in options]
        enough = [o for o, count in zip(options, least, strict=True) if o.count >= count]
        return enough[-1] if enough else options[0]
    return options[0]


def thinned(values: Sequence[T], most: int = MOST_OPTIONS) -> tuple[T, ...]:
    """At most so many of `values`: the first, the last, and between them ever fewer as places double."""
    if len(values) <= most:
        return tuple(values)
    last = len(values) - 1
    places = {round(math.exp(step / (most - 1) * math.log(last + 1))) - 1 for step in range(most)}
    rest = (place for place in range(last) if place not in places)
    while len(places) < most:
        places.add(next(rest))
    return tuple(values[place] for place in sorted(places))
