"""Costs: seconds and bytes of one Graph on one Cluster under one RunSettings; `step_estimate` makes them a Ledger.

A table of what the estimate is made of, so that searches and the simulator use the very same numbers:

    ranges           parameters, kept values and messages of blocks first..last-1 (`BlockRange`)
    network          seconds of messages and collectives between devices
    block_times      seconds of blocks on each class of devices, as prefix sums
    stage_times      seconds of one microbatch through a stage: forward, backward, recompute, gathers (`StageSeconds`)
    messages         seconds of what a stage sends on, and of the gradients it gets back, per microbatch
    after_backward   seconds of adding a microbatch's gradients to earlier ones, and of what follows the last backward:
                     reduction that it does not hide, tied parameters, clipping, update, gathering what was updated
    stage_cost       all of these of one stage as a `StageCost`, of which `timing.step` makes the step time
    fixed            seconds of the world's own collectives: loss, and norm if gradients are clipped
    memory           the device of a position with least bytes to spare, and its MemoryBytes

A stage's messages are of all values made in it and read later, also of those that skip stages (they are sent once to
each reader; the closed form counts them once, on the way to the next stage).
Every part grows with bytes, FLOPs and latency and falls with rates and bandwidths, hence so does the step.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import pairwise
from typing import NamedTuple

from placer.cluster.cluster import Backend, Cluster, Device
from placer.costs.communication.network import Network, TransferSeconds, require_hosts
from placer.costs.communication.reductions import AnyReduction
from placer.costs.compute.roofline import memory_rate
from placer.costs.likeness import Likeness
from placer.costs.memory.block_ranges import BlockRange, BlockRanges
from placer.costs.memory.in_flight import InFlight
from placer.costs.memory.peak import StageMemory, position_memory, stage_memory
from placer.costs.timing.after_backward import AfterBackward, heeds
from placer.costs.timing.block import BlockTimes
from placer.costs.timing.messages import StageMessages
from placer.costs.timing.stage import StageSeconds, StageTimes
from placer.costs.timing.step import StageCost
from placer.costs.workload import workload
from placer.graph import Affine, Graph, affine_sum
from placer.io.memo import once, remembered
from placer.io.same_objects import OfSameObjects
from placer.plans.known_stages import KnownStage, KnownStages
from placer.plans.ledger import MemoryBytes
from placer.plans.plan import Again, Layout, Plan, Sharding, Stage, replica_rows
from placer.plans.settings import RunSettings
from placer.spmd.cross_mesh import Mesh
from placer.spmd.device_graph import LocalClasses


class Costs:
    """Costs of `graph` on `cluster` under `settings`; remembers what it computed.

    With a `layout` they are of the graph of one of the devices of a replica, which it cuts; rows given here are always
    a replica's, and replicas begin at devices whose numbers leave the remainder `offset` when they are divided by its
    degree (`under` makes such ones). `searched` is the way of stages to sum gradients while none has been chosen for
    them; None prices each by what it says.
    """

    def __init__(
        self, graph: Graph, cluster: Cluster, settings: RunSettings, layout: Layout | None = None, offset: int = 0, *,
        searched: AnyReduction | None = None, network: Network | None = None, local: LocalClasses | None = None,
    ) -> None:  # fmt: skip
        require_hosts(cluster)
        self._local: LocalClasses = {} if local is None else local
        self.work = workload(graph, settings, layout, offset, cluster.kernels, self._local)
        self.graph, self.cluster, self.settings = self.work.graph, cluster, settings
        #: What the update is priced with: without an offload that moves nothing.
        self.priced = settings if heeds(settings, cluster) else replace(settings, offload="none")
        self.numerics, self.degree, self.apart = self.work.numerics, self.work.degree, self.work.apart
        self._ranges = {backend: BlockRanges(self.work, backend) for backend in cluster.backends}
        #: Of accelerators where there are some: their kernels keep no more than those of CPUs.
        self.ranges = self._ranges[cluster.kernels]
        self.network = network or Network(cluster)
        self.messages = StageMessages(self.work, self.ranges, self.network)
        self.block_times = BlockTimes(self.work, self.network)
        self.stage_times = StageTimes(self.work, self.ranges, self.block_times)
        self.after_backward = AfterBackward(
            self.work, self.priced, self.ranges, self.stage_times, self.network, searched
        )
        self.likeness = Likeness(self.work, self.ranges)
        #: Stages of all plans that were asked for, and what of each is worked out (`stages_of`).
        self.known = KnownStages()
        self._stages: dict[KnownStage, PricedStage] = {}
        self._stage_costs: dict[Hashable, StageCost] = {}
        self._numbers: dict[Hashable, int] = {}
        self._meshes: dict[int, tuple[Costs, Mesh, bool]] = {}
        self._stands: dict[tuple[int, ...], int] = {}
        self._fixed: dict[tuple[int, ...], float] = {}
        self._under: dict[tuple[int, int], Costs] = {}
        self._on = OfSameObjects[Costs]()

    def under(self, layout: Layout | None, offset: int = 0) -> Costs:
        """The costs of the graph cut as `layout` says; these, where there is none."""
        if layout is None:
            return self
        key = id(layout), offset
        return once(
            self._under, key, Costs, self.graph, self.cluster, self.settings, layout, offset,
            searched=self.after_backward.searched, network=self.network, local=self._local,
        )  # fmt: skip

    def of_stage(self, plan: Plan, stage: Stage) -> Costs:
        """The costs of the graph as a stage of `plan` cuts it."""
        if stage.layout is None:
            return self
        layout = plan.layouts[stage.layout]
        return self._on.of((layout, stage.devices), None, partial(self._under_on, layout, stage.devices))

    def _under_on(self, layout: Layout, devices: tuple[int, ...]) -> Costs:
        own = self.under(layout)
        if own.block_times.holds(devices):
            return own
        # Replicas of devices in any other order are priced as if they stood one after the other.
        runs = all(b == a + 1 for a, b in pairwise(devices))
        return self.under(layout, devices[0] % layout.degree if runs else 0)

    def stages_of(self, plan: Plan) -> list[PricedStage]:
        """The stages of a plan of sound shape, with what is worked out once for each."""
        found = self._stages
        return [found.get(known) or self._price(plan, known) for known in self.known.of(plan)]

    def _price(self, plan: Plan, known: KnownStage) -> PricedStage:
        own, mesh, grouped = self._meshes.get(known.mesh) or once(self._meshes, known.mesh, self._on_mesh, plan, known)
        span = own.ranges.of(*known.span)
        found = self._stages[known] = PricedStage(known=known, costs=own, mesh=mesh, span=span, grouped=grouped)
        return found

    def _on_mesh(self, plan: Plan, known: KnownStage) -> tuple[Costs, Mesh, bool]:
        """The costs of the graph as stages on a mesh cut it, the mesh, and whether its replicas are groups."""
        own = self.of_stage(plan, known.stage)
        return own, Mesh.of(plan, known.stage), own.block_times.holds(known.stage.devices)

    def cost_in_plan(
        self, one: PricedStage, following: PricedStage | None, first: PricedStage, sizes: tuple[int, int, int]
    ) -> StageCost:
        """`stage_cost` of a stage before another one (None: the last) in a plan that begins with `first`.

        sizes: rows of a full and of the last microbatch, bytes of buckets.
        """
        leading = first if one.span.tied else None
        meshes = -1 if following is None else following.known.mesh, -1 if leading is None else leading.known.mesh
        alike, own = one.alike.get(meshes), one.costs
        if alike is None:
            alike = one.alike[meshes] = self._number_in_plan(one, following, leading)
        found = own._stage_costs.get((alike, *sizes))
        if found is None:
            ends = own._ends(one.known.stage, _mesh(following), _mesh(leading))
            found = own._stage_costs[alike, *sizes] = own._stage_cost(one.known.stage, *ends, *sizes)
        return found

    def _number_in_plan(self, one: PricedStage, following: PricedStage | None, leading: PricedStage | None) -> int:
        stage, own, stand = one.known.stage, one.costs, None
        ends = own._ends(stage, _mesh(following), _mesh(leading))
        if one.grouped:
            numbers = [-1 if other is None else other.known.devices for other in (one, following, leading)]
            devices = stage.devices, *(mesh.devices for mesh in ends)
            stand = once(self._stands, tuple(numbers), self.network.footings.of, *devices)
        return own._number(stage, *ends, stand)

    def fixed_in_plan(self, plan: Plan) -> float:
        """`fixed` of the devices of a plan."""
        key = tuple([known.devices for known in self.known.of(plan)])
        found = self._fixed.get(key)
        if found is None:
            found = self._fixed[key] = self.fixed(plan.ranks)
        return found

    def fixed(self, devices: tuple[int, ...]) -> float:
        """Seconds of the world's own collectives: the loss, and the norm if gradients are clipped."""
        return (1 + (self.settings.clip_norm is not None)) * self.network.collective("all_reduce", devices, 8)

    @cached_property
    def flops(self) -> Affine:
        """Forward and backward FLOPs of the model."""
        return affine_sum(size for _, op in self.graph.ops for size in (op.forward_flops, op.backward_flops))

    def stage_cost(
        self, stage: Stage, *, following: tuple[int, ...] | Mesh, leading: tuple[int, ...] | Mesh, rows: int,
        last_rows: int, bucket_bytes: int | None = None,
    ) -> StageCost:  # fmt: skip
        """Everything the step time needs of one stage; `rows`, `last_rows` of a full and of the last microbatch.

        Gradients go in buckets of `bucket_bytes`, None: of the size that is best for the stage.

        `following` are the next stage's devices (empty for the last stage), `leading` the first position's; of a mesh
        that differs from this stage's in its replicas, shares, degree or layout they are a `Mesh`.
        """
        # The first position counts only where an earlier stage holds parameters of this one.
        tied = self.ranges.of(stage.first, stage.last).tied
        ends = self._ends(stage, following, leading if tied else None)
        key = self._alike(stage, *ends), rows, last_rows, bucket_bytes
        return once(self._stage_costs, key, self._stage_cost, stage, *ends, rows, last_rows, bucket_bytes)

    def _ends(
        self, stage: Stage, following: tuple[int, ...] | Mesh | None, leading: tuple[int, ...] | Mesh | None
    ) -> tuple[Mesh, Mesh]:
        """The mesh after a stage's, of no devices where there is none, and the first, its own where it has no say."""
        return (
            self.messages.mesh(stage, () if following is None else following),
            self.messages.mesh(stage, stage.devices if leading is None else leading),
        )

    @remembered
    def _alike(self, stage: Stage, following: Mesh, leading: Mesh) -> int:
        grouped = self.block_times.holds(stage.devices)
        devices = stage.devices, following.devices, leading.devices
        stand = self.network.footings.of(*devices) if grouped else None
        return self._number(stage, following, leading, stand)

    def _number(self, stage: Stage, following: Mesh, leading: Mesh, stand: int | None) -> int:
        """A number of all that stages have in common whose costs are the same; stand: how devices stand that are
        groups (None: others)."""
        found = self.likeness.of(stage, following, leading, stand)
        return self._numbers.setdefault(found, len(self._numbers))

    def _stage_cost(
        self, stage: Stage, following: Mesh, leading: Mesh, rows: int, last_rows: int, bucket_bytes: int | None
    ) -> StageCost:
        full, last = self.stage_times.full(stage, rows), self.stage_times.full(stage, last_rows)
        alike = stage.devices[:1] if self.block_times.uniform else stage.devices
        slow = min(alike, key=lambda d: memory_rate(self.cluster.devices[d]))
        sent = self.messages.after(stage, following, rows)
        found = self.after_backward.gradients(stage, leading, last_rows, bucket_bytes)
        return StageCost(
            forward=full.forward + full.gather_forward,
            backward=full.whole_backward,
            weight=full.weight,
            last_forward=last.forward + last.gather_forward,
            last_backward=last.whole_backward,
            send_forward=sent.forward,
            send_backward=sent.backward,
            accumulate=self.after_backward.accumulate(stage.first, stage.last, device=slow),
            reduction=sum(found),
            optimizer=self.after_backward.optimizer(
                stage.first, stage.last, device=slow, sharding=stage.sharding, replicas=stage.replicas
            ),
            scattered=found.exposed if stage.by_fsdp else 0.0,
            summed=found.summed,
            tied=found.tied,
            gathered=found.gathered,
        )

    def memory(
        self, stages: tuple[Stage, ...], in_flight: InFlight, rows: int, *, accumulates: bool
    ) -> tuple[int, MemoryBytes]:
        """The device of a position that holds `stages` with least bytes to spare, and what it holds.

        `rows` are those of the largest microbatch; it `accumulates` gradients where there are several.
        """
        chips, found = self.cluster.devices, []
        for device, own in self._loads(stages[0].devices, stages[0].shares, stages[0].replicas, rows):
            backend = chips[device].backend
            held = tuple([self._stage_memory(self._held(stage, backend, own, accumulates)) for stage in stages])
            found.append((device, self._position(held, in_flight, self.chips[device])))
        if len(found) == 1:
            return found[0]
        return min(found, key=lambda entry: (chips[entry[0]].memory_bytes - entry[1].total, entry[0]))

    def stage_bytes(self, stage: Stage, device: int, rows: int, *, accumulates: bool) -> StageMemory:
        """Bytes of one stage on one of its devices, whose replica has `rows` rows of the largest microbatch."""
        return self._stage_memory(self._held(stage, self.cluster.devices[device].backend, rows, accumulates))

    @remembered
    def _loads(
        self, devices: tuple[int, ...], shares: tuple[int, ...], replicas: int, rows: int
    ) -> tuple[tuple[int, int], ...]:
        """The first device of each kind with so many rows of its replica's, and those."""
        each = replica_rows(rows, shares, replicas)
        firsts = devices[:: self.degree] if self.block_times.uniform else devices
        parts = 1 if self.block_times.uniform else self.degree
        chips = self.chips
        kinds = {(chips[d], each[i // parts]): d for i, d in reversed(tuple(enumerate(firsts)))}
        return tuple((device, own) for (_, own), device in kinds.items())

    @cached_property
    def chips(self) -> tuple[int, ...]:
        """For each device the first of its kind."""
        first: dict[Device, int] = {}
        return tuple(first.setdefault(chip, index) for index, chip in enumerate(self.cluster.devices))

    @remembered
    def _position(self, held: tuple[StageMemory, ...], in_flight: InFlight, chip: int) -> MemoryBytes:
        return position_memory(held, in_flight, self.cluster.devices[chip])

    def _held(self, stage: Stage, backend: Backend, rows: int, accumulates: bool) -> _Held:
        """What the bytes of a stage depend on, for microbatches of `rows` rows on the device's replica."""
        return _Held(
            self._ranges[backend].alike(stage.first, stage.last), stage.again, stage.sharding, stage.replicas,
            backend, rows, accumulates,
        )  # fmt: skip

    @remembered
    def _stage_memory(self, held: _Held) -> StageMemory:
        return stage_memory(
            self._ranges[held.backend].of(*held.blocks), self.numerics, self.priced, rows=held.rows,
            recompute=held.recompute, sharding=held.sharding, replicas=held.replicas, accumulates=held.accumulates,
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PricedStage:
    """What is worked out once for a stage, wherever it stands in a plan: costs of the graph as it cuts that, its mesh
    and range, whether its replicas are groups of devices (`BlockTimes.holds`).

    alike: by the meshes after it and first of all, the number of stages that cost the same; seconds: of all
    microbatches, by their number; held: of the position that it is the first of, by the stages after it there, what is
    in flight, and rows; sent: of messages to others, by their meshes, values and rows, both latencies and the seconds
    by rows.
    """

    known: KnownStage
    costs: Costs
    mesh: Mesh
    span: BlockRange
    grouped: bool
    alike: dict[tuple[int, int], int] = field(default_factory=dict)
    seconds: dict[int, StageSeconds] = field(default_factory=dict)
    held: dict[Hashable, tuple[int, MemoryBytes]] = field(default_factory=dict)
    sent: dict[Hashable, tuple[float, float, list[tuple[int, TransferSeconds]]]] = field(default_factory=dict)


def _mesh(one: PricedStage | None) -> Mesh | None:
    return None if one is None else one.mesh


class _Held(NamedTuple):
    """What the bytes of a stage on one device depend on: wherever the device is, whatever is in flight; `blocks` are
    the first of those with a like range."""

    blocks: tuple[int, int]
    recompute: Again
    sharding: Sharding
    replicas: int
    backend: Backend
    rows: int
    accumulates: bool
