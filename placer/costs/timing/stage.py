"""Seconds of a microbatch through a stage of blocks.

A stage is its forward, backward and recompute, and what gathers of sharded state add. `StageTimes.stage` is of one
device, `StageTimes.full` of the slowest replica of a `Stage`.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from placer.cluster.cluster import Device
from placer.costs.communication.collectives import CollectiveKind
from placer.costs.communication.compression import cast_seconds
from placer.costs.communication.fsdp import GATHER_HOOKS, SCATTER_HOOKS, Gathers, copies, gathers
from placer.costs.compute.roofline import memory_rate, pass_seconds
from placer.costs.memory.block_ranges import BlockRanges
from placer.costs.memory.parameters import ParameterCounts, Rooted
from placer.costs.timing.block import BlockTimes
from placer.costs.workload import Workload
from placer.io.memo import once, remembered
from placer.plans.plan import BY_FSDP, Again, Sharding, Stage, replica_rows


class StageSeconds(NamedTuple):
    """Seconds of one microbatch on one device of a stage. `backward` without recompute; `weight` is a part of it.

    `gather_forward` and `gather_backward` are what the collectives of sharded state add to each pass.
    """

    forward: float = 0.0
    backward: float = 0.0
    weight: float = 0.0
    recompute: float = 0.0
    gather_forward: float = 0.0
    gather_backward: float = 0.0

    @property
    def whole_backward(self) -> float:
        """Everything between a gradient's arrival and its leaving."""
        return self.backward + self.recompute + self.gather_backward

    def slower(self, other: StageSeconds) -> StageSeconds:
        """Of each pass the larger."""
        return StageSeconds(
            forward=max(self.forward, other.forward),
            backward=max(self.backward, other.backward),
            weight=min(self.weight, other.weight),
            recompute=max(self.recompute, other.recompute),
            gather_forward=max(self.gather_forward, other.gather_forward),
            gather_backward=max(self.gather_backward, other.gather_backward),
        )


