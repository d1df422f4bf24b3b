"""Where stages on shapes may stand: one place for all spots that cost the same, with its weight in bounds and its room.

The weight is the part of the machines' speed that the spot's devices have: n times a device's speed over that of all.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from placer.search.problem import Problem
from placer.strategies.inter_op.equivalence import Runs
from placer.strategies.inter_op.submeshes.submesh import Grounds, Spot


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A spot that stands for those that cost the same; its weight, and the bytes a device of it has."""

    spot: Spot
    weight: float
    room: int


class ShapePlaces:
    """The places of one problem. `views` are the costs of the model under each layout."""

    def __init__(self, problem: Problem, views: dict[int, Runs], grounds: Grounds, spots: Iterable[Spot]) -> None:
        self.problem = problem
        self.views = views
        self.grounds = grounds
        self._spots = spots

    @cached_property
    def every(self) -> tuple[Place, ...]:
        """One place for all spots of a shape that costs cannot tell apart."""
        found: dict[object, Spot] = {}
        for spot in self._spots:
            found.setdefault(self.key(spot), spot)
        return tuple(Place(spot=own, weight=self.weight(own), room=self.room(own)) for own in found.values())

    def key(self, spot: Spot) -> object:
        """Equal for spots that cost the same: shape, kinds of devices, levels that collectives climb."""
        costs = self.views[spot.shape.layout].costs
        leaders = spot.devices[:: spot.shape.degree]
        kinds = tuple(sorted({costs.block_times.device_class[device] for device in spot.devices}))
        return spot.shape, spot.ground, kinds, costs.network.levels(leaders, spot.shape.degree)

    def weight(self, spot: Spot) -> float:
        """The part of all devices' speed that those of a spot have."""
        return len(spot.devices) * self._speeds[spot.ground] / self._speed

    def room(self, spot: Spot) -> int:
        """Bytes of a device beside its overhead; all of a ground have as many."""
        chip = self.problem.cluster.devices[spot.devices[0]]
        return chip.memory_bytes - chip.overhead_bytes

    @cached_property
    def _speeds(self) -> tuple[float, ...]:
        """Rows of the model a second on a device of each ground, or what is in proportion to it."""
        runs, blocks = self.views[min(self.views)], range(len(self.problem.graph.blocks))
        found = []
        for devices in self.grounds.devices:
            seconds = [runs.seconds(b, runs.costs.block_times.device_class[devices[0]], 1) for b in blocks]
            found.append(1 / max(1e-12, sum(each.forward + each.backward for each in seconds)))
        return tuple(found)

    @cached_property
    def _speed(self) -> float:
        return sum(len(own) * speed for own, speed in zip(self.grounds.devices, self._speeds, strict=True))
