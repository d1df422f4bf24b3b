"""Seconds of a stage beside and after its last backward: gradients added, reduced and summed, and the update.

With the degree of a replica above one, `devices` are the leaders of replicas. What happens to gradients and state
outside of the model's ops is all memory-bound.

Per element, with w bytes of a weight and of its gradient:

    accumulate   read both gradients, write one: 3 w, and w + 8 where 16 bits add up in float32 (AccumulateGrad)
    bucket       copy gradients in, results back: 4 w
    casting      where replicas sum in another type: `communication.compression`
    gathering    copy what was updated in, everything back: 2 w / parts + 2 w, on CPUs gloo once more (`fsdp`): 2 w
    norm         w (torch._foreach_norm)
    scaling      2 w
    masters      gradient to float32 w + 4, master to weight 4 + w; with `fusion` the update's kernel casts
    update       adamw: one kernel (torch/optim/adamw.py, `fused`, which this runtime asks for, and the fused kernels of
                 other stacks): gradient, weight and each state read, weight and each state written;
                 sgd, op by op: weight decay 3, momentum 5 if any, add 3; in one kernel with `fusion`

On a CPU each of these is a kernel per tensor; on a GPU torch runs lists of tensors (`_foreach`), some tens per kernel.

The optimizer's state may lie in the memory of the host, which then updates (settings.offload):

    seconds   latency + gradients over a device's link, and as many weights back; beside them the host reads and writes
              gradient, weight and each state once, at its share of the memory's bandwidth
    bytes     on the host: states and a copy of the weights at float32 (float64 at float64), and the gradients that came

Where devices are processes of a CPU, their memory is the host's: nothing moves.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import NamedTuple

from placer.cluster.cluster import Cluster, Device, Node
from placer.costs.communication.compression import cast_seconds
from placer.costs.communication.gloo import Copies, gloo_copies
from placer.costs.communication.gradient_buckets import SIZES, bucket_count, filled, least_exposed, seconds_after
from placer.costs.communication.intra_op import lines_of, moving_seconds
from placer.costs.communication.network import Network
from placer.costs.communication.reductions import AnyReduction
from placer.costs.communication.side_by_side import side_by_side, tied_lines
from placer.costs.compute.host_issue import handing_seconds
from placer.costs.compute.roofline import pass_seconds
from placer.costs.memory.block_ranges import BlockRanges
from placer.costs.memory.parameters import ParameterCounts
from placer.costs.precision import Numerics
from placer.costs.timing.stage import StageTimes
from placer.costs.workload import Workload
from placer.errors import UsageError
from placer.io.memo import remembered
from placer.plans.gradient_order import ready_order
from placer.plans.plan import BY_FSDP, Reduction, Sharding, Stage, replica_rows
from placer.plans.settings import RunSettings, state_count
from placer.spmd.cross_mesh import Mesh

# Tensors one multi-tensor kernel takes (ATen/native/cuda/MultiTensorApply.cuh: 110, 64, 48, 36 for depth 1 to 4).
TENSORS_PER_KERNEL = 36


class GradientSeconds(NamedTuple):
    """What happens to a stage's gradients after its last backward, and to its parameters after the update."""

    exposed: float
    summed: float
    gathered: float
    tied: float