@dataclass(frozen=True, eq=False)
class StageTimes:
    """Times of stages over the blocks of `ranges`; remembers them."""

    work: Workload
    ranges: BlockRanges
    block_times: BlockTimes
    _gathers: dict[Hashable, Gathers] = field(default_factory=dict)

    def stage(
        self, first: int, last: int, *, device: int, rows: int, recompute: Again = False,
        sharding: Sharding = "none", devices: tuple[int, ...] = (),
    ) -> StageSeconds:  # fmt: skip
        """Seconds of blocks first..last-1 for a microbatch of `rows` rows on `device`, which is one of `devices`."""
        if rows == 0:
            return StageSeconds()
        profile = self.block_times.of(device, rows, whole=last - first == len(self.work.graph.blocks))
        forward = profile.forward[last] - profile.forward[first]
        forward += profile.prologue if self.ranges.of(first, last).prologue else 0.0
        seconds = StageSeconds(
            forward=forward,
            backward=profile.backward[last] - profile.backward[first],
            weight=profile.weight[last] - profile.weight[first],
            recompute=profile.again(first, last, recompute),
        )
        if sharding not in BY_FSDP or len(devices) < 2:
            return seconds
        shown = self.gathers(devices, rows, sharding, self.ranges.parameters.rooted(first, last))
        return seconds._replace(
            gather_forward=shown.forward_seconds(first, last), gather_backward=shown.backward_seconds(first, last)
        )

    @remembered
    def full(self, stage: Stage, rows: int) -> StageSeconds:
        """Seconds of one microbatch of `rows` rows over all replicas, of the slowest replica."""
        leaders, slowest = stage.leaders, None
        for device, own in self._loads(stage, rows):
            seconds = self.stage(
                stage.first, stage.last, device=device, rows=own, recompute=stage.again, sharding=stage.sharding,
                devices=leaders,
            )  # fmt: skip
            slowest = seconds if slowest is None else slowest.slower(seconds)
        assert slowest is not None
        return slowest

    def _loads(self, stage: Stage, rows: int) -> Collection[tuple[int, int]]:
        """A device of each class with so many rows of its replica's, and those."""
        each, kind = replica_rows(rows, stage.shares, stage.replicas), self.block_times.device_class
        if 0 in each:
            each = tuple([own or self.least_rows(stage) for own in each])
        if self.block_times.uniform:
            return [(stage.devices[0], own) for own in dict.fromkeys(each)]
        return {
            (kind[device], own): (device, own)
            for place, own in enumerate(each)
            for device in stage.devices[place * stage.degree : (place + 1) * stage.degree]
        }.values()

    def least_rows(self, stage: Stage) -> int:
        """Rows that a replica without rows computes: DDP and FSDP2, whose others wait for it, let it repeat one."""
        cluster, alone = self.block_times.network.cluster, stage.last - stage.first == len(self.work.graph.blocks)
        by_ddp = alone and self.work.settings.overlap and not cluster.unlike(stage.devices)
        return int(stage.replicas > 1 and (stage.by_fsdp or by_ddp))

    @remembered
    def gathers(self, devices: tuple[int, ...], rows: int, sharding: Sharding, rooted: Rooted) -> Gathers:
        """What collectives of state sharded over `devices` add to passes of `rows` rows of a stage; `rooted`: what its
        root holds."""
        key = self._standing(devices), rows, sharding, rooted
        return once(self._gathers, key, self._gathered, devices, rows, sharding, rooted)

    @remembered
    def _standing(self, devices: tuple[int, ...]) -> Hashable:
        """What the seconds of collectives of state sharded over `devices` depend on: their classes, whether some are
        CPUs, and the levels between them. Most groups of as many devices have these in common."""
        times, cluster = self.block_times, self.block_times.network.cluster
        levels = times.network.levels(devices, self.work.degree)
        return times.device_classes(devices), cluster.on_cpus(devices), levels

    def _gathered(self, devices: tuple[int, ...], rows: int, sharding: Sharding, rooted: Rooted) -> Gathers:
        classes = self.block_times.device_classes(devices)
        sums = [self.block_times.of(device, rows, whole=True) for device in classes]
        (*gather, first), (*scatter, last) = self._unit_moves(devices, rooted)
        (*copied, copied_first), (*added, added_last) = self._unit_copies(devices, rooted)
        return gathers(
            gather,
            scatter,
            np.min([np.diff(one.forward) for one in sums], axis=0).tolist(),
            np.min([np.diff(one.backward) for one in sums], axis=0).tolist(),
            copied,
            added,
            root=(first + copied_first, last + added_last),
            regathers=sharding == "parameters",
            overlap=self.work.settings.overlap and not self.block_times.network.cluster.on_cpus(devices),
        )

    def _units(self, rooted: Rooted) -> list[ParameterCounts]:
        """What the unit of each block holds, and behind them the root."""
        held = self.ranges.parameters
        return [*(held.unit(block, rooted) for block in range(len(self.work.graph.blocks))), held.root(rooted)]

    @remembered
    def _unit_moves(self, devices: tuple[int, ...], rooted: Rooted) -> tuple[list[float], list[float]]:
        """Seconds of each unit's gather and scatter over `devices`; those of equal sizes are made once."""
        item, counts = self.work.numerics.weight_bytes, self._units(rooted)
        return (
            self._each("all_gather", devices, [one.parameters for one in counts]),
            self._scatters(devices, [one.trainable * item for one in counts]),
        )

    def _scatters(self, devices: tuple[int, ...], sizes: list[int]) -> list[float]:
        """Seconds of scattering gradients of these bytes, cast to those in which replicas sum."""
        moved = [self.work.numerics.between_replicas(size) for size in sizes]
        found = self._each("reduce_scatter", devices, moved)
        if not self.work.numerics.casts_between_replicas:
            return found
        slowest, parts = self.with_slowest_memory(devices), len(devices)
        return [
            seconds + cast_seconds(size, sent, slowest, parts)
            for seconds, size, sent in zip(found, sizes, moved, strict=True)
        ]

    @remembered
    def _unit_copies(self, devices: tuple[int, ...], rooted: Rooted) -> tuple[list[float], list[float]]:
        """Seconds of what each unit's gather and scatter copy beside what they move (`fsdp.copies`)."""
        slowest, item, counts = self.with_slowest_memory(devices), self.work.numerics.weight_bytes, self._units(rooted)
        on_cpus = self.block_times.network.cluster.on_cpus(devices)
        out, into = copies(len(devices), on_cpus=on_cpus)
        ahead, behind = (GATHER_HOOKS, SCATTER_HOOKS) if on_cpus else (0.0, 0.0)
        gathered = [(out.passes * one.parameters, ahead * (one.parameters > 0)) for one in counts]
        scattered = [(into.passes * one.trainable * item, behind * (one.trainable > 0)) for one in counts]
        return (
            [hooks + pass_seconds(slowest, size, out.kernels) for size, hooks in gathered],
            [hooks + pass_seconds(slowest, size, into.kernels) for size, hooks in scattered],
        )

    def with_slowest_memory(self, devices: tuple[int, ...]) -> Device:
        """Of `devices` one with the slowest memory."""
        chips = (self.block_times.network.cluster.devices[d] for d in self.block_times.device_classes(devices))
        return min(chips, key=memory_rate)

    def _each(self, kind: CollectiveKind, devices: tuple[int, ...], sizes: Sequence[float]) -> list[float]:
        network, degree = self.block_times.network, self.work.degree
        seconds = {size: network.collective(kind, devices, size, degree) for size in dict.fromkeys(sizes)}
        return [seconds[size] for size in sizes]
