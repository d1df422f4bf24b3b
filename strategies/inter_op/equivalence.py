"""What block ranges and positions have in common, so that like ones are priced once.

Two runs are alike where they have the same classes of blocks in the same order and hold and move the same bytes; two
positions where costs cannot tell their devices and links apart.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import cached_property, partial
from itertools import groupby
from typing import TypeVar

from placer.cluster.topology import bottleneck
from placer.costs.communication.network import LinkCost, link_costs, slowest
from placer.costs.communication.side_by_side import side_by_side, tied_lines
from placer.costs.compute.roofline import BlockSeconds
from placer.costs.costs import Costs
from placer.costs.memory.parameters import ParameterCounts
from placer.costs.memory.peak import StageMemory, stage_memory
from placer.io.memo import once, remembered
from placer.plans.plan import Recompute
from placer.search.problem import Problem
from placer.strategies.space.outline import Outline

T = TypeVar("T")


class RangeClasses:
    """The shapes of all block ranges of a problem, numbered; equal numbers cost the same."""

    def __init__(self, problem: Problem, costs: Costs) -> None:
        self.problem = problem
        self.costs = costs
        self._shapes: dict[object, int] = {}
        self._held: dict[Hashable, StageMemory] = {}

    @remembered
    def number(self, first: int, last: int) -> int:
        """The shape of blocks first..last-1."""
        kinds = tuple((k, sum(1 for _ in run)) for k, run in groupby(self._kinds[first:last]))
        shape = (kinds, self.costs.ranges.of(first, last), last == len(self._kinds))
        return self._shapes.setdefault(shape, len(self._shapes))

    def held(self, first: int, last: int, recompute: Recompute, rows: int, outline: Outline) -> StageMemory:
        """Bytes of a run as one stage of such an outline on a replica that takes `rows` rows of a full microbatch."""
        costs, sharding, replicas, accumulates = self.costs, outline.sharding, outline.replicas, outline.count > 1
        key = (self.number(first, last), recompute, rows, sharding, replicas, accumulates)
        return once(
            self._held, key, stage_memory, costs.ranges.of(first, last), costs.numerics, costs.priced, rows=rows,
            recompute=recompute, sharding=sharding, replicas=replicas, accumulates=accumulates,
        )  # fmt: skip

    def alike(self, sizes: range) -> bool:
        """Whether all runs of one of these numbers of blocks are alike that hold neither the first nor the last."""
        return all(map(self._repeats, sizes))

    @remembered
    def _repeats(self, size: int) -> bool:
        inner = range(1, len(self._kinds) - 1)
        return len({self.number(i, i + size) for i in inner[: max(0, len(inner) - size + 1)]}) <= 1

    def seconds(self, block: int, device: int, rows: int) -> BlockSeconds:
        """Seconds of one block by itself, without the prologue."""
        return self.costs.block_times.block(self._kinds[block], device, rows)

    @cached_property
    def kinds_used(self) -> tuple[int, ...]:
        """One device of each kind that may be in a replica."""
        profiles = self.costs.block_times
        return profiles.device_classes(range(0) if profiles.uniform else (d for own in profiles.groups for d in own))

    @cached_property
    def classes(self) -> tuple[tuple[int, ParameterCounts], ...]:
        """Of each block its class, and what no other block holds: where they share parameters, like ones may differ."""
        held = self.costs.ranges.parameters
        return tuple((kind, held.unshared(block, block + 1)) for block, kind in enumerate(self._kinds))

    @cached_property
    def _kinds(self) -> tuple[int, ...]:
        return tuple(block.kind for block in self.problem.graph.blocks)


def _of_each(of: Callable[[PositionClasses, int], T]) -> cached_property[tuple[T, ...]]:
    """A property: `of` every position."""
    return cached_property(lambda self: self.each(partial(of, self)))


class PositionClasses:
    """What tells the positions of an outline apart, as far as costs can see. Its shares and rows do not matter."""

    def __init__(self, problem: Problem, costs: Costs, outline: Outline) -> None:
        self.problem = problem
        self.costs = costs
        self.in_order = not outline.device_order
        self.devices = tuple(outline.devices(position) for position in range(outline.positions))
        self.used = outline.used
        self._loads: dict[tuple[int, tuple[int, ...]], tuple[tuple[tuple[int, int], ...], ...]] = {}

    @cached_property
    def room(self) -> int:
        """What all positions can hold together if each were as that device."""
        return sum(max(0, own) for own in self.capacity)

    def loads(self, outline: Outline) -> tuple[tuple[tuple[int, int], ...], ...]:
        """Per position what must fit: (rows of a full microbatch, bytes) of its replicas, most rows first.

        Without what follows from another: fewer rows in no fewer bytes.
        """
        return once(self._loads, (outline.microbatch, outline.shares), self._make_loads, outline)

    def _make_loads(self, outline: Outline) -> tuple[tuple[tuple[int, int], ...], ...]:
        if not outline.shares and self.costs.block_times.uniform:
            return tuple(((outline.most_rows, room),) for room in self.capacity)
        each, known = outline.rows_each, dict[tuple[int, ...], tuple[tuple[int, int], ...]]()
        return tuple(once(known, rooms, _binding, each, rooms) for rooms in self.rooms)

    @cached_property
    def fixed(self) -> float:
        """Seconds of the world's own collectives."""
        return self.costs.fixed(self.used)

    @cached_property
    def onward(self) -> tuple[LinkCost, ...]:
        """Per position the messages to the next one (the last one's go round to the first): their latency, and the
        most seconds per byte."""
        cluster, last = self.problem.cluster, len(self.devices) - 1
        inner = self.each(lambda p: slowest(link_costs(cluster, self.devices[p], self.devices[p + 1])), last)
        return (*inner, slowest(link_costs(cluster, self.devices[last], self.devices[0])))

    @cached_property
    def links_on(self) -> tuple[LinkCost, ...]:
        """The different ones of `onward` but the last."""
        return tuple(dict.fromkeys(self.onward[:-1]))

    @cached_property
    def links_round(self) -> tuple[LinkCost, ...]:
        """The different ones of `onward`."""
        return tuple(dict.fromkeys(self.onward))

    def each(self, of: Callable[[int], T], count: int | None = None) -> tuple[T, ...]:
        """`of` the first `count` positions (None: all), asked once for those that lie alike."""
        positions = range(len(self.devices) if count is None else count)
        known: dict[int, T] = {}
        return tuple(once(known, self._lie(p), of, p) for p in positions)

    def _lie(self, position: int) -> int:
        """Equal for positions that differ in nothing but which of many equal nodes they are on; never for the first."""
        cluster, start = self.problem.cluster, self.devices[position][0]
        flat = self.in_order and len(cluster.groups) == 1 and all(level.nodes == 0 for level in cluster.levels)
        size = cluster.groups[0][0].size
        beside = start // size <= self.devices[0][-1] // size
        return -1 - position if not flat or beside else start % size

    @_of_each
    def own(self, position: int) -> object:
        """Per position its devices' kinds in order of replica, the levels its collectives climb and its sums' rates."""
        cluster, degree, kinds = self.problem.cluster, self.costs.degree, self.costs.block_times.device_class
        own = self.devices[position]
        levels = bottleneck(cluster, own[::degree], groups=degree)
        same = kinds[own[0] : own[-1] + 1] if self.in_order else tuple(kinds[device] for device in own)
        sums = self.costs.network.sum_rates(own[::degree], degree)
        return same[0] if len(set(same)) == 1 else same, (levels, sums), self._tied(own)

    @_of_each
    def capacity(self, position: int) -> int:
        """Bytes of each position's device that has fewest beside its overhead."""
        chips = {id(chip): chip for d in self.devices[position] for chip in (self.problem.cluster.devices[d],)}.values()
        return min(chip.memory_bytes - chip.overhead_bytes for chip in chips)

    @_of_each
    def rooms(self, position: int) -> tuple[int, ...]:
        """Per position the least bytes less overhead of each replica's devices."""
        chips, degree = self.problem.cluster.devices, self.costs.degree
        room = [chips[d].memory_bytes - chips[d].overhead_bytes for d in self.devices[position]]
        return tuple(min(room[i : i + degree]) for i in range(0, len(room), degree))

    @_of_each
    def kinds(self, position: int) -> tuple[tuple[int, ...], ...]:
        """Per position the kinds of the devices of each replica."""
        kinds, degree = self.costs.block_times.device_class, self.costs.degree
        own = [kinds[device] for device in self.devices[position]]
        return tuple(tuple(sorted(set(own[i : i + degree]))) for i in range(0, len(own), degree))

    @cached_property
    def distinct(self) -> tuple[tuple[int, ...], ...]:
        """The first devices of the replicas of one position of each kind that `own` tells apart."""
        found = dict(zip(self.own, self.devices, strict=True)).values()
        return tuple(devices[:: self.costs.degree] for devices in found)

    def _tied(self, devices: tuple[int, ...]) -> object:
        """What tells sums of tied parameters with the first position apart, shards or whole."""
        leading, degree, network = self.devices[0], self.costs.degree, self.costs.network
        if not self.problem.graph.tied or devices == leading:
            return devices == leading
        if self.problem.cluster.unlike((*leading, *devices)):
            return devices
        found = set[object]()
        for by_shard in (False, True) if len(leading) == len(devices) else (False,):
            lines = tied_lines(leading, devices, degree, by_shard=by_shard)
            each = zip(lines[::degree], side_by_side(self.problem.cluster, lines)[::degree], strict=True)
            found |= {(by_shard, network.levels(line, groups)) for line, groups in each}
        return frozenset(found)


def _binding(each: tuple[int, ...], rooms: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    """The loads of replicas, rows and room of each, that no other one implies."""
    found: list[tuple[int, int]] = []
    for rows, room in sorted(set(zip(each, rooms, strict=True)), key=lambda load: (-load[0], load[1])):
        if not found or room < found[-1][1]:
            found.append((rows, room))
    return tuple(found)