@dataclass(frozen=True, eq=False)
class AfterBackward:
    """What the last backward of a stage is followed by, in seconds; the update is priced with `settings`.

    searched: the way in which all stages sum gradients where nothing has been chosen yet (None: as each of them says).
    """

    work: Workload
    settings: RunSettings
    ranges: BlockRanges
    stage_times: StageTimes
    network: Network
    searched: AnyReduction | None = None

    def gradients(self, stage: Stage, leading: Mesh, last_rows: int, bucket_bytes: int | None) -> GradientSeconds:
        """All that happens to a stage's gradients: reduced, summed, and parameters gathered after them."""
        first, last = stage.first, stage.last
        return GradientSeconds(
            self.exposed(stage, last_rows, bucket_bytes),
            self.summed(first, last, device=stage.devices[0], parts=stage.replicas if stage.by_fsdp else 1),
            self.gathered(first, last, devices=stage.leaders, sharding=stage.sharding),
            self.tied(stage, leading),
        )

    def exposed(self, stage: Stage, last_rows: int, bucket_bytes: int | None) -> float:
        """Seconds of reducing a stage's gradients that its last microbatch, of `last_rows` rows, does not hide."""
        return self.reduction(
            stage.first, stage.last, devices=stage.leaders,
            rows=max(replica_rows(last_rows, stage.shares, stage.replicas)),
            backward=self.stage_times.full(stage, last_rows).backward, sharding=stage.sharding,
            alone=stage.last - stage.first == len(self.work.graph.blocks), bucket_bytes=bucket_bytes,
            way=stage.reduction,
        )  # fmt: skip

    def best_reduction(self, stage: Stage, last_rows: int, bucket_bytes: int) -> Reduction:
        """The way to sum a stage's gradients that its last microbatch hides best, the first of equal ones.

        The one that is searched with instead, where its replicas have it; `flat` where they have one way.
        """
        ways, fixed = self.network.reductions(stage.leaders), self.searched
        if stage.replicas == 1 or stage.by_fsdp or len(ways) == 1:
            return "flat"
        if fixed is not None and fixed != "cheapest":
            return fixed if fixed in ways else "flat"
        told = replace(self, searched=None)
        return min(ways, key=lambda way: told.exposed(replace(stage, reduction=way), last_rows, bucket_bytes))

    def accumulate(self, first: int, last: int, *, device: int) -> float:
        """Seconds of adding new gradients to existing ones (whole ones: sharded state scatters only at the end)."""
        chip = self.network.cluster.devices[device]
        return accumulate_seconds(self.ranges.of(first, last).counts, self.work.numerics, chip)

    def reduction(
        self, first: int, last: int, *, devices: tuple[int, ...], rows: int, backward: float,
        sharding: Sharding = "none", alone: bool = False, bucket_bytes: int | None = None,
        way: AnyReduction = "cheapest",
    ) -> float:  # fmt: skip
        """Seconds of gradient reduction that a last backward of `backward` seconds and `rows` rows does not hide.

        In buckets of `bucket_bytes` (None: of the best size), beside the last backward in a plan of one stage
        (`alone`), after it in others and over unlike devices; see `gradient_buckets`. Sharded state scatters beside the
        last backward, block by block.
        """
        if len(devices) < 2 or rows == 0:
            return 0.0
        if sharding in BY_FSDP:
            rooted = self.ranges.parameters.rooted(first, last)
            return self.stage_times.gathers(devices, rows, sharding, rooted).scatter_seconds(first, last)
        counts = self.ranges.of(first, last).counts
        size = (counts.trainable - counts.elsewhere) * self.work.numerics.weight_bytes
        if not size:
            return 0.0
        if not alone or not self.work.settings.overlap or self.network.cluster.unlike(devices):
            return self.fused(devices, size, bucket_bytes, way)
        choices = [self._buckets(one) for one in (SIZES if bucket_bytes is None else (bucket_bytes,))]
        asked, beside = self.searched or way, self.hidden(devices) * backward
        # All buckets of a plan are summed in one way: the cheapest of each size may not be the same.
        ways = self.network.reductions(devices) if asked == "cheapest" else ()
        return min(least_exposed(partial(self._summing, devices, way=one), choices, beside) for one in ways or (asked,))

    @remembered
    def _buckets(self, bucket_bytes: int) -> tuple[int, ...]:
        """The buckets of a plan of one stage."""
        return filled(self._ready, bucket_bytes)

    @cached_property
    def _ready(self) -> tuple[int, ...]:
        """Bytes of the gradients of the model, in the order in which they become ready."""
        graph, item = self.work.graph, self.work.numerics.weight_bytes
        placed = (zip(one.parameters, graph.classes[one.kind].parameters, strict=True) for one in graph.blocks)
        held = {name: parameter for own in placed for name, parameter in own} | dict(self.work.kept_whole)
        sizes = {name: parameter.elements * item for name, parameter in held.items()}
        return tuple(sizes[name] for name in ready_order(self.work.whole, 0, len(graph.blocks)))

    def hidden(self, devices: tuple[int, ...]) -> float:
        """The share of a backward on `devices` that can run beside sums, for which all of them wait."""
        classes = self.stage_times.block_times.device_classes(devices)
        return min(self.network.cluster.devices[d].hidden for d in classes)

    def fused(
        self, devices: tuple[int, ...], size: float, bucket_bytes: int | None, way: AnyReduction = "cheapest"
    ) -> float:
        """Seconds of summing gradients of `size` bytes in buckets (None: the best ones), which nothing hides."""
        of_one = partial(self.bucket, devices, way=way)
        if bucket_bytes is not None or "hierarchical" not in self.network.reductions(devices):
            return seconds_after(of_one, size, bucket_bytes or SIZES[-1])
        return min(count * of_one(size / count) for count in {bucket_count(size, one) for one in SIZES})

    def bucket(self, devices: tuple[int, ...], size: float, way: AnyReduction = "cheapest") -> float:
        """Seconds of summing a bucket of gradients of `size` bytes: copied in, reduced, copied out; cast between."""
        return self._summing(devices, size, self.searched or way)

    def _summing(self, devices: tuple[int, ...], size: float, way: AnyReduction) -> float:
        """The same, in this way whatever is searched with."""
        numerics, slowest = self.work.numerics, self.stage_times.with_slowest_memory(devices)
        moved = numerics.between_replicas(size)
        seconds = self.network.gradient_sum(devices, moved, way, self.work.degree)
        seconds += bucket_seconds(size, slowest)
        return seconds + cast_seconds(size, moved, slowest) if numerics.casts_between_replicas else seconds

    def summed(self, first: int, last: int, *, device: int, parts: int = 1) -> float:
        """Seconds of summing, within a replica or along an axis of it, gradients that its devices have parts of.

        Of state that is sharded each device sums its shard of them, one of so many `parts`.
        """
        if self.work.degree == 1:
            return 0.0
        counts, devices = self.ranges.of(first, last).counts, self.stage_times.block_times.replica(device)
        inner, numerics = self.work.inner, self.work.numerics
        item = numerics.summed(numerics.weight_bytes)
        axes = (("", counts.summed), (f"outer{inner}", counts.summed_outer), (f"inner{inner}", counts.summed_inner))
        return sum(
            moving_seconds("all_reduce", size * item / parts, self.network, lines_of(devices, axis))
            for axis, size in axes
            if size
        )

    def tied(self, stage: Stage, leading: Mesh) -> float:
        """Seconds of summing gradients of parameters an earlier stage holds, among the first position's devices too.

        Each parameter's is summed by itself. Of state that is sharded over as many devices each shard is summed among
        its holders. All devices of replicas sum at once, each with those that stand like it.
        """
        sizes = Counter(self.ranges.of(stage.first, stage.last).tied)
        return sum(count * self._tied(stage, leading, size) for size, count in sizes.items())

    def _tied(self, stage: Stage, leading: Mesh, made: int) -> float:
        """Seconds of one of them, of so many bytes."""
        size, degree = self.work.numerics.summed(made), self.work.degree
        if leading.degree != degree:
            return self.network.collective("all_reduce", tuple(dict.fromkeys((*leading.devices, *stage.devices))), size)
        by_shard = stage.by_fsdp and len(leading.devices) == len(stage.devices)
        lines = tied_lines(leading.devices, stage.devices, degree, by_shard=by_shard)
        shared, part = side_by_side(self.network.cluster, lines), size / stage.replicas if by_shard else size
        each = zip(lines[::degree], shared[::degree], strict=True)  # those of the first devices of replicas
        return max(self.network.collective("all_reduce", line, part, groups) for line, groups in each)

    def gathered(self, first: int, last: int, *, devices: tuple[int, ...], sharding: Sharding) -> float:
        """Seconds after the update in which replicas that have a part of the optimizer's state get all parameters."""
        if sharding != "optimizer":
            return 0.0
        return self.gather(devices, self.ranges.of(first, last).counts.trainable * self.work.numerics.weight_bytes)

    def gather(self, devices: tuple[int, ...], size: float) -> float:
        """Seconds of getting updated parameters of `size` bytes from those who have updated them: one gather."""
        if len(devices) < 2 or not size:
            return 0.0
        moved = self.network.collective("all_gather", devices, size, self.work.degree)
        slowest, parts = self.stage_times.with_slowest_memory(devices), len(devices)
        own = gloo_copies(parts) if self.network.cluster.on_cpus(devices) else Copies(0, 0)
        copied = pass_seconds(slowest, own.passes * size, own.kernels)
        return moved + gathering_seconds(size, slowest, parts) + copied

    def optimizer(self, first: int, last: int, *, device: int, sharding: Sharding = "none", replicas: int = 1) -> float:
        """Seconds of clipping (norm and scaling) and of the update, memory-bound passes over the device's state.

        Where hosts update all are taken for as slow as the slowest.
        """
        counts = self.ranges.of(first, last).counts
        parts = replicas if sharding != "none" else 1
        seconds = update_seconds(counts, self.work.numerics, self.settings, self.network.cluster.devices[device], parts)
        if self.settings.offload == "none":
            return seconds
        elements, nodes = counts.trainable / parts, {node for node, _ in self.network.cluster.groups}
        return seconds + max(offloaded_seconds(elements, self.work.numerics, self.settings, node) for node in nodes)


