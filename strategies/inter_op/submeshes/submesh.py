"""Shapes: what each position may look like where positions differ, and the devices it then stands on.

A shape is a number of replicas and a layout (with its degree t). A ground is a class of like devices in like nodes
(`group_classes`); a position lies on one ground, on the first replicas (`topology.replica_groups`) of devices behind
those of the position before it, or on the first ones of a ground that no position before it uses. Which grounds may
follow each other is what `class_orders` says of classes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, product
from typing import NamedTuple

from placer.cluster.cluster import Cluster
from placer.cluster.topology import replica_groups
from placer.plans.plan import Layout
from placer.search.problem import Problem
from placer.spmd.cross_mesh import Mesh
from placer.strategies.space.device_orders import class_orders, group_classes
from placer.strategies.space.outline import whole_batch

# Positions have any shapes on up to so many devices, of models of up to so many blocks; of more see `lines`.
MOST_DEVICES, MOST_BLOCKS = 16, 64


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Shape:
    """`replicas` of `degree` devices each, cut by the layout of that number (-1: none)."""

    replicas: int
    layout: int = -1
    degree: int = 1

    @property
    def size(self) -> int:
        """Number of devices."""
        return self.replicas * self.degree


class Spot(NamedTuple):
    """A shape on its devices."""

    shape: Shape
    ground: int
    devices: tuple[int, ...]

    def mesh(self, layouts: tuple[Layout, ...]) -> Mesh:
        """As a mesh."""
        layout = None if self.shape.layout < 0 else layouts[self.shape.layout]
        return Mesh(devices=self.devices, degree=self.shape.degree, layout=layout)


def shapes(problem: Problem, layouts: tuple[Layout, ...], numbers: tuple[int, ...]) -> tuple[Shape, ...]:
    """Every shape the pins allow under the layouts of these numbers; none where positions are searched alike only."""
    if problem.cluster.size > MOST_DEVICES or len(problem.graph.blocks) > MOST_BLOCKS:
        return ()
    most, found = 1 if whole_batch(problem) else problem.rows, []
    for number in numbers:
        layout = None if number < 0 else layouts[number]
        if layout is not None and layout.apart > 1:  # such stages must be alike
            continue
        degree = 1 if layout is None else layout.degree
        pinned, least = problem.pins.data, 1 if problem.pins.shard in (None, "none") else 2  # state is divided by two
        counts = range(least, min(most, (problem.cluster.size - 1) // degree) + 1) if pinned is None else (pinned,)
        found += [Shape(replicas=d, layout=number, degree=degree) for d in counts if d <= most]
    grounds = Grounds(problem.cluster)
    return tuple(shape for shape in found if shape.size <= grounds.largest(shape.degree))


class Grounds:
    """The devices of each ground, and what may stand where."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.devices = tuple(tuple(chain.from_iterable(units)) for units in group_classes(cluster, 1))
        self._units: dict[tuple[int, int], tuple[tuple[int, ...], ...]] = {}
        self._spots: dict[tuple[Shape, int, int], Spot | None] = {}

    def largest(self, degree: int) -> int:
        """Devices of the ground that has most in replicas of `degree`."""
        return max(degree * len(self.units(ground, degree)) for ground in range(len(self.devices)))

    def units(self, ground: int, degree: int) -> tuple[tuple[int, ...], ...]:
        """The replicas of `degree` devices that lie on a ground."""
        key = ground, degree
        if key not in self._units:
            own = set(self.devices[ground])
            self._units[key] = tuple(u for u in replica_groups(self.cluster, degree) if own.issuperset(u))
        return self._units[key]

    def spot(self, shape: Shape, ground: int, after: int = -1) -> Spot | None:
        """The first replicas on a ground whose devices come behind device `after`; None where there are too few."""
        key = shape, ground, after
        if key not in self._spots:
            units = [unit for unit in self.units(ground, shape.degree) if min(unit) > after][: shape.replicas]
            enough = len(units) == shape.replicas
            self._spots[key] = Spot(shape, ground, tuple(chain.from_iterable(units))) if enough else None
        return self._spots[key]

    def spots(self, own: tuple[Shape, ...]) -> Iterator[Spot]:
        """Every spot of these shapes."""
        for shape, (ground, devices) in product(own, enumerate(self.devices)):
            found = (self.spot(shape, ground, after) for after in (-1, *devices))
            yield from (spot for spot in found if spot is not None)

    def left(self, spot: Spot, visited: tuple[int, ...]) -> int:
        """Devices that a spot and what comes after it can have; `visited` are the grounds up to its own."""
        own = sum(device >= spot.devices[0] for device in self.devices[spot.ground])
        return own + sum(len(devices) for ground, devices in enumerate(self.devices) if ground not in visited)

    def after(self, visited: tuple[int, ...]) -> tuple[int, ...]:
        """The grounds that may come after these."""
        count = len(visited)
        return tuple(sorted({order[count] for order in self._orders if order[:count] == visited and order[count:]}))

    @cached_property
    def _orders(self) -> tuple[tuple[int, ...], ...]:
        """The grounds in all orders that are searched."""
        number = {units[0]: ground for ground, units in enumerate(group_classes(self.cluster, 1))}
        return tuple(tuple(number[units[0]] for units in order) for order in class_orders(self.cluster, 1))
