"""`estimate(plan)`: the predicted step of a plan as a Ledger, from the seconds and bytes of `Costs`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from placer.costs.communication.gradient_buckets import SIZES
from placer.costs.costs import Costs
from placer.costs.timing.after_backward import host_bytes
from placer.costs.timing.stage import StageSeconds, StageTimes
from placer.costs.timing.step import StageCost, stalls, step_seconds
from placer.graph import affine_sum
from placer.plans.ledger import Ledger, MemoryBytes, Seconds
from placer.plans.plan import Plan, Stage
from placer.spmd.cross_mesh import Mesh


def estimate(plan: Plan) -> Ledger:
    """The predicted step of a plan: seconds by cause, bytes by category and position."""
    return estimate_with(costs_of(plan), plan)


def costs_of(plan: Plan) -> Costs:
    """The costs of what a plan was made for."""
    return Costs(plan.graph, plan.cluster, plan.settings)


def estimate_with(costs: Costs, plan: Plan) -> Ledger:
    """The predicted step of `plan` (whose graph, cluster and settings are these)."""
    ranks, rows, stages = plan.ranks, plan.rows, stage_costs(costs, plan)
    own, fixed, flops = [costs.of_stage(plan, stage) for stage in plan.stages], costs.fixed(ranks), costs.flops
    seconds = _itemised(own, plan, stages, fixed)
    ranges = [one.ranges.of(stage.first, stage.last) for one, stage in zip(own, plan.stages, strict=True)]
    sent, per_row = affine_sum(size for span in ranges for size in (span.sent, span.returned))
    reduced = sum(span.counts.trainable for span, stage in zip(ranges, plan.stages, strict=True) if stage.replicas > 1)
    return Ledger(
        step_seconds=seconds.total,
        seconds=seconds,
        memory=tuple(held for _, held in tightest(costs, plan)),
        rows=rows,
        flops=flops.at(rows),
        peak_flops=sum(costs.cluster.devices[d].rate(costs.numerics.compute) for d in ranks),
        sent_bytes=sent * len(plan.microbatches) + per_row * rows,
        reduced_bytes=reduced * costs.numerics.weight_bytes,
    )


def predicted_seconds(costs: Costs, plan: Plan) -> Seconds:
    """The seconds of `estimate_with` by cause, without its bytes: what a search compares."""
    own = [costs.of_stage(plan, stage) for stage in plan.stages]
    return _itemised(own, plan, stage_costs(costs, plan), costs.fixed(plan.ranks))


def stage_costs(costs: Costs, plan: Plan) -> tuple[StageCost, ...]:
    """The `StageCost` of each stage of a plan."""
    meshes = [Mesh.of(plan, stage) for stage in plan.stages]
    following: list[Mesh | tuple[int, ...]] = [*meshes[1:], ()]
    return tuple(
        costs.of_stage(plan, stage).stage_cost(
            stage, following=after, leading=meshes[0], rows=plan.microbatches[0], last_rows=plan.microbatches[-1],
            bucket_bytes=plan.bucket_bytes,
        )
        for stage, after in zip(plan.stages, following, strict=True)
    )  # fmt: skip


def with_best_buckets(costs: Costs, plan: Plan) -> Plan:
    """`plan` with the bucket size of `gradient_buckets.SIZES` that exposes least reduction, the smallest of equal."""
    if not plan.fuses:
        return plan
    last_rows = plan.microbatches[-1]

    def exposed(size: int) -> float:
        return sum(costs.of_stage(plan, one).after_backward.exposed(one, last_rows, size) for one in plan.stages)

    return replace(plan, bucket_bytes=min(SIZES, key=exposed))


def tightest(costs: Costs, plan: Plan) -> tuple[tuple[int, MemoryBytes], ...]:
    """Of each position of `plan` the device with least bytes to spare, and what it holds at its fullest."""
    positions, count = plan.positions, len(plan.microbatches)
    return tuple(
        costs.of_stage(plan, plan.stages[p]).memory(
            plan.stages[p::positions], schedule=plan.schedule, positions=positions, position=p, microbatches=count,
            total_stages=len(plan.stages), rows=plan.microbatches[0],
        )
        for p in range(positions)
    )  # fmt: skip


def hosted(costs: Costs, plan: Plan) -> dict[int, int]:
    """Bytes of the optimizer in the memory of each node's host, by the number of the node; of those that hold any."""
    found = Counter[int]()
    for stage in plan.stages if costs.priced.offload != "none" else ():
        elements = costs.of_stage(plan, stage).ranges.of(stage.first, stage.last).counts.trainable
        parts = stage.replicas if stage.sharding != "none" else 1
        size = -(-elements // parts) * host_bytes(costs.numerics, plan.settings)
        for device in stage.devices:
            found[plan.cluster.node_of[device]] += size
    return dict(found)


def _itemised(own: Sequence[Costs], plan: Plan, stages: tuple[StageCost, ...], fixed: float) -> Seconds:
    """The step of the position with most work, by cause; what other stages make it wait for is bubble."""
    positions, count = plan.positions, len(plan.microbatches)
    step = step_seconds(stages, plan.schedule, positions=positions, microbatches=count, fixed=fixed)
    turns = len(plan.stages) // positions
    busy = [sum(_busy(cost, count) for cost in stages[p::positions]) for p in range(positions)]
    slowest = slice(busy.index(max(busy)), None, positions)
    placed, chosen = zip(own[slowest], plan.stages[slowest], strict=True), stages[slowest]
    times = [_summed(one.stage_times, stage, plan.microbatches) for one, stage in placed]
    communication = sum(cost.messages for cost in stages) / turns
    if count > 1:
        communication += stalls(plan.schedule, positions, count) * sum(cost.messages for cost in chosen) / turns
    spent = Seconds(
        forward=sum(part.forward for part in times),
        backward=sum(part.backward for part in times) + (count - 1) * sum(cost.accumulate for cost in chosen),
        recompute=sum(part.recompute for part in times),
        communication=communication,
        reduction=sum(part.gather_forward + part.gather_backward for part in times)
        + sum(cost.reduction for cost in chosen)
        + fixed,
        optimizer=sum(cost.optimizer for cost in chosen),
    )
    return replace(spent, bubble=max(0.0, step - spent.total))


def _summed(stage_times: StageTimes, stage: Stage, microbatches: tuple[int, ...]) -> StageSeconds:
    """Seconds of a stage over all microbatches."""
    full, last = stage_times.full(stage, microbatches[0]), stage_times.full(stage, microbatches[-1])
    many = len(microbatches) - 1
    return StageSeconds(
        forward=many * full.forward + last.forward,
        backward=many * full.backward + last.backward,
        weight=many * full.weight + last.weight,
        recompute=many * full.recompute + last.recompute,
        gather_forward=many * full.gather_forward + last.gather_forward,
        gather_backward=many * full.gather_backward + last.gather_backward,
    )


def _busy(cost: StageCost, microbatches: int) -> float:
    return (microbatches - 1) * cost.work + cost.last_forward + cost.last_backward
