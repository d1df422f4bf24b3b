"""The shortest paths through blocks, devices and stages: bounds of every plan of one schedule's terms.

    H[q][i][v] = min over k, submeshes of n <= v devices of  cost(i, k, submesh) + H[q-1][k][v-n]

for q stages from block i on with v devices, by dynamic programming, the costs being those of `StageBounds`.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from placer.io.memo import remembered
from placer.plans.plan import Recompute
from placer.strategies.inter_op.bounds.schedule import NEVER, SLACK, Floats, ScheduleTerms
from placer.strategies.inter_op.submeshes.bounds import StageBounds
from placer.strategies.inter_op.submeshes.submesh import PlacementClass, Submesh


class PathBounds:
    """The shortest paths under one schedule's terms: bounds of what q stages from block i on with v devices add."""

    def __init__(self, bounds: StageBounds, terms: ScheduleTerms) -> None:
        self.bounds = bounds
        self.terms = terms
        self.size = bounds.problem.cluster.size
        self.submeshes = tuple(submesh for submesh in bounds.submeshes if submesh.replicas <= terms.rows)

    @remembered
    def rest(self, stages: int, *, fill: bool) -> Floats:
        """H of so many stages, shape (blocks + 1, devices + 1); with `fill` of the fills alone."""
        found = np.full((self.bounds.blocks + 1, self.size + 1), NEVER)
        if not stages:
            found[-1] = 0.0
            return found
        by_size: dict[int, Floats] = {}
        for submesh in self.submeshes:
            own = self._cost(submesh, self._in_flight(stages), fill=fill)
            by_size[submesh.size] = np.minimum(by_size[submesh.size], own) if submesh.size in by_size else own
        for size, own in by_size.items():
            found = np.minimum(found, self._after(own, size, stages, fill=fill))
        return found

    @remembered
    def under(self, submesh: Submesh, stages: int, *, fill: bool) -> Floats:
        """The same with the first of the stages on a submesh."""
        own = self._cost(submesh, self._in_flight(stages), fill=fill)
        return self._after(own, submesh.size, stages, fill=fill)

    def by_end(self, submesh: Submesh, first: int, devices: int, left: int, *, fill: bool) -> Floats:
        """H of a stage on a submesh that begins at block `first` and of `left` more, by the block it ends before; it
        and they have so many devices."""
        rest = self.rest(left, fill=fill)[:, devices - submesh.size]
        found: Floats = self._cost(submesh, self._in_flight(left + 1), fill=fill)[first] + rest
        return found

    def _after(self, own: Floats, size: int, stages: int, *, fill: bool) -> Floats:
        """The least over where the first stage ends, of its cost and the rest."""
        rest = self.rest(stages - 1, fill=fill)
        found = np.full(rest.shape, NEVER)
        if size <= self.size:
            found[:, size:] = (own[:, :, None] + rest[None, :, : self.size + 1 - size]).min(axis=1)
        return found

    def _in_flight(self, stages: int) -> int:
        """Microbatches in flight at least at a position with so many stages to go, itself included."""
        count = self.terms.count
        return count if self.terms.schedule == "gpipe" else min(count, stages)

    def _cost(self, submesh: Submesh, in_flight: int, *, fill: bool) -> Floats:
        """The least of every block range on a submesh: over its placements, and recompute where it fits."""
        whole, alone = self._costs(submesh, in_flight)
        return alone if fill else whole

    @remembered
    def _costs(self, submesh: Submesh, in_flight: int) -> tuple[Floats, Floats]:
        """The same with weighted steady and tail, and of the fills alone."""
        shape = (self.bounds.blocks + 1, self.bounds.blocks + 1)
        found = np.full(shape, NEVER), np.full(shape, NEVER)
        for place, *seconds in self._stages_on(submesh):
            for again in seconds[0]:
                fits = self.bounds.bytes(place, self.terms, in_flight, again=again) * SLACK <= place.room
                for least, own in zip(found, seconds, strict=True):
                    np.minimum(least, own[again], out=least, where=fits)
        for least in found:
            least[self._empty] = NEVER
        return found

    @cached_property
    def _empty(self) -> NDArray[np.bool_]:
        """The block ranges that end before they begin."""
        return np.tri(self.bounds.blocks + 1, dtype=bool)

    @remembered
    def _stages_on(
        self, submesh: Submesh
    ) -> list[tuple[PlacementClass, dict[Recompute, Floats], dict[Recompute, Floats]]]:
        own = [place for place in self.bounds.places.every if place.submesh == submesh]
        return [(place, *self.bounds.stages(place, self.terms)) for place in own]
