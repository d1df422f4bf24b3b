"""What runs of blocks and positions have in common, so that like ones are priced once.

Two runs are alike where they have the same classes of blocks in the same order and hold and move the same bytes; two
positions where costs cannot tell their devices and links apart.
"""

from __future__ import annotations

from functools import cached_property
from itertools import groupby
from typing import NamedTuple

from placer.collectives import message_seconds
from placer.compute import BlockSeconds
from placer.costs import Costs
from placer.search import Problem
from placer.topology import bottleneck

# Large enough that latency does not count beside it.
PROBE_BYTES = 10**12


class Way(NamedTuple):
    """Messages between two positions: seconds of an empty one, seconds per byte of each sender."""

    latency: float
    per_byte: float


class Runs:
    """The shapes of all runs of blocks of a problem, numbered; equal numbers cost the same."""

    def __init__(self, problem: Problem, costs: Costs) -> None:
        self.problem = problem
        self.costs = costs
        self._numbers: dict[object, int] = {}
        self._known: dict[tuple[int, int], int] = {}
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
        inner = range(1, len(self._kinds) - 1)
        return all(len({self.number(i, i + n) for i in inner[: max(0, len(inner) - n + 1)]}) <= 1 for n in sizes)

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
        cluster, degree, kinds = self.problem.cluster, self.costs.degree, self.costs.profiles.kind
        return tuple(
            (_kinds_of(kinds[d[0] : d[-1] + 1]), bottleneck(cluster, d[::degree], groups=degree), self._tied(d))
            for d in self.devices
        )

    @cached_property
    def capacity(self) -> tuple[int, ...]:
        """Bytes of each position's smallest device less the largest overhead."""
        chips = self.problem.cluster.devices
        return tuple(
            min(chips[d].memory_bytes for d in devices) - max(chips[d].overhead_bytes for d in devices)
            for devices in self.devices
        )

    @cached_property
    def onward(self) -> tuple[Way, ...]:
        """Per position the messages to the next one (the last one's go round to the first)."""
        cluster, count = self.problem.cluster, len(self.devices)
        found = []
        for p, source in enumerate(self.devices):
            target = self.devices[(p + 1) % count]
            latency, probe = (message_seconds(cluster, source, target, size) for size in (0, PROBE_BYTES))
            found.append(Way(latency, (probe - latency) / PROBE_BYTES))
        return tuple(found)

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
