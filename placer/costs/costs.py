"""Costs: seconds and bytes of one Graph on one Cluster under one RunSettings; `estimates` makes them a Ledger.

Everything the estimate is made of is public here, so that searches and the simulator use the very same numbers:

    stage(first, last, ...)        StageSeconds of one microbatch on one device: forward, backward, recompute, gathers
    transfer(first, last, ...)     seconds of what a stage sends on, and of the gradients it gets back, per microbatch
    tails                          what follows the last backward of a stage (`AfterBackward`):
        .accumulate(first, last, ...)  seconds of adding a microbatch's gradients to those that exist already
        .reduction(first, last, ...)   seconds of gradient reduction that the last backward does not hide
        .tied(first, last, ...)        seconds of summing gradients of parameters that an earlier stage holds too
        .optimizer(first, last, ...)   seconds of clipping and of the update
        .gathered(first, last, ...)    seconds of getting the parameters that other replicas updated
    fixed(devices)                 seconds of the world's own collectives: loss, and norm if gradients are clipped
    memory(stages, ...)            the device of a position with least bytes to spare, and its MemoryBytes
    stage_cost(...)                all of the above of one stage as a `StageCost`

The step time, for p positions, m microbatches (rows largest first, only the last may be smaller), v stages per position
(v = 1 unless interleaved), is (`steptime.step_seconds`; `steptime.terms` gives the three numbers of one stage):

    step = sum over stages fill_s + max over positions steady_j + max over positions tail_j + fixed

    F_s = forward + gather_forward    B_s = backward + recompute + gather_backward    X_s = both messages after stage s
    recompute: forward of every block of the stage but the model's last one, whose backward follows at once
    A_s = accumulate                   ' marks the last microbatch; steady_j, tail_j sum over the stages of position j

    1f1b          fill = F + B + X
                  steady = (m-2) (F + B) + F' + B' + (m-1) A + ((m-1) - ceil((m-1)/p)) X             (m = 1: 0)
    gpipe         that of 1f1b, but (m-1) X
    interleaved   fill = (F + B + X) / v
                  steady = that of 1f1b, its stalls / v, + (1 - 1/v) (F + B + max(0, p (F + B + X) - m (F + B)))
    zero-bubble   fill = F + B + X - hidden,  hidden = W + min(W, F, B - W) min(1, (m-1)/(p-1))  (p = 1: 0)
                  steady = that of 1f1b + hidden
    tail          = reduction' + tied + optimizer + gathered
    fixed         = loss (+ norm)

fill and tail of a stage depend on that stage, its devices and the next stage's devices only. A stage's X is of all
values made in it and read later, also of those that skip stages (they are sent once to each reader; the closed form
counts them once, on the way to the next stage); between meshes that differ it is that of `exchanges`. `tied` is reduced
among the stage's and the first position's devices.
Every part grows with bytes, FLOPs and latency and falls with rates and bandwidths, hence so does the step.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from itertools import pairwise

from placer.cluster.cluster import Backend, Cluster
from placer.costs.communication.collectives import CollectiveKind
from placer.costs.communication.cross_mesh import MeshMessages
from placer.costs.communication.mixed_allreduce import require_hosts
from placer.costs.communication.network import Network, TransferSeconds
from placer.costs.compute.roofline import memory_rate
from placer.costs.memory.block_ranges import BlockRanges
from placer.costs.memory.in_flight import InFlight, microbatches_in_flight
from placer.costs.memory.peak import StageMemory, position_memory, stage_memory
from placer.costs.precision import Numerics
from placer.costs.timing.after_backward import AfterBackward
from placer.costs.timing.block import BlockTimes
from placer.costs.timing.offload import heeds
from placer.costs.timing.stage import StageSeconds, StageTimes
from placer.costs.timing.step import StageCost
from placer.graph import Affine, Graph, affine_sum
from placer.plans.ledger import MemoryBytes
from placer.plans.plan import Layout, Plan, Sharding, Stage, replica_rows
from placer.plans.settings import RunSettings
from placer.spmd.cross_mesh import Mesh
from placer.spmd.device_graph import local_graph
from placer.spmd.parameter_layouts import kept_whole


class Costs:
    """Costs of `graph` on `cluster` under `settings`; remembers what it computed.

    With a `degree` the graph is that of one of the devices of a replica; `devices` are then those of all replicas,
    replica by replica. Sizes of the graph count rows of which a replica has `apart` times as many; rows given here are
    always a replica's. `under(layout)` gives the Costs of the graph so cut. `whole` is then the graph of all devices
    of a replica, `layout` how it is cut, and the numbers of the first devices of replicas leave the remainder `offset`
    when they are divided by the degree.
    """

    def __init__(
        self, graph: Graph, cluster: Cluster, settings: RunSettings, degree: int = 1, apart: int = 1, *,
        offset: int = 0, whole: Graph | None = None, layout: Layout | None = None,
    ) -> None:  # fmt: skip
        require_hosts(cluster)
        self.graph = graph
        self.layout = layout
        self.cluster = cluster
        self.settings = settings
        #: What the update is priced with: without an offload that moves nothing.
        self.priced = settings if heeds(settings, cluster) else replace(settings, offload="none")
        self.degree = degree
        self.apart = apart
        self.numerics = Numerics.of(graph, settings)
        uncut = {} if whole is None or layout is None else kept_whole(whole, layout)
        self._ranges = {one: BlockRanges(graph, self.numerics, settings, apart, uncut, one) for one in cluster.backends}
        #: Of accelerators where there are some: their kernels keep no more than those of CPUs.
        self.ranges = self._ranges.get("cuda") or self._ranges["cpu"]
        self.network = Network(cluster)
        self.exchanges = MeshMessages(whole or graph, self.numerics, self.network)
        self.block_times = BlockTimes(graph, self.network, self.numerics, settings, degree, apart, offset)
        self.stage_times = StageTimes(self.ranges, self.block_times, self.network)
        self.after_backward = AfterBackward(
            cluster, self.priced, ranges=self.ranges, network=self.network, block_times=self.block_times,
            stage_times=self.stage_times, degree=degree, inner=1 if layout is None else layout.inner,
        )  # fmt: skip
        self._costs: dict[object, StageCost] = {}
        self._memory: dict[object, tuple[int, MemoryBytes]] = {}
        self._under: dict[tuple[int, int], Costs] = {}

    def under(self, layout: Layout | None, offset: int = 0) -> Costs:
        """The costs of the graph cut as `layout` says; these, where there is none.

        Replicas begin at devices whose numbers leave the remainder `offset` when they are divided by the degree.
        """
        if layout is None:
            return self
        known = self._under.get((id(layout), offset))
        if known is None:
            known = self._under[id(layout), offset] = Costs(
                local_graph(self.graph, layout, self.settings.expert_loads), self.cluster, self.settings,
                layout.degree, layout.apart, offset=offset, whole=self.graph, layout=layout,
            )  # fmt: skip
        return known

    def of_stage(self, plan: Plan, stage: Stage) -> Costs:
        """The costs of the graph as a stage of `plan` cuts it."""
        layout = None if stage.layout is None else plan.layouts[stage.layout]
        if layout is None or self.under(layout).block_times.holds(stage):
            return self.under(layout)
        # Replicas of devices in any other order are priced as if they stood one after the other.
        runs = all(b == a + 1 for a, b in pairwise(stage.devices))
        return self.under(layout, stage.devices[0] % stage.degree if runs else 0)

    def stage(
        self, first: int, last: int, *, device: int, rows: int, recompute: bool = False, sharding: Sharding = "none",
        replicas: int = 1, devices: tuple[int, ...] = (),
    ) -> StageSeconds:  # fmt: skip
        """Seconds of blocks first..last-1 for a microbatch of `rows` rows per replica on `device`.

        Replicas are `devices`, or the `replicas` devices from `device` on.
        """
        return self.stage_times.stage(
            first, last, device=device, rows=rows, recompute=recompute, sharding=sharding,
            devices=devices or tuple(range(device, device + replicas)),
        )  # fmt: skip

    def transfer(
        self, first: int, last: int, source: tuple[int, ...], target: tuple[int, ...], rows: int
    ) -> TransferSeconds:
        """Seconds of what the blocks on `source` send on to `target` per microbatch of `rows` rows a replica."""
        span = self.ranges.of(first, last)
        if not span.messages:
            return TransferSeconds()
        returned = span.returned.at(rows) if any(span.returned) else None
        return self.network.transfer(source, target, sent=span.sent.at(rows), returned=returned)

    def message(self, source: int, target: int, size: int) -> float:
        """Seconds of one message of `size` bytes between two devices."""
        return self.network.message(source, target, size)

    def collective(self, kind: CollectiveKind, devices: tuple[int, ...], size: float) -> float:
        """Seconds of a collective over `devices` on a buffer of `size` bytes."""
        return self.network.collective(kind, devices, size)

    def fixed(self, devices: tuple[int, ...]) -> float:
        """Seconds of the world's own collectives: the loss, and the norm if gradients are clipped."""
        return (1 + (self.settings.clip_norm is not None)) * self.collective("all_reduce", devices, 8)

    def stage_cost(
        self, first: int, last: int, *, devices: tuple[int, ...], following: tuple[int, ...] | Mesh,
        leading: tuple[int, ...] | Mesh, rows: int, last_rows: int, sharding: Sharding = "none",
        recompute: bool = False, shares: tuple[int, ...] = (), bucket_bytes: int | None = None,
    ) -> StageCost:  # fmt: skip
        """Everything the step time needs of one stage; `rows`, `last_rows` of a full and of the last microbatch.

        Gradients go in buckets of `bucket_bytes`, None: of the size that is best for the stage.

        `following` are the next stage's devices (empty for the last stage), `leading` the first position's; of a mesh
        that differs from this stage's in its replicas, shares, degree or layout they are a `Mesh`.
        """
        key = (first, last, devices, following, leading, rows, last_rows, sharding, recompute, shares, bucket_bytes)
        found = self._costs.get(key)
        if found is None:
            found = self._costs[key] = self._stage_cost(
                Stage(
                    first=first, last=last, devices=devices, shares=shares, sharding=sharding, recompute=recompute,
                    degree=self.degree,
                ),
                following, leading, rows, last_rows, bucket_bytes,
            )  # fmt: skip
        return found

    def full(self, stage: Stage, rows: int) -> StageSeconds:
        """Seconds of one microbatch of `rows` rows over all replicas, of the slowest replica."""
        return self.stage_times.full(stage, rows)

    def reduced(self, stage: Stage, last_rows: int, bucket_bytes: int | None) -> float:
        """Seconds of reducing a stage's gradients that its last microbatch, of `last_rows` rows, does not hide."""
        return self.after_backward.reduction(
            stage.first, stage.last, devices=stage.leaders,
            rows=max(replica_rows(last_rows, stage.shares, stage.replicas)),
            backward=self.full(stage, last_rows).backward, sharding=stage.sharding,
            alone=stage.last - stage.first == len(self.graph.blocks), bucket_bytes=bucket_bytes,
        )  # fmt: skip

    def memory(
        self, stages: tuple[Stage, ...], *, schedule: str, positions: int, position: int, microbatches: int,
        total_stages: int, rows: int,
    ) -> tuple[int, MemoryBytes]:  # fmt: skip
        """The device of a position that holds `stages` with least bytes to spare, and what it holds.

        `rows` are those of the largest microbatch.
        """
        own = microbatches_in_flight(schedule, positions, total_stages, microbatches)[position]
        key = (stages, own, rows, microbatches > 1)
        found = self._memory.get(key)
        if found is None:
            found = self._memory[key] = self._tightest(stages, own, rows, accumulates=microbatches > 1)
        return found

    def costs_of(self, plan: Plan) -> tuple[StageCost, ...]:
        """The `StageCost` of each stage of a plan."""
        meshes = [Mesh.of(plan, stage) for stage in plan.stages]
        following: list[Mesh | tuple[int, ...]] = [*meshes[1:], ()]
        return tuple(
            self.of_stage(plan, stage).stage_cost(
                stage.first, stage.last, devices=stage.devices, following=after, leading=meshes[0],
                rows=plan.microbatches[0], last_rows=plan.microbatches[-1], sharding=stage.sharding,
                recompute=stage.recompute, shares=stage.shares, bucket_bytes=plan.bucket_bytes,
            )
            for stage, after in zip(plan.stages, following, strict=True)
        )  # fmt: skip

    def flops(self, rows: int) -> int:
        """Forward and backward FLOPs of the model for `rows` rows."""
        return self._flops.at(rows)

    def _mesh(self, stage: Stage, other: tuple[int, ...] | Mesh) -> Mesh:
        """The mesh of other devices, which are divided as those of `stage` where nothing else is said."""
        if isinstance(other, Mesh):
            return other
        return Mesh(devices=other, shares=stage.shares, degree=self.degree, layout=self.layout)

    def _sent(self, stage: Stage, following: Mesh, rows: int) -> TransferSeconds:
        """Seconds of a microbatch's messages after a stage."""
        if not following.devices or following.devices == stage.devices:
            return TransferSeconds()
        own, values = self._mesh(stage, stage.devices), self.ranges.leaving(stage.first, stage.last)
        if self.exchanges.alike(values, own, following):
            most = max(replica_rows(rows, stage.shares, stage.replicas))
            return self.transfer(stage.first, stage.last, stage.devices, following.devices, most)
        return self.exchanges.transfer(values, own, following, rows)

    def _tied(self, stage: Stage, leading: Mesh) -> float:
        """Seconds of summing gradients of parameters that the first position may hold too."""
        others = () if leading.devices == stage.devices else leading.devices
        if leading.degree == self.degree:
            return self.after_backward.tied(
                stage.first, stage.last, devices=stage.leaders, others=others[:: self.degree], sharding=stage.sharding
            )
        return self.after_backward.tied(stage.first, stage.last, devices=stage.devices, others=others)

    def _stage_cost(
        self, stage: Stage, following: tuple[int, ...] | Mesh, leading: tuple[int, ...] | Mesh, rows: int,
        last_rows: int, bucket_bytes: int | None,
    ) -> StageCost:  # fmt: skip
        full, last = self.full(stage, rows), self.full(stage, last_rows)
        slow = min(stage.devices, key=lambda d: memory_rate(self.cluster.devices[d]))
        sent = self._sent(stage, self._mesh(stage, following), rows)
        return StageCost(
            forward=full.forward + full.gather_forward,
            backward=full.whole_backward,
            weight=full.weight,
            last_forward=last.forward + last.gather_forward,
            last_backward=last.whole_backward,
            send_forward=sent.forward,
            send_backward=sent.backward,
            accumulate=self.after_backward.accumulate(stage.first, stage.last, device=slow),
            reduction=self.reduced(stage, last_rows, bucket_bytes)
            + self.after_backward.summed(stage.first, stage.last, device=stage.devices[0])
            + self.after_backward.gathered(stage.first, stage.last, devices=stage.leaders, sharding=stage.sharding)
            + self._tied(stage, self._mesh(stage, leading)),
            optimizer=self.after_backward.optimizer(
                stage.first, stage.last, device=slow, sharding=stage.sharding, replicas=stage.replicas
            ),
        )

    def _tightest(
        self, stages: tuple[Stage, ...], kept: InFlight, rows: int, *, accumulates: bool
    ) -> tuple[int, MemoryBytes]:
        devices, chips = stages[0].devices, self.cluster.devices
        each = replica_rows(rows, stages[0].shares, stages[0].replicas)
        loads = {(chips[d], each[i // self.degree]): d for i, d in reversed(tuple(enumerate(devices)))}
        found = []
        for (chip, own), device in loads.items():
            held = tuple(self._held(stage, own, chip.backend, accumulates=accumulates) for stage in stages)
            found.append((device, position_memory(held, kept, chip)))
        return min(found, key=lambda entry: (chips[entry[0]].memory_bytes - entry[1].total, entry[0]))

    def _held(self, stage: Stage, rows: int, backend: Backend, *, accumulates: bool) -> StageMemory:
        """Bytes of a stage on a replica that takes `rows` rows."""
        return stage_memory(
            self._ranges[backend].of(stage.first, stage.last), self.numerics, self.priced, rows=rows,
            recompute=stage.recompute, sharding=stage.sharding, replicas=stage.replicas, accumulates=accumulates,
        )  # fmt: skip

    @cached_property
    def _flops(self) -> Affine:
        return affine_sum(size for _, op in self.graph.ops for size in (op.forward_flops, op.backward_flops))
