"""Seconds of every block on every kind of device, as prefix sums: a run of blocks is a difference of two numbers.

In the graph of one of the `degree` devices of a replica, collectives between ops count too: they run among the
replica's devices (`topology.replica_groups`; where replicas begin at an `offset`, those whose numbers less it have the
same quotient by `degree`), while nothing else does.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from placer.cluster.cluster import Device
from placer.cluster.topology import Bottleneck, replica_groups
from placer.costs.communication.intra_op import block_communication
from placer.costs.communication.network import Network
from placer.costs.compute.roofline import BlockSeconds, block_seconds
from placer.costs.precision import Numerics
from placer.graph import Graph
from placer.plans.plan import Stage
from placer.plans.settings import RunSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixSeconds:
    """Prefix sums over blocks of seconds on one kind of device for one number of rows; seconds of the prologue."""

    forward: tuple[float, ...]
    backward: tuple[float, ...]
    weight: tuple[float, ...]
    recompute: tuple[float, ...]
    prologue: float


class BlockTimes:
    """BlockTimes by device and rows, each block class and kind of device computed once."""

    def __init__(
        self,
        graph: Graph,
        network: Network,
        numerics: Numerics,
        settings: RunSettings,
        degree: int = 1,
        apart: int = 1,
        offset: int = 0,
    ) -> None:
        self.graph = graph
        self.network = network
        self.cluster = network.cluster
        self.degree = degree
        self.offset = offset
        self.apart = apart
        self.numerics = numerics
        self.settings = settings
        self._known: dict[tuple[int, int], PrefixSeconds] = {}

    def of(self, device: int, rows: int) -> PrefixSeconds:
        """The profile of `rows` rows on a device."""
        key = (self.device_class[device], rows)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._make(device, rows)
        return found

    @cached_property
    def device_class(self) -> tuple[int, ...]:
        """For each device the first device of its kind, in a replica whose devices reach each other alike."""
        first: dict[tuple[Device, Bottleneck | None], int] = {}
        known: dict[tuple[int, int], int] = {}  # most devices are the very same chip and way: told by identity first
        reached = {} if self.degree == 1 else self._reached()
        found = []
        for index, chip in enumerate(self.cluster.devices):
            way = reached.get(index)
            key = (id(chip), id(way))
            if key not in known:
                known[key] = first.setdefault((chip, way), index)
            found.append(known[key])
        return tuple(found)

    def _reached(self) -> dict[int, Bottleneck]:
        """How the devices of each device's replica reach each other; worked out once for groups inside like nodes."""
        nodes, node_of = self.cluster.nodes, self.cluster.node_of
        inside: dict[int, Bottleneck] = {}
        found: dict[int, Bottleneck] = {}
        for own in self.groups:
            node = node_of[own[0]]
            if len({node_of[device] for device in own}) > 1:
                way = self.network.levels(own)
            else:
                way = inside.get(id(nodes[node])) or inside.setdefault(id(nodes[node]), self.network.levels(own))
            found |= dict.fromkeys(own, way)
        return found

    @cached_property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        """The devices of every possible replica; one after the other where no node holds whole ones."""
        found = () if self.offset else replica_groups(self.cluster, self.degree)
        if found:
            return found
        starts = range(self.offset, self.cluster.size - self.degree + 1, self.degree)
        return tuple(tuple(range(start, start + self.degree)) for start in starts)

    def holds(self, stage: Stage) -> bool:
        """Whether the replicas of `stage` are among `groups`."""
        starts = range(0, len(stage.devices), self.degree)
        replicas = (stage.devices[start : start + self.degree] for start in starts)
        return all(self._group_of[own[0]] == own for own in replicas)

    @cached_property
    def uniform(self) -> bool:
        """Whether all devices are of one kind."""
        return len(set(self.device_class)) == 1

    def replica(self, device: int) -> tuple[int, ...]:
        """The devices of the replica that `device` belongs to."""
        return self._group_of[device]

    def block(self, kind: int, device: int, rows: int) -> BlockSeconds:
        """Seconds of one block of a class on a device for `rows` rows of its replica, collectives in this included."""
        rows = -(-rows // self.apart)
        whole, chip = self.graph.classes[kind], self.cluster.devices[device]
        own = block_seconds(whole, self.numerics, chip, self.settings, rows)
        if self.degree == 1:
            return own
        return own + block_communication(whole, self.numerics, self.network, self.replica(device), rows)

    def device_classes(self, devices: Iterable[int]) -> tuple[int, ...]:
        """One device of each kind among `devices`."""
        return (
            (self.device_class[0],)
            if self.uniform
            else tuple(sorted({self.device_class[device] for device in devices}))
        )

    @cached_property
    def _group_of(self) -> dict[int, tuple[int, ...]]:
        """A device of no group stands for one of the first: no plan has it."""
        unused = dict.fromkeys(range(self.cluster.size), self.groups[0])
        return unused | {device: own for own in self.groups for device in own}

    def _make(self, device: int, rows: int) -> PrefixSeconds:
        kinds = {block.kind for block in (*self.graph.blocks, self.graph.prologue)}
        each = {kind: self.block(kind, device, rows) for kind in kinds}
        blocks = [each[block.kind] for block in self.graph.blocks]
        return PrefixSeconds(
            forward=_sums(block.forward for block in blocks),
            backward=_sums(block.backward for block in blocks),
            weight=_sums(block.weight for block in blocks),
            recompute=_sums(block.recompute for block in blocks),
            prologue=each[self.graph.prologue.kind].forward,
        )


def _sums(own: Iterable[float]) -> tuple[float, ...]:
    return tuple(accumulate(own, initial=0.0))