def accumulate_seconds(counts: ParameterCounts, numerics: Numerics, device: Device) -> float:
    """Seconds of adding one microbatch's gradients to those of earlier ones."""
    sums = numerics.summed(numerics.weight_bytes) if numerics.casts else numerics.weight_bytes
    return pass_seconds(device, (numerics.weight_bytes + 2 * sums) * counts.trainable, counts.tensors)


def bucket_seconds(size: float, device: Device) -> float:
    """Seconds of copying a bucket of `size` bytes in and out."""
    return pass_seconds(device, 4 * size, 2)


def gathering_seconds(size: float, device: Device, parts: int) -> float:
    """Seconds of copying parameters of `size` bytes, of which this device has one of `parts`, in and out."""
    return pass_seconds(device, 2 * size * (1 + 1 / parts), 2)


def update_seconds(
    counts: ParameterCounts, numerics: Numerics, settings: RunSettings, device: Device, parts: int = 1
) -> float:
    """Seconds of clipping and updating state that is divided into `parts`, on one device."""
    size, kernels = update_bytes(numerics, settings), _kernels(numerics, settings)
    each = 1 if device.backend == "cpu" else TENSORS_PER_KERNEL
    busy = pass_seconds(device, counts.trainable * size / parts, -(-counts.tensors // each) * kernels)
    return max(busy, handing_seconds(device, settings, counts.tensors, cast=numerics.masters))


def update_bytes(numerics: Numerics, settings: RunSettings) -> int:
    """Bytes per element of clipping and updating; of clipping alone where the host updates (settings.offload)."""
    weight = numerics.weight_bytes
    kept = 4 if numerics.masters else weight
    size = 0
    if settings.clip_norm is not None:
        size += 3 * weight
    if settings.offload == "optimizer":
        return size
    states = state_count(settings)
    if settings.fusion:
        return size + weight + kept * (2 * states + 2) + (weight if numerics.masters else 0)
    if numerics.masters:
        size += 2 * (weight + 4)
    if settings.optimizer == "adamw":
        return size + kept * (2 * states + 3)
    return size + kept * (3 + 3 * bool(settings.weight_decay) + 5 * states)


def _kernels(numerics: Numerics, settings: RunSettings) -> int:
    """Kernels per tensor, or per list of tensors."""
    clipping = 2 * (settings.clip_norm is not None)
    if settings.offload == "optimizer":
        return clipping
    if settings.fusion:
        return clipping + 1
    return clipping + (1 if settings.optimizer == "adamw" else 3) + 2 * numerics.masters


def heeds(settings: RunSettings, cluster: Cluster) -> bool:
    """Whether `cluster` does as the settings say: not where devices have all state on their host anyway.

    Raises UsageError where it says nothing of a host that is needed.
    """
    if settings.offload == "none":
        return True
    if all(device.backend == "cpu" for node, _ in cluster.groups for device, _ in node.devices):
        return False
    unknown = [node.name for node, _ in cluster.groups if node.host is None]
    if unknown:
        raise UsageError(
            f"offload=optimizer needs the host of node {unknown[0]}, of which cluster {cluster.name} says nothing; add "
            "to the node in a cluster file, as in host: {link: pcie5, memory_bandwidth: 600 GB/s}"
        )
    return True


def offloaded_seconds(elements: float, numerics: Numerics, settings: RunSettings, node: Node) -> float:
    """Seconds of moving and updating so many elements of each device of `node`: on the host as any CPU does it."""
    if node.host is None or not elements:
        return 0.0
    link, weight = node.host.link, numerics.weight_bytes
    moved = 2 * link.latency_seconds
    moved += elements * (numerics.summed(weight) + weight) / (link.bandwidth * link.share * link.ports)
    passes = update_bytes(numerics, replace(settings, offload="none", clip_norm=None, fusion=False))
    return moved + elements * passes * node.size / node.host.memory_bandwidth


def host_bytes(numerics: Numerics, settings: RunSettings) -> int:
    """Bytes on the host per element that is updated there: states, a copy, its gradient, for masters in float32 too."""
    gradient = int(numerics.summed(numerics.weight_bytes))
    return kept_bytes(numerics) * (state_count(settings) + 1 + numerics.masters) + gradient


def kept_bytes(numerics: Numerics) -> int:
    """Bytes per element of each state."""
    return 8 if numerics.weights == "float64" else 4
