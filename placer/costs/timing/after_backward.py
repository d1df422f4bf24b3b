"""Seconds of a stage beside and after its last backward: gradients added, reduced and summed, and the update.

`Costs` has one (`costs.after_backward`); with the degree of a replica above one, `devices` are the leaders of replicas;
`inner` of these devices are along the second axis, where there are two.
"""

from __future__ import annotations

from placer.cluster.cluster import Cluster
from placer.costs.communication.gradient_buckets import SIZES, exposed_seconds, least_exposed
from placer.costs.communication.intra_op import lines_of, moving_seconds
from placer.costs.communication.network import Network
from placer.costs.compute.roofline import memory_rate
from placer.costs.memory.block_ranges import BlockRanges
from placer.costs.timing.block import BlockTimes
from placer.costs.timing.offload import offloaded_seconds
from placer.costs.timing.optimizer import accumulate_seconds, bucket_seconds, gathering_seconds, update_seconds
from placer.costs.timing.stage import StageTimes
from placer.plans.plan import BY_FSDP, Sharding
from placer.plans.settings import RunSettings


class AfterBackward:
    """What the last backward of a stage is followed by, in seconds."""

    def __init__(
        self, cluster: Cluster, settings: RunSettings, *, ranges: BlockRanges, network: Network,
        block_times: BlockTimes, stage_times: StageTimes, degree: int, inner: int = 1,
    ) -> None:  # fmt: skip
        self.cluster = cluster
        self.settings = settings
        self.numerics = ranges.numerics
        self.ranges = ranges
        self.network = network
        self.block_times = block_times
        self.stage_times = stage_times
        self.degree = degree
        self.inner = inner

    def accumulate(self, first: int, last: int, *, device: int) -> float:
        """Seconds of adding new gradients to existing ones (whole ones: sharded state scatters only at the end)."""
        return accumulate_seconds(self.ranges.of(first, last).counts, self.numerics, self.cluster.devices[device])

    def reduction(
        self, first: int, last: int, *, devices: tuple[int, ...], rows: int, backward: float,
        sharding: Sharding = "none", alone: bool = False, bucket_bytes: int | None = None,
    ) -> float:  # fmt: skip
        """Seconds of gradient reduction that a last backward of `backward` seconds and `rows` rows does not hide.

        In buckets of `bucket_bytes` (None: of the best size), beside the last backward in a plan of one stage
        (`alone`), after it in others and over unlike devices; see `bucketing`. Sharded state scatters beside the last
        backward, block by block.
        """
        if len(devices) < 2 or rows == 0:
            return 0.0
        if sharding in BY_FSDP:
            return self.stage_times.gathers(devices, rows, sharding).scatter_seconds(first, last)
        held = self.ranges.of(first, last).counts
        size = (held.trainable - held.elsewhere) * self.numerics.weight_bytes
        if not size:
            return 0.0
        beside = alone and self.settings.overlap and not self.cluster.unlike(devices)
        return self.fused(devices, size, backward if beside else 0.0, bucket_bytes)

    def fused(self, devices: tuple[int, ...], size: float, beside: float, bucket_bytes: int | None) -> float:
        """Seconds of summing gradients of `size` bytes in buckets (None: the best ones) that `beside` does not hide."""

        def each(one: float) -> float:
            return self.bucket(devices, one)

        if bucket_bytes is None:
            return least_exposed(each, size, SIZES if beside else SIZES[-1:], beside)
        return exposed_seconds(each, size, bucket_bytes, beside)

    def bucket(self, devices: tuple[int, ...], size: float) -> float:
        """Seconds of summing a bucket of gradients: copied in, reduced, copied out."""
        slow = min((self.cluster.devices[d] for d in self.block_times.device_classes(devices)), key=memory_rate)
        return self.network.collective("all_reduce", devices, size, self.degree) + bucket_seconds(size, slow)

    def summed(self, first: int, last: int, *, device: int) -> float:
        """Seconds of summing, within a replica or along an axis of it, gradients that its devices have parts of."""
        if self.degree == 1:
            return 0.0
        held, devices = self.ranges.of(first, last).counts, self.block_times.replica(device)
        axes = (("", held.summed), (f"outer{self.inner}", held.summed_outer), (f"inner{self.inner}", held.summed_inner))
        return sum(
            moving_seconds("all_reduce", size * self.numerics.weight_bytes, self.network, lines_of(devices, axis))
            for axis, size in axes
            if size
        )

    def tied(
        self, first: int, last: int, *, devices: tuple[int, ...], others: tuple[int, ...], sharding: Sharding = "none"
    ) -> float:
        """Seconds of summing gradients of parameters an earlier stage holds, among `devices` and `others`.

        Of state that is sharded over as many devices each shard is summed among its holders.
        """
        size = self.ranges.of(first, last).tied
        if sharding not in BY_FSDP or len(devices) == 1 or len(others or devices) != len(devices):
            return self.network.collective("all_reduce", tuple(dict.fromkeys((*others, *devices))), size)
        pairs = zip(others or devices, devices, strict=True)
        return max(self.network.collective("all_reduce", tuple({a, b}), size / len(devices)) for a, b in pairs)

    def gathered(self, first: int, last: int, *, devices: tuple[int, ...], sharding: Sharding) -> float:
        """Seconds after the update in which replicas that have a part of the optimizer's state get all parameters."""
        if sharding != "optimizer":
            return 0.0
        return self.gather(devices, self.ranges.of(first, last).counts.trainable * self.numerics.weight_bytes)

    def gather(self, devices: tuple[int, ...], size: float) -> float:
        """Seconds of getting updated parameters of `size` bytes from those who have updated them: one gather."""
        if len(devices) < 2 or not size:
            return 0.0
        slow = min((self.cluster.devices[d] for d in self.block_times.device_classes(devices)), key=memory_rate)
        moved = self.network.collective("all_gather", devices, size, self.degree)
        return moved + gathering_seconds(size, slow, len(devices))

    def optimizer(self, first: int, last: int, *, device: int, sharding: Sharding = "none", replicas: int = 1) -> float:
        """Seconds of clipping (norm and scaling) and of the update, memory-bound passes over the device's state.

        Where hosts update all are taken for as slow as the slowest.
        """
        held = self.ranges.of(first, last).counts
        parts = replicas if sharding != "none" else 1
        seconds = update_seconds(held, self.numerics, self.settings, self.cluster.devices[device], parts)
        if self.settings.offload == "none":
            return seconds
        elements, nodes = held.trainable / parts, {node for node, _ in self.cluster.groups}
        return seconds + max(offloaded_seconds(elements, self.numerics, self.settings, node) for node in nodes)
