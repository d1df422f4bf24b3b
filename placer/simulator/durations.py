"""How long each instruction takes: the very pieces of `costs`, put together per instruction.

F    forward + gathers of sharded parameters
B    recompute + backward + gathers and scatters + adding to the gradients of earlier microbatches
I    as B without the weight part; W the weight part
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from placer.costs.communication.network import LinkCost, message_seconds
from placer.costs.costs import Costs
from placer.costs.timing.stage import StageSeconds
from placer.io.memo import remembered
from placer.plans.plan import Plan, Stage
from placer.plans.transfers import transfers
from placer.program.buckets import between_replicas, summed_in
from placer.program.collectives import tied_groups
from placer.program.instructions import Collective, Compute, Message, OptimizerStep, Program
from placer.program.lowering import crossings
from placer.simulator.timeline import SlicePart
from placer.spmd.cross_mesh import Exchange, Mesh, parcels


@dataclass(frozen=True, slots=True, kw_only=True)
class Wire:
    """A message: seconds until its first byte arrives, and for which it occupies both ends."""

    latency: float
    occupied: float


class Durations:
    """Seconds of the instructions of one plan; remembers what it was asked."""

    def __init__(self, plan: Plan, costs: Costs) -> None:
        self._plan = plan
        self._costs = costs
        self._devices = plan.ranks

    def compute(self, program: Program, entry: Compute) -> tuple[SlicePart, ...]:
        """The parts of a computation; microbatch 0 is the first whose gradients arrive."""
        action = entry.action
        adds, ends = action.microbatch > 0, action.microbatch == len(self._plan.microbatches) - 1
        stage = self._plan.stages[action.stage]
        rows = entry.rows or self._of(stage).stage_times.least_rows(stage)
        return self._made(program.device, action.stage, action.kind, rows, adds=adds, ends=ends)

    @remembered
    def _made(self, device: int, number: int, kind: str, rows: int, *, adds: bool, ends: bool) -> tuple[SlicePart, ...]:
        stage = self._plan.stages[number]
        costs = self._of(stage)
        seconds = costs.stage_times.stage(
            stage.first, stage.last, device=device, rows=rows, recompute=stage.again, sharding=stage.sharding,
            devices=stage.leaders,
        )  # fmt: skip
        more = costs.after_backward.accumulate(stage.first, stage.last, device=device) if adds and rows else 0.0
        scatter = self._scatter(stage, rows) if ends else 0.0
        return tuple(part for part in _parts(kind, seconds, more, scatter) if part.seconds > 0)

    def wire(self, entry: Message, sender: int, receiver: int) -> Wire:
        """A message from device `sender` to `receiver`, while all replicas of the two stages send theirs.

        Where every device has one partner, all messages are taken for as slow as the slowest of them.
        """
        ends = (entry.source_stage, entry.target_stage)
        exchange = self._exchange(*ends, entry.kind == "gradient")
        if exchange is None:
            return self._alike(*ends, entry.bytes)
        rows = self._plan.microbatches[entry.microbatch]
        way = self._ways(*ends, rows, entry.kind == "gradient")[sender, receiver]
        return Wire(latency=way.latency, occupied=entry.bytes * way.per_byte)

    @remembered
    def _alike(self, source_stage: int, target_stage: int, size: int) -> Wire:
        source, target = (self._plan.stages[stage].devices for stage in (source_stage, target_stage))
        latency = message_seconds(self._plan.cluster, source, target, 0)
        return Wire(latency=latency, occupied=message_seconds(self._plan.cluster, source, target, size) - latency)

    @remembered
    def _exchange(self, source: int, target: int, gradient: bool) -> Exchange | None:
        """What crosses from a stage to another; None where each device of the one has one partner in the other."""
        plan, ends = self._plan, (target, source) if gradient else (source, target)
        first, second = (Mesh.of(plan, plan.stages[stage]) for stage in (source, target))
        if first.like(second) and first.layout is second.layout:
            return None
        found = crossings(plan, next(t for t in transfers(plan) if (t.source, t.target) == ends), gradient)
        if first.like(second) and all(one.have == one.want for one in found):
            return None
        return Exchange.between(found, first, second)

    @remembered
    def _ways(self, source: int, target: int, rows: int, gradient: bool) -> dict[tuple[int, int], LinkCost]:
        """The ways of all messages of a microbatch of `rows` rows from one stage to another."""
        meshes = [Mesh.of(self._plan, self._plan.stages[stage]) for stage in (source, target)]
        exchange = self._exchange(source, target, gradient)
        assert exchange is not None  # only asked where devices have several partners
        sent = parcels(exchange, meshes[0], meshes[1], rows, gradient=gradient)
        return self._costs.network.link_costs((one.source, one.target) for one in sent)

    def collective(self, entry: Collective) -> float:
        """Seconds of a collective once all of its ranks are there."""
        devices = tuple(self._devices[rank] for rank in entry.ranks)
        if entry.purpose == "gradients" and entry.kind == "all_reduce":
            stage = self._plan.stages[entry.stage]
            costs = self._of(stage)
            return costs.after_backward.bucket(devices, self._as_made(entry), stage.reduction)
        if entry.purpose == "parameters" and entry.engine == "placer":
            return self._of(self._plan.stages[entry.stage]).after_backward.gather(devices, entry.bytes)
        groups = self._tied(entry.unit)[entry.ranks] if entry.purpose == "tied" else 1
        return self._costs.network.collective(entry.kind, devices, self._moved(entry), groups)

    def _moved(self, entry: Collective) -> float:
        """Bytes of what the stack of the plan's settings moves."""
        numerics = self._costs.numerics
        if entry.purpose in ("tied", "parts"):
            return numerics.summed(self._as_made(entry))
        scatters = entry.purpose == "gradients"
        return numerics.between_replicas(self._as_made(entry)) if scatters else entry.bytes

    def _as_made(self, entry: Collective) -> float:
        """Bytes of gradients that are summed, in the type in which a backward makes them."""
        settings, numerics = self._plan.settings, self._costs.numerics
        own = numerics.weights, numerics.weight_bytes
        _, summed = summed_in(*own) if entry.purpose in ("tied", "parts") else between_replicas(*own, settings)
        return entry.bytes * numerics.weight_bytes / summed

    @remembered
    def _tied(self, name: str) -> dict[tuple[int, ...], int]:
        return tied_groups(self._plan, name)

    def hidden(self, entry: Collective) -> float:
        """The share of the computation before an overlapping collective that can run beside it."""
        devices = tuple(self._devices[rank] for rank in entry.ranks)
        return self._of(self._plan.stages[entry.stage]).after_backward.hidden(devices)

    def optimizer(self, program: Program, entry: OptimizerStep) -> float:
        """Seconds of clipping and updating the parameters of a rank's stages."""
        return sum(
            self._of(stage).after_backward.optimizer(
                stage.first, stage.last, device=program.device, sharding=stage.sharding, replicas=stage.replicas
            )
            for stage in map(self._plan.stages.__getitem__, entry.stages)
        )

    def _of(self, stage: Stage) -> Costs:
        return self._costs.of_stage(self._plan, stage)

    def _scatter(self, stage: Stage, rows: int) -> float:
        if not stage.by_fsdp:
            return 0.0
        return self._of(stage).after_backward.reduction(
            stage.first, stage.last, devices=stage.leaders, rows=rows, backward=0.0, sharding=stage.sharding
        )


def _parts(kind: str, seconds: StageSeconds, accumulate: float, scatter: float) -> Iterator[SlicePart]:
    if kind == "F":
        yield SlicePart(kind="forward", seconds=seconds.forward)
        yield SlicePart(kind="reduction", seconds=seconds.gather_forward)
    if kind in "BI":
        yield SlicePart(kind="recompute", seconds=seconds.recompute)
    if kind == "B":
        yield SlicePart(kind="backward", seconds=seconds.backward + accumulate)
    if kind == "I":
        yield SlicePart(kind="backward", seconds=seconds.backward - seconds.weight)
    if kind == "W":
        yield SlicePart(kind="backward", seconds=seconds.weight + accumulate)
    if kind in "BI":
        yield SlicePart(kind="reduction", seconds=seconds.gather_backward + scatter)
