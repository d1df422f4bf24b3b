"""The shortest ways through blocks, devices and stages: bounds of every plan of one pace, by dynamic programming.

    H[q][i][v] = min over k, shapes of n <= v devices of  cost(i, k, shape) + H[q-1][k][v-n]

for q stages from block i on with v devices, the costs being those of `shape_floors`.
"""

from __future__ import annotations

import numpy as np

from placer.strategies.inter_op.bounds.schedule import SLACK
from placer.strategies.inter_op.submeshes.bounds import Floors, Pace
from placer.strategies.inter_op.submeshes.places import Place
from placer.strategies.inter_op.submeshes.run_arrays import NEVER, Floats
from placer.strategies.inter_op.submeshes.submesh import Shape


class Ways:
    """The shortest ways under one pace: bounds of what q stages from block i on with v devices add."""

    def __init__(self, floors: Floors, pace: Pace) -> None:
        self.floors = floors
        self.pace = pace
        self.size = floors.problem.cluster.size
        self._made: dict[tuple[bool, int], Floats] = {}
        self._stages: dict[Shape, list[tuple[Place, dict[bool, Floats], dict[bool, Floats]]]] = {}
        self._costs: dict[tuple[Shape, bool, int], Floats] = {}
        self._under: dict[tuple[Shape, bool, int], Floats] = {}
        self.shapes = tuple(shape for shape in floors.shapes if shape.replicas <= pace.rows)

    def rest(self, stages: int, *, fill: bool = False) -> Floats:
        """H[stages], shape (blocks + 1, devices + 1)."""
        key = fill, stages
        if key not in self._made:
            if not stages:
                found = np.full((self.floors.blocks + 1, self.size + 1), NEVER)
                found[-1] = 0.0
            else:
                found = self._step(stages, fill=fill)
            self._made[key] = found
        return self._made[key]

    def under(self, shape: Shape, stages: int, *, fill: bool = False) -> Floats:
        """The same with the first of the stages on a shape."""
        key = shape, fill, stages
        if key not in self._under:
            self._under[key] = self._after(self._cost(shape, stages, fill=fill), shape.size, stages, fill=fill)
        return self._under[key]

    def _step(self, stages: int, *, fill: bool) -> Floats:
        by_size: dict[int, Floats] = {}
        for shape in self.shapes:
            own = self._cost(shape, stages, fill=fill)
            by_size[shape.size] = np.minimum(by_size[shape.size], own) if shape.size in by_size else own
        found = np.full((self.floors.blocks + 1, self.size + 1), NEVER)
        for size, own in by_size.items():
            found = np.minimum(found, self._after(own, size, stages, fill=fill))
        return found

    def _after(self, own: Floats, size: int, stages: int, *, fill: bool) -> Floats:
        """The least over where the first stage ends, of its cost and the rest."""
        rest = self.rest(stages - 1, fill=fill)
        found = np.full(rest.shape, NEVER)
        if size <= self.size:
            found[:, size:] = (own[:, :, None] + rest[None, :, : self.size + 1 - size]).min(axis=1)
        return found

    def _key(self, stages: int) -> int:
        """Microbatches alive at least at a position with so many stages to go, itself included."""
        count = self.pace.count(self.floors.problem.rows)
        return count if self.pace.schedule == "gpipe" else min(count, stages)

    def _cost(self, shape: Shape, stages: int, *, fill: bool) -> Floats:
        """The least of every run on a shape: over grounds, and recompute where it fits."""
        alive = self._key(stages)
        key = shape, fill, alive
        if key not in self._costs:
            found = np.full((self.floors.blocks + 1, self.floors.blocks + 1), NEVER)
            for place, whole, alone in self._of(shape):
                for again, seconds in (alone if fill else whole).items():
                    held = self.floors.bytes(place, self.pace, alive, again=again)
                    found = np.minimum(found, np.where(held * SLACK <= place.room, seconds, NEVER))
            found[np.tril_indices(self.floors.blocks + 1)] = NEVER
            self._costs[key] = found
        return self._costs[key]

    def _of(self, shape: Shape) -> list[tuple[Place, dict[bool, Floats], dict[bool, Floats]]]:
        if shape not in self._stages:
            own = [place for place in self.floors.places.every if place.spot.shape == shape]
            self._stages[shape] = [(place, *self.floors.stages(place, self.pace)) for place in own]
        return self._stages[shape]
