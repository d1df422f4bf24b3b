"""Two-shape pipelines: the plans of two submeshes that are searched on many devices and for many blocks.

A pipeline is a part of p1 positions of one submesh, then a part of p2 positions of another one. Each part has a range
of the devices of one class (`submesh.DeviceClasses`) to itself and leaves none of it idle: as many devices as positions
times replicas times degree. Of a class of n devices, k in a node, the device ranges are

    one class     the first u of its devices, the first part on the first t of them, the second on the u - t behind
    two classes   the first u1 of one, the first u2 of another one; first which is what `class_orders` says
    u, u1, u2     all n; or the first 1, 2, 4, ... nodes
    t             1, 2, 4, ... devices, or all of u but 1, 2, 4, ...; k, 2 k, 4 k, ... devices, or all of u but these

with positions and replicas any two numbers that fill a range. Two submeshes that are alike are a pipeline on two
classes only: on one they are an outline of `space`.
"""

from __future__ import annotations

from itertools import chain, product
from typing import NamedTuple

from placer.plans.plan import Layout
from placer.search.problem import Problem
from placer.strategies.inter_op.submeshes.submesh import (
    DeviceClasses,
    PlacedSubmesh,
    Submesh,
)
from placer.strategies.space.outline import divisors, powers_of_two, whole_batch


class DeviceRange(NamedTuple):
    """Devices of a class, `size` of them from number `begin` of the class's own on."""

    device_class: int
    begin: int
    size: int


class PipelinePart(NamedTuple):
    """Positions of one submesh that fill a device range."""

    device_range: DeviceRange
    submesh: Submesh
    placements: tuple[PlacedSubmesh, ...]

    @property
    def positions(self) -> int:
        """Number of positions."""
        return len(self.placements)


class TwoShapePipeline(NamedTuple):
    """Two parts, one after the other."""

    first: PipelinePart
    second: PipelinePart

    @property
    def placements(self) -> tuple[PlacedSubmesh, ...]:
        """The devices of each position."""
        return (*self.first.placements, *self.second.placements)


def device_ranges(device_classes: DeviceClasses) -> tuple[tuple[DeviceRange, DeviceRange], ...]:
    """Every two device ranges that the parts of a pipeline may have."""
    found = []
    for device_class in device_classes.after(()):
        for used in _wholes(device_classes, device_class):
            shares = _shares(used, _node(device_classes, device_class))
            found += [(DeviceRange(device_class, 0, own), DeviceRange(device_class, own, used - own)) for own in shares]
        for other in device_classes.after((device_class,)):
            for own, its in product(_wholes(device_classes, device_class), _wholes(device_classes, other)):
                found.append((DeviceRange(device_class, 0, own), DeviceRange(other, 0, its)))
    return tuple(found)


def parts(
    problem: Problem, device_classes: DeviceClasses, layouts: dict[int, Layout | None], device_range: DeviceRange
) -> tuple[PipelinePart, ...]:
    """Every part that fills a device range with replicas cut by one of the layouts, by number, which the pins allow."""
    pins, blocks, found = problem.pins, len(problem.graph.blocks), []
    most = 1 if whole_batch(problem) else problem.rows
    least = 1 if pins.shard in (None, "none") else 2  # state is divided by two
    for number, layout in layouts.items():
        degree = 1 if layout is None else layout.degree
        units = _units(device_classes, device_range, degree) if layout is None or layout.apart == 1 else ()
        if len(units) * degree != device_range.size or not units:
            continue
        for replicas in divisors(len(units)):
            positions = len(units) // replicas
            if least <= replicas <= most and positions < blocks and pins.data in (None, replicas):
                found.append(_part(device_range, Submesh(replicas=replicas, layout=number, degree=degree), units))
    return tuple(found)


def joins(first: PipelinePart, second: PipelinePart, positions: frozenset[int]) -> bool:
    """Whether two parts are a pipeline of one of these numbers of positions."""
    alike = first.submesh == second.submesh and first.device_range.device_class == second.device_range.device_class
    return not alike and first.positions + second.positions in positions


def _part(device_range: DeviceRange, submesh: Submesh, units: tuple[tuple[int, ...], ...]) -> PipelinePart:
    runs = (units[i : i + submesh.replicas] for i in range(0, len(units), submesh.replicas))
    return PipelinePart(
        device_range,
        submesh,
        tuple(PlacedSubmesh(submesh, device_range.device_class, tuple(chain.from_iterable(run))) for run in runs),
    )


def _units(device_classes: DeviceClasses, device_range: DeviceRange, degree: int) -> tuple[tuple[int, ...], ...]:
    """The replicas of `degree` devices within a device range."""
    own = set(
        device_classes.devices[device_range.device_class][device_range.begin : device_range.begin + device_range.size]
    )
    return tuple(unit for unit in device_classes.units(device_range.device_class, degree) if own.issuperset(unit))


def _node(device_classes: DeviceClasses, device_class: int) -> int:
    """Devices of a class in one node."""
    nodes, devices = device_classes.cluster.node_of, device_classes.devices[device_class]
    return sum(nodes[device] == nodes[devices[0]] for device in devices)


def _wholes(device_classes: DeviceClasses, device_class: int) -> tuple[int, ...]:
    """The numbers of devices of a class that a pipeline may use: all, or the first 1, 2, 4, ... nodes."""
    count, node = len(device_classes.devices[device_class]), _node(device_classes, device_class)
    return tuple(sorted({count, *(node * nodes for nodes in powers_of_two(count // node))}))


def _shares(used: int, node: int) -> tuple[int, ...]:
    """How many of so many devices the first part may have."""
    few = {*powers_of_two(used - 1), *(node * nodes for nodes in powers_of_two((used - 1) // node))}
    return tuple(sorted(few | {used - own for own in few}))
