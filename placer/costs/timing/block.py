"""Seconds of blocks on every class of device.

Blocks are prefix sums: a block range is a difference of two numbers. In the graph of one of the `degree` devices of a
replica, collectives between ops count too: they run among the replica's devices (`topology.replica_groups`; where
replicas begin at an `offset`, those whose numbers less it have the same quotient by `degree`), while nothing else does.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property

from placer.cluster.cluster import Backend, Device
from placer.cluster.topology import Bottleneck, replica_groups
from placer.costs.communication.intra_op import block_communication
from placer.costs.communication.network import Network
from placer.costs.compute.gradient_kernels import Later, later_reads
from placer.costs.compute.roofline import NOTHING, BlockPasses, BlockSeconds, Idle, block_passes
from placer.costs.compute.torch_kernels import torch_kernels
from placer.costs.exact_sums import exact_sums
from placer.costs.kept_results import kept_results, scores_alone
from placer.costs.timing.host_lead import idle_seconds
from placer.costs.workload import Workload
from placer.io.memo import remembered
from placer.plans.plan import Again, Partly

# Into so many a product is cut to run beside its communication (Transformer Engine, `num_splits` of a pipelined
# overlap, transformer_engine/pytorch/module/base.py).
PIECES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixSeconds:
    """Prefix sums over blocks of seconds on one class of devices for one number of rows; seconds of the prologue."""

    forward: tuple[float, ...]
    backward: tuple[float, ...]
    weight: tuple[float, ...]
    recompute: tuple[float, ...]
    selective: tuple[float, ...]
    prologue: float

    def again(self, first: int, last: int, recompute: Again) -> float:
        """What running blocks first..last-1 again takes; the model's last one never does."""
        if isinstance(recompute, Partly):
            return self.again(first, min(last, first + recompute.blocks), recompute.recompute)
        if not recompute:
            return 0.0
        sums, end = self.selective if recompute == "selective" else self.recompute, len(self.recompute) - 2
        return sums[min(last, end)] - sums[min(first, end)]


