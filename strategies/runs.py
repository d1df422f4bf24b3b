"""What runs of blocks and positions have in common, so that like ones are priced once.

Two runs are alike where they have the same classes of blocks in the same order and hold and move the same bytes; two
positions where costs cannot tell their devices and links apart.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from itertools import groupby
from typing import TypeVar

from placer.collectives import Way, slowest, ways
from placer.compute import BlockSeconds
from placer.costs import Costs
from placer.search import Problem
from placer.topology import bottleneck

T = TypeVar("T")


class Runs:
    """The shapes of all runs of blocks of a problem, numbered; equal numbers cost the same."""

    def __init__(self, problem: Problem, costs: Costs) -> None:
        self.problem = problem
        self.costs = costs
        self._numbers: dict[object, int] = {}
        self._known: dict[tuple[int, int], int] = {}
        self._alike: dict[int, bool] = {}
        self._seconds: dict[tuple[int, int, int], BlockSeconds] = {}

    def number(self, first: int, last: int) -> int:
        """The shape of blocks first..last-1."""
        found = self._known.get((first, last))
        if found is None:
            kinds = tuple((k, sum(1 for _ in run)) for k, run in groupby(self._kinds[first:last]))
            shape = (kinds, self.costs.spans.of(first, last), last == len(self._kinds))
            found = self._known[first, last] = self._numbers.setdefault(shape, len(self._numbers))
        return found

    def alike(self, sizes: range) -> bool:
        """Whether all runs of one of these numbers of blocks are alike that hold neither the first nor the last."""
        return all(self._repeats(size) for size in sizes)

    def _repeats(self, size: int) -> bool:
        known = self._alike.get(size)
        if known is None:
            inner = range(1, len(self._kinds) - 1)
            shapes = {self.number(i, i + size) for i in inner[: max(0, len(inner) - size + 1)]}
            known = self._alike[size] = len(shapes) <= 1
        return known

    def seconds(self, block: int, device: int, rows: int) -> BlockSeconds:
        """Seconds of one block by itself, without the prologue."""
        kind = self._kinds[block]
        key = (kind, device, rows)
        found = self._seconds.get(key)
        if found is None:
            found = self._seconds[key] = self.costs.profiles.block(kind, device, rows)
        return found

    def kinds_used(self, count: int) -> tuple[int, ...]:
        """One device of each kind among the first `count` devices."""
        return tuple(device for device in self._first_of_kind if device < count)

    @cached_property
    def _first_of_kind(self) -> tuple[int, ...]:
        whole = self.problem.cluster.size // self.costs.degree * self.costs.degree
        return self.costs.profiles.kinds(range(whole))

    @cached_property
    def _kinds(self) -> tuple[int, ...]:
        return tuple(block.kind for block in self.problem.graph.blocks)


class Places:
    """What tells positions of `positions` x `replicas` devices apart, as far as costs can see."""

    def __init__(self, problem: Problem, costs: Costs, positions: int, replicas: int) -> None:
        self.problem = problem
        self.costs = costs
        count = replicas * costs.degree
        self.devices = tuple(tuple(range(p * count, (p + 1) * count)) for p in range(positions))

    @cached_property
    def own(self) -> tuple[object, ...]:
        """Per position its devices' kinds in order of replica, and the levels its collectives climb."""
        return self._each(self._own)

    @cached_property
    def capacity(self) -> tuple[int, ...]:
        """Bytes of each position's smallest device less the largest overhead."""
        return self._each(self._capacity)

    @cached_property
    def onward(self) -> tuple[Way, ...]:
        """Per position the messages to the next one (the last one's go round to the first): their latency, and the
        most seconds per byte."""
        cluster, last = self.problem.cluster, len(self.devices) - 1
        inner = self._each(lambda p: slowest(ways(cluster, self.devices[p], self.devices[p + 1])), last)
        return (*inner, slowest(ways(cluster, self.devices[last], self.devices[0])))

    def _each(self, of: Callable[[int], T], count: int | None = None) -> tuple[T, ...]:
        """`of` the first `count` positions (None: all), asked once for those that lie alike."""
        positions = range(len(self.devices) if count is None else count)
        known: dict[int, T] = {}
        return tuple(known[key] if (key := self._lie(p)) in known else known.setdefault(key, of(p)) for p in positions)

    def _lie(self, position: int) -> int:
        """Equal for positions that differ in nothing but which of many equal nodes they are on; never for the first."""
        cluster, start = self.problem.cluster, self.devices[position][0]
        flat = len(cluster.groups) == 1 and all(level.nodes == 0 for level in cluster.levels)
        size = cluster.groups[0][0].size
        beside = start // size <= self.devices[0][-1] // size
        return -1 - position if not flat or beside else start % size

    def _own(self, position: int) -> object:
        cluster, degree, kinds = self.problem.cluster, self.costs.degree, self.costs.profiles.kind
        own = self.devices[position]
        levels = bottleneck(cluster, own[::degree], groups=degree)
        return _kinds_of(kinds[own[0] : own[-1] + 1]), levels, self._tied(own)

    def _capacity(self, position: int) -> int:
        chips = {id(chip): chip for d in self.devices[position] for chip in (self.problem.cluster.devices[d],)}.values()
        return min(chip.memory_bytes for chip in chips) - max(chip.overhead_bytes for chip in chips)

    @cached_property
    def distinct(self) -> tuple[tuple[int, ...], ...]:
        """The first devices of the replicas of one position of each kind that `own` tells apart."""
        found = dict(zip(self.own, self.devices, strict=True)).values()
        return tuple(devices[:: self.costs.degree] for devices in found)

    def _tied(self, devices: tuple[int, ...]) -> object:
        leading = self.devices[0]
        if not self.problem.graph.tied or devices == leading:
            return devices == leading
        return bottleneck(self.problem.cluster, (*leading, *devices))


def _kinds_of(devices: tuple[object, ...]) -> object:
    """The kinds in order, one for all where they are alike."""
    return devices[0] if all(device == devices[0] for device in devices) else devices
