"""The shortest paths through blocks, devices and stages: bounds of every plan of one schedule's terms.

    H[q][i][v] = min over k, submeshes of n <= v devices of  cost(i, k, submesh) + H[q-1][k][v-n]

for q stages from block i on with v devices, by dynamic programming, the costs being those of `StageBounds`.
"""

from __future__ import annotations

import numpy as np

from placer.io.memo import Memo
from placer.strategies.inter_op.bounds.schedule import NEVER, SLACK, Floats, ScheduleTerms
from placer.strategies.inter_op.submeshes.bounds import StageBounds
from placer.strategies.inter_op.submeshes.submesh import PlacementClass, Submesh


class PathBounds:
    """The shortest paths under one schedule's terms: bounds of what q stages from block i on with v devices add.

    `rest[stages, fill]` is H, shape (blocks + 1, devices + 1), with `fill` of the fills alone;
    `under[submesh, stages, fill]` the same with the first of the stages on a submesh.
    """

    def __init__(self, bounds: StageBounds, terms: ScheduleTerms) -> None:
        self.bounds = bounds
        self.terms = terms
        self.size = bounds.problem.cluster.size
        self.submeshes = tuple(submesh for submesh in bounds.submeshes if submesh.replicas <= terms.rows)
        self.rest = Memo(self._rest)
        self.under = Memo(self._under)
        self._stages = Memo(self._stages_on)
        self._costs = Memo(self._cost)

    def _rest(self, key: tuple[int, bool]) -> Floats:
        stages, fill = key
        found = np.full((self.bounds.blocks + 1, self.size + 1), NEVER)
        if not stages:
            found[-1] = 0.0
            return found
        by_size: dict[int, Floats] = {}
        for submesh in self.submeshes:
            own = self._costs[submesh, self._in_flight(stages), fill]
            by_size[submesh.size] = np.minimum(by_size[submesh.size], own) if submesh.size in by_size else own
        for size, own in by_size.items():
            found = np.minimum(found, self._after(own, size, stages, fill=fill))
        return found

    def _under(self, key: tuple[Submesh, int, bool]) -> Floats:
        submesh, stages, fill = key
        return self._after(self._costs[submesh, self._in_flight(stages), fill], submesh.size, stages, fill=fill)

    def _after(self, own: Floats, size: int, stages: int, *, fill: bool) -> Floats:
        """The least over where the first stage ends, of its cost and the rest."""
        rest = self.rest[stages - 1, fill]
        found = np.full(rest.shape, NEVER)
        if size <= self.size:
            found[:, size:] = (own[:, :, None] + rest[None, :, : self.size + 1 - size]).min(axis=1)
        return found

    def _in_flight(self, stages: int) -> int:
        """Microbatches in flight at least at a position with so many stages to go, itself included."""
        count = self.terms.count
        return count if self.terms.schedule == "gpipe" else min(count, stages)

    def _cost(self, key: tuple[Submesh, int, bool]) -> Floats:
        """The least of every block range on a submesh: over its placements, and recompute where it fits."""
        submesh, in_flight, fill = key
        found = np.full((self.bounds.blocks + 1, self.bounds.blocks + 1), NEVER)
        for place, whole, alone in self._stages[submesh]:
            for again, seconds in (alone if fill else whole).items():
                held = self.bounds.bytes(place, self.terms, in_flight, again=again)
                found = np.minimum(found, np.where(held * SLACK <= place.room, seconds, NEVER))
        found[np.tril_indices(self.bounds.blocks + 1)] = NEVER
        return found

    def _stages_on(self, submesh: Submesh) -> list[tuple[PlacementClass, dict[bool, Floats], dict[bool, Floats]]]:
        own = [place for place in self.bounds.places.every if place.submesh == submesh]
        return [(place, *self.bounds.stages(place, self.terms)) for place in own]