@dataclass(frozen=True, eq=False)
class BlockTimes:
    """Prefix sums by device and rows, each block class and device class computed once."""

    work: Workload
    network: Network

    def of(self, device: int, rows: int, *, whole: bool = False) -> PrefixSeconds:
        """Prefix sums for `rows` rows on a device; whole: where it holds all blocks."""
        kind = self.device_class[device]
        return self._sums(kind, rows, whole or not self._runs_ahead(kind))

    @cached_property
    def device_class(self) -> tuple[int, ...]:
        """For each device the first device of its kind, in a replica whose devices reach each other alike."""
        first: dict[tuple[Device, Bottleneck | None], int] = {}
        known: dict[tuple[int, int], int] = {}  # most devices are the very same chip and way: told by identity first
        reached = {} if self.work.degree == 1 else self._reached()
        found = []
        for index, chip in enumerate(self.network.cluster.devices):
            way = reached.get(index)
            key = (id(chip), id(way))
            if key not in known:
                known[key] = first.setdefault((chip, way), index)
            found.append(known[key])
        return tuple(found)

    def _reached(self) -> dict[int, Bottleneck]:
        """How the devices of each device's replica reach each other; worked out once for groups inside like nodes."""
        nodes, node_of = self.network.cluster.nodes, self.network.cluster.node_of
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
        found = () if self.work.offset else replica_groups(self.network.cluster, self.work.degree)
        if found:
            return found
        starts = range(self.work.offset, self.network.cluster.size - self.work.degree + 1, self.work.degree)
        return tuple(tuple(range(start, start + self.work.degree)) for start in starts)

    def holds(self, devices: tuple[int, ...]) -> bool:
        """Whether the replicas on `devices` are among `groups`."""
        replicas = (devices[start : start + self.work.degree] for start in range(0, len(devices), self.work.degree))
        return all(self._group_of[own[0]] == own for own in replicas)

    @cached_property
    def uniform(self) -> bool:
        """Whether all devices are of one class."""
        return len(set(self.device_class)) == 1

    def replica(self, device: int) -> tuple[int, ...]:
        """The devices of the replica that `device` belongs to."""
        return self._group_of[device]

    def block(self, kind: int, device: int, rows: int) -> BlockSeconds:
        """Seconds of one block of a class on a device for `rows` rows of its replica, collectives in this included: as
        one of the whole model's; in a stage among others it takes no less."""
        return self._block(kind, device, rows, True)

    @remembered
    def _block(self, kind: int, device: int, rows: int, whole: bool) -> BlockSeconds:
        passes, between = self._passes(kind, device, rows), self._between(kind, device, rows)
        alone = passes.waiting(self._idle(device, rows).get(kind, passes.idle) if whole else passes.idle)
        if self.work.degree == 1:
            return alone
        return alone + (hidden_behind(alone, between) if self.work.settings.tensor_overlap else between)

    @remembered
    def _idle(self, device: int, rows: int) -> dict[int, Idle]:
        """What blocks of each class wait for a host that runs ahead; nothing where none does."""
        graph = self.work.graph
        if not self._runs_ahead(device):
            return {}
        kinds = [graph.prologue.kind, *(block.kind for block in graph.blocks)]
        passes = {kind: self._passes(kind, device, rows) for kind in dict.fromkeys(kinds)}
        busy = {kind: own.busy + self._between(kind, device, rows) for kind, own in passes.items()}
        return idle_seconds(kinds, {kind: replace(own, busy=busy[kind]) for kind, own in passes.items()})

    def _runs_ahead(self, device: int) -> bool:
        """Whether the host of a device is known to run ahead of it."""
        settings = self.work.settings
        return not settings.fusion and torch_kernels(self.network.cluster.devices[device], settings) is not None

    @remembered
    def _passes(self, kind: int, device: int, rows: int) -> BlockPasses:
        """Those of one block of a class, without what moves between the devices that share it."""
        work, rows = self.work, -(-rows // self.work.apart)
        block_class, chip = work.graph.classes[kind], self.network.cluster.devices[device]
        kept = self._kept_results(kind, chip.backend)
        # Where devices share a block all of it runs again: they would wait for each other in two places.
        return block_passes(
            block_class, work.numerics, chip, work.settings, rows, kept, stops=work.degree == 1,
            later=self._later_reads.get(kind, {}),
        )  # fmt: skip

    @cached_property
    def _later_reads(self) -> dict[int, Later]:
        return later_reads(self.work.graph)

    @remembered
    def _between(self, kind: int, device: int, rows: int) -> BlockSeconds:
        """Seconds of the collectives in one block of a class."""
        work = self.work
        if work.degree == 1:
            return NOTHING
        block_class, rows = work.graph.classes[kind], -(-rows // work.apart)
        between = block_communication(block_class, work.numerics, self.network, self.replica(device), rows)
        return replace(between, selective=0.0) if scores_alone(work.settings) else between

    @remembered
    def _kept_results(self, kind: int, backend: Backend) -> tuple[int, ...]:
        """The ops of a block class that a selective recompute does not run again."""
        return kept_results(self.work.graph.classes[kind], self.work.settings, backend)

    def device_classes(self, devices: Iterable[int]) -> tuple[int, ...]:
        """One device of each class among `devices`."""
        classes = self.device_class
        return (classes[0],) if self.uniform else tuple(sorted({classes[device] for device in devices}))

    @cached_property
    def _group_of(self) -> dict[int, tuple[int, ...]]:
        """A device of no group stands for one of the first: no plan has it."""
        unused = dict.fromkeys(range(self.network.cluster.size), self.groups[0])
        return unused | {device: own for own in self.groups for device in own}

    @remembered
    def _sums(self, device: int, rows: int, whole: bool) -> PrefixSeconds:
        graph = self.work.graph
        kinds = {block.kind for block in (*graph.blocks, graph.prologue)}
        each = {kind: self._block(kind, device, rows, whole) for kind in kinds}
        blocks = [each[block.kind] for block in graph.blocks]
        return PrefixSeconds(
            forward=exact_sums(block.forward for block in blocks),
            backward=exact_sums(block.backward for block in blocks),
            weight=exact_sums(block.weight for block in blocks),
            recompute=exact_sums(block.recompute for block in blocks),
            selective=exact_sums(block.selective for block in blocks),
            prologue=each[graph.prologue.kind].forward,
        )


def hidden_behind(busy: BlockSeconds, between: BlockSeconds) -> BlockSeconds:
    """What is left to see of communication cut into PIECES beside the products it belongs to: at least one of them."""

    def left(seconds: float, beside: float) -> float:
        return max(seconds / PIECES, seconds - beside)

    return BlockSeconds(
        forward=left(between.forward, busy.forward),
        backward=left(between.backward, busy.backward),
        recompute=left(between.recompute, busy.recompute),
        selective=left(between.selective, busy.selective),
    )
