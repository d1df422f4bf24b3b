"""Submeshes: what each position may look like where positions differ, and the devices it is then placed on.

A submesh is a number of replicas and a layout (with its degree t). A device class is like devices in like nodes
(`group_classes`); a position lies in one class, on the first replicas (`topology.replica_groups`) of devices
behind those of the position before it, or on the first ones of a class that no position before it uses. Which classes
may follow each other is what `class_orders` says. Placements that cost the same are one `PlacementClass`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, product
from typing import NamedTuple

from placer.cluster.cluster import Cluster
from placer.cluster.topology import replica_groups
from placer.io.memo import remembered
from placer.plans.plan import Layout
from placer.search.problem import Problem
from placer.spmd.cross_mesh import Mesh
from placer.strategies.inter_op.equivalence import RangeClasses
from placer.strategies.space.device_orders import class_orders, group_classes
from placer.strategies.space.outline import whole_batch

# Positions have any submeshes on up to so many devices, of models of up to so many blocks; on more these of two shapes
# (`two_shapes`); on still more, and for more blocks, all positions are alike.
MOST_DEVICES, MOST_BLOCKS = 16, 64
MOST_TWO_SHAPE_DEVICES, MOST_TWO_SHAPE_BLOCKS = 256, 160


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Submesh:
    """`replicas` of `degree` devices each, cut by the layout of that number (-1: none)."""

    replicas: int
    layout: int = -1
    degree: int = 1

    @property
    def size(self) -> int:
        """Number of devices."""
        return self.replicas * self.degree


class PlacedSubmesh(NamedTuple):
    """A submesh on its devices."""

    submesh: Submesh
    device_class: int
    devices: tuple[int, ...]

    @property
    def leaders(self) -> tuple[int, ...]:
        """The first device of each replica."""
        return self.devices[:: self.submesh.degree]

    def mesh(self, layouts: tuple[Layout, ...]) -> Mesh:
        """As a mesh."""
        layout = None if self.submesh.layout < 0 else layouts[self.submesh.layout]
        return Mesh(devices=self.devices, degree=self.submesh.degree, layout=layout)


def submeshes(problem: Problem, layouts: tuple[Layout, ...], numbers: tuple[int, ...]) -> tuple[Submesh, ...]:
    """Every submesh the pins allow under the layouts of these numbers; none where positions are searched alike only."""
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
        found += [Submesh(replicas=d, layout=number, degree=degree) for d in counts if d <= most]
    classes_of = DeviceClasses(problem.cluster)
    return tuple(submesh for submesh in found if submesh.size <= classes_of.largest(submesh.degree))


def are_two_shapes(problem: Problem) -> bool:
    """Whether unlike positions are those of two-shape pipelines: of too many devices or blocks for any others."""
    devices, blocks = problem.cluster.size, len(problem.graph.blocks)
    few = devices <= MOST_DEVICES and blocks <= MOST_BLOCKS
    return not few and devices <= MOST_TWO_SHAPE_DEVICES and 2 <= blocks <= MOST_TWO_SHAPE_BLOCKS


class DeviceClasses:
    """The devices of each class, and what may be placed on them."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.devices = tuple(tuple(chain.from_iterable(units)) for units in group_classes(cluster, 1))

    def largest(self, degree: int) -> int:
        """Devices of the class that has most in replicas of `degree`."""
        return max(degree * len(self.units(number, degree)) for number in range(len(self.devices)))

    @remembered
    def units(self, number: int, degree: int) -> tuple[tuple[int, ...], ...]:
        """The replicas of `degree` devices that lie in a class."""
        own = set(self.devices[number])
        return tuple(u for u in replica_groups(self.cluster, degree) if own.issuperset(u))

    @remembered
    def placement(self, submesh: Submesh, number: int, after: int = -1) -> PlacedSubmesh | None:
        """The first replicas of a class whose devices come behind device `after`; None where there are too few."""
        units = [unit for unit in self.units(number, submesh.degree) if min(unit) > after][: submesh.replicas]
        enough = len(units) == submesh.replicas
        return PlacedSubmesh(submesh, number, tuple(chain.from_iterable(units))) if enough else None

    def placements(self, own: tuple[Submesh, ...]) -> Iterator[PlacedSubmesh]:
        """Every placement of these submeshes."""
        for submesh, (number, devices) in product(own, enumerate(self.devices)):
            found = (self.placement(submesh, number, after) for after in (-1, *devices))
            yield from (placement for placement in found if placement is not None)

    def left(self, placement: PlacedSubmesh, visited: tuple[int, ...]) -> int:
        """Devices that a placement and what comes after it can have; `visited` are the classes up to its own."""
        own = sum(device >= placement.devices[0] for device in self.devices[placement.device_class])
        return own + sum(len(devices) for number, devices in enumerate(self.devices) if number not in visited)

    def after(self, visited: tuple[int, ...]) -> tuple[int, ...]:
        """The classes that may come after these."""
        count = len(visited)
        return tuple(sorted({order[count] for order in self._orders if order[:count] == visited and order[count:]}))

    @cached_property
    def _orders(self) -> tuple[tuple[int, ...], ...]:
        """The classes in all orders that are searched."""
        numbers = {units[0]: number for number, units in enumerate(group_classes(self.cluster, 1))}
        return tuple(tuple(numbers[units[0]] for units in order) for order in class_orders(self.cluster, 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementClass:
    """A placement that stands for those that cost the same; the bytes a device of it has, and its weight in bounds.

    The weight is the part of the machines' speed that its devices have: n times a device's speed over that of all.
    """

    placement: PlacedSubmesh
    weight: float
    room: int

    @property
    def submesh(self) -> Submesh:
        """What is placed."""
        return self.placement.submesh


class PlacementClasses:
    """The placements of one problem. `views` are the costs of the model under each layout."""

    def __init__(
        self, problem: Problem, views: dict[int, RangeClasses], device_classes: DeviceClasses,
        placements: Iterable[PlacedSubmesh],
    ) -> None:  # fmt: skip
        self.problem = problem
        self.views = views
        self.device_classes = device_classes
        self._placements = placements

    @cached_property
    def every(self) -> tuple[PlacementClass, ...]:
        """One for all placements of a submesh that costs cannot tell apart."""
        found: dict[object, PlacedSubmesh] = {}
        for placement in self._placements:
            found.setdefault(self.key(placement), placement)
        return tuple(
            PlacementClass(placement=own, weight=self.weight(own), room=self.room(own)) for own in found.values()
        )

    def key(self, placement: PlacedSubmesh) -> object:
        """Equal for placements that cost the same: submesh, kinds of devices, levels that collectives climb, sums."""
        submesh, costs = placement.submesh, self.views[placement.submesh.layout].costs
        kinds = tuple(sorted({costs.block_times.device_class[device] for device in placement.devices}))
        asked = placement.leaders, submesh.degree
        return submesh, placement.device_class, kinds, costs.network.levels(*asked), costs.network.sum_rates(*asked)

    def weight(self, placement: PlacedSubmesh) -> float:
        """The part of all devices' speed that those of a placement have."""
        return len(placement.devices) * self._speeds[placement.device_class] / self._speed

    def room(self, placement: PlacedSubmesh) -> int:
        """Bytes of a device beside its overhead; all of a class have as many."""
        chip = self.problem.cluster.devices[placement.devices[0]]
        return chip.memory_bytes - chip.overhead_bytes

    @cached_property
    def _speeds(self) -> tuple[float, ...]:
        """Rows of the model a second on a device of each class, or what is in proportion to it."""
        ranges, blocks = self.views[min(self.views)], range(len(self.problem.graph.blocks))
        found = []
        for devices in self.device_classes.devices:
            seconds = [ranges.seconds(b, ranges.costs.block_times.device_class[devices[0]], 1) for b in blocks]
            found.append(1 / max(1e-12, sum(each.forward + each.backward for each in seconds)))
        return tuple(found)

    @cached_property
    def _speed(self) -> float:
        return sum(len(own) * speed for own, speed in zip(self.device_classes.devices, self._speeds, strict=True))
