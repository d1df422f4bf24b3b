"""Seconds of one microbatch through a stage: forward, backward, recompute, and what gathers of sharded state add.

`StageTimes.stage` is of one device, `StageTimes.full` of the slowest replica of a `Stage`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from placer.costs.communication.collectives import CollectiveKind
from placer.costs.communication.fsdp import Gathers, gathers
from placer.costs.communication.network import Network
from placer.costs.memory.block_ranges import BlockRanges
from placer.costs.timing.block import BlockTimes
from placer.plans.plan import BY_FSDP, Sharding, Stage, replica_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSeconds:
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


class StageTimes:
    """StageTimes of stages over the blocks of `spans` on the devices of `channels`; remembers them."""

    def __init__(self, ranges: BlockRanges, block_times: BlockTimes, network: Network) -> None:
        self.ranges = ranges
        self.block_times = block_times
        self.network = network
        self._full: dict[tuple[Stage, int], StageSeconds] = {}
        self._gathers: dict[tuple[tuple[int, ...], int, Sharding], Gathers] = {}
        self._moves: dict[tuple[int, ...], tuple[list[float], list[float]]] = {}

    def stage(
        self, first: int, last: int, *, device: int, rows: int, recompute: bool, sharding: Sharding,
        devices: tuple[int, ...],
    ) -> StageSeconds:  # fmt: skip
        """Seconds of blocks first..last-1 for a microbatch of `rows` rows on `device`, which is one of `devices`."""
        if rows == 0:
            return StageSeconds()
        profile, end = self.block_times.of(device, rows), len(self.ranges.graph.blocks) - 1
        forward = profile.forward[last] - profile.forward[first]
        forward += profile.prologue if self.ranges.of(first, last).prologue else 0.0
        seconds = StageSeconds(
            forward=forward,
            backward=profile.backward[last] - profile.backward[first],
            weight=profile.weight[last] - profile.weight[first],
            recompute=profile.recompute[min(last, end)] - profile.recompute[min(first, end)] if recompute else 0.0,
        )
        if sharding not in BY_FSDP or len(devices) < 2:
            return seconds
        shown = self.gathers(devices, rows, sharding)
        return replace(
            seconds,
            gather_forward=shown.forward_seconds(first, last),
            gather_backward=shown.backward_seconds(first, last),
        )

    def full(self, stage: Stage, rows: int) -> StageSeconds:
        """Seconds of one microbatch of `rows` rows over all replicas, of the slowest replica."""
        found = self._full.get((stage, rows))
        if found is None:
            found = self._full[stage, rows] = self._slowest(stage, rows)
        return found

    def gathers(self, devices: tuple[int, ...], rows: int, sharding: Sharding) -> Gathers:
        """What collectives of state sharded over `devices` add to passes of `rows` rows."""
        key = (devices, rows, sharding)
        found = self._gathers.get(key)
        if found is None:
            found = self._gathers[key] = self._make_gathers(devices, rows, sharding)
        return found

    def _slowest(self, stage: Stage, rows: int) -> StageSeconds:
        each, kind = replica_rows(rows, stage.shares, stage.replicas), self.block_times.device_class
        if len(set(each)) == 1 and self.block_times.uniform:
            kinds = {(0, each[0]): (stage.devices[0], each[0])}
        else:
            kinds = {
                (kind[device], own): (device, own)
                for place, own in enumerate(each)
                for device in stage.devices[place * stage.degree : (place + 1) * stage.degree]
            }
        slowest = None
        for device, own in kinds.values():
            seconds = self.stage(
                stage.first, stage.last, device=device, rows=own, recompute=stage.recompute, sharding=stage.sharding,
                devices=stage.leaders,
            )  # fmt: skip
            slowest = seconds if slowest is None else slowest.slower(seconds)
        assert slowest is not None
        return slowest

    def _make_gathers(self, devices: tuple[int, ...], rows: int, sharding: Sharding) -> Gathers:
        profiles = [self.block_times.of(device, rows) for device in self.block_times.device_classes(devices)]
        gather, scatter = self._unit_moves(devices)
        return gathers(
            gather,
            scatter,
            np.min([np.diff(p.forward) for p in profiles], axis=0).tolist(),
            np.min([np.diff(p.backward) for p in profiles], axis=0).tolist(),
            regathers=sharding == "parameters",
            overlap=self.ranges.settings.overlap,
        )

    def _unit_moves(self, devices: tuple[int, ...]) -> tuple[list[float], list[float]]:
        """Seconds of each block's gather and scatter over `devices`; those of equal sizes are made once."""
        found = self._moves.get(devices)
        if found is None:
            item = self.ranges.numerics.weight_bytes
            held = [self.ranges.of(block, block + 1).counts for block in range(len(self.ranges.graph.blocks))]
            found = self._moves[devices] = (
                self._each("all_gather", devices, [own.parameters for own in held]),
                self._each("reduce_scatter", devices, [own.trainable * item for own in held]),
            )
        return found

    def _each(self, kind: CollectiveKind, devices: tuple[int, ...], sizes: list[int]) -> list[float]:
        degree = self.block_times.degree
        seconds = {size: self.network.collective(kind, devices, size, degree) for size in dict.fromkeys(sizes)}
        return [seconds[size] for size in sizes]
