"""Lines: the plans of two shapes that are searched on many devices and for many blocks.

A line is a part of p1 positions of one shape, then a part of p2 positions of another one. Each part has a stretch of
one ground (`shapes.Grounds`) to itself and leaves none of it idle: as many devices as positions times replicas times
degree. Of a ground of n devices, k in a node, the stretches are

    one ground    the first u of its devices, the first part on the first t of them, the second on the u - t behind
    two grounds   the first u1 of one, the first u2 of another one; first which is what `class_orders` says
    u, u1, u2     all n; or the first 1, 2, 4, ... nodes
    t             1, 2, 4, ... devices, or all of u but 1, 2, 4, ...; k, 2 k, 4 k, ... devices, or all of u but these

with positions and replicas any two numbers that fill a stretch. Two shapes that are alike are a line on two grounds
only: on one they are an outline of `space`.
"""

from __future__ import annotations

from itertools import chain, product
from typing import NamedTuple

from placer.plans.plan import Layout
from placer.search.problem import Problem
from placer.strategies.inter_op.submeshes.submesh import MOST_BLOCKS, MOST_DEVICES, Grounds, Shape, Spot
from placer.strategies.space.outline import divisors, powers_of_two, whole_batch

# On more devices, and for more blocks, all positions are alike.
MOST_LINE_DEVICES, MOST_LINE_BLOCKS = 256, 160


class Stretch(NamedTuple):
    """Devices of a ground, `size` of them from number `begin` of the ground's own on."""

    ground: int
    begin: int
    size: int


class Part(NamedTuple):
    """Positions of one shape that fill a stretch."""

    stretch: Stretch
    shape: Shape
    spots: tuple[Spot, ...]

    @property
    def positions(self) -> int:
        """Number of positions."""
        return len(self.spots)


class Line(NamedTuple):
    """Two parts, one after the other."""

    first: Part
    second: Part

    @property
    def spots(self) -> tuple[Spot, ...]:
        """The devices of each position."""
        return (*self.first.spots, *self.second.spots)


def are_lines(problem: Problem) -> bool:
    """Whether positions of unlike shapes are those of lines: of too many devices or blocks for any others."""
    devices, blocks = problem.cluster.size, len(problem.graph.blocks)
    few = devices <= MOST_DEVICES and blocks <= MOST_BLOCKS
    return not few and devices <= MOST_LINE_DEVICES and 2 <= blocks <= MOST_LINE_BLOCKS


def stretches(grounds: Grounds) -> tuple[tuple[Stretch, Stretch], ...]:
    """Every two stretches that the parts of a line may have."""
    found = []
    for ground in grounds.after(()):
        for used in _wholes(grounds, ground):
            shares = _shares(used, _node(grounds, ground))
            found += [(Stretch(ground, 0, own), Stretch(ground, own, used - own)) for own in shares]
        for other in grounds.after((ground,)):
            for own, its in product(_wholes(grounds, ground), _wholes(grounds, other)):
                found.append((Stretch(ground, 0, own), Stretch(other, 0, its)))
    return tuple(found)


def parts(problem: Problem, grounds: Grounds, layouts: dict[int, Layout | None], stretch: Stretch) -> tuple[Part, ...]:
    """Every part that fills a stretch with replicas cut by one of the layouts, by number, which the pins allow."""
    pins, blocks, found = problem.pins, len(problem.graph.blocks), []
    most = 1 if whole_batch(problem) else problem.rows
    least = 1 if pins.shard in (None, "none") else 2  # state is divided by two
    for number, layout in layouts.items():
        degree = 1 if layout is None else layout.degree
        units = _units(grounds, stretch, degree) if layout is None or layout.apart == 1 else ()
        if len(units) * degree != stretch.size or not units:
            continue
        for replicas in divisors(len(units)):
            positions = len(units) // replicas
            if least <= replicas <= most and positions < blocks and pins.data in (None, replicas):
                found.append(_part(stretch, Shape(replicas=replicas, layout=number, degree=degree), units))
    return tuple(found)


def joins(first: Part, second: Part, positions: frozenset[int]) -> bool:
    """Whether two parts are a line of one of these numbers of positions."""
    alike = first.shape == second.shape and first.stretch.ground == second.stretch.ground
    return not alike and first.positions + second.positions in positions


def _part(stretch: Stretch, shape: Shape, units: tuple[tuple[int, ...], ...]) -> Part:
    runs = (units[i : i + shape.replicas] for i in range(0, len(units), shape.replicas))
    return Part(stretch, shape, tuple(Spot(shape, stretch.ground, tuple(chain.from_iterable(run))) for run in runs))


def _units(grounds: Grounds, stretch: Stretch, degree: int) -> tuple[tuple[int, ...], ...]:
    """The replicas of `degree` devices within a stretch."""
    own = set(grounds.devices[stretch.ground][stretch.begin : stretch.begin + stretch.size])
    return tuple(unit for unit in grounds.units(stretch.ground, degree) if own.issuperset(unit))


def _node(grounds: Grounds, ground: int) -> int:
    """Devices of a ground in one node."""
    nodes, devices = grounds.cluster.node_of, grounds.devices[ground]
    return sum(nodes[device] == nodes[devices[0]] for device in devices)


def _wholes(grounds: Grounds, ground: int) -> tuple[int, ...]:
    """The numbers of devices of a ground that a line may use: all, or the first 1, 2, 4, ... nodes."""
    count, node = len(grounds.devices[ground]), _node(grounds, ground)
    return tuple(sorted({count, *(node * nodes for nodes in powers_of_two(count // node))}))


def _shares(used: int, node: int) -> tuple[int, ...]:
    """How many of so many devices the first part may have."""
    few = {*powers_of_two(used - 1), *(node * nodes for nodes in powers_of_two((used - 1) // node))}
    return tuple(sorted(few | {used - own for own in few}))
