"""`estimate(plan)`: the predicted step of a plan as a Ledger, from the seconds and bytes of `Costs`."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from placer.costs.communication.gradient_buckets import SIZES
from placer.costs.costs import Costs
from placer.costs.timing.offload import host_bytes
from placer.costs.timing.stage import StageSeconds
from placer.costs.timing.step import StageCost, stalls, step_seconds
from placer.graph import affine_sum
from placer.plans.ledger import Ledger, MemoryBytes, Seconds
from placer.plans.plan import Plan, Stage


def tightest(plan: Plan) -> tuple[tuple[int, MemoryBytes], ...]:
    """Of each position the device with least bytes to spare, and what it holds at its fullest."""
    return tightest_with(_costs_for(plan), plan)


def hosted(plan: Plan) -> dict[int, int]:
    """Bytes of the optimizer in the memory of each node's host, by the number of the node; of those that hold any."""
    costs, found = _costs_for(plan), Counter[int]()
    if costs.priced.offload == "none":
        return {}
    for stage in plan.stages:
        elements = costs.of_stage(plan, stage).ranges.of(stage.first, stage.last).counts.trainable
        parts = stage.replicas if stage.sharding != "none" else 1
        size = -(-elements // parts) * host_bytes(costs.numerics, plan.settings)
        for device in stage.devices:
            found[plan.cluster.node_of[device]] += size
    return dict(found)


def estimate(plan: Plan) -> Ledger:
    """The predicted step of a plan: seconds by cause, bytes by category and position."""
    return estimate_with(_costs_for(plan), plan)


def with_best_buckets(plan: Plan) -> Plan:
    """`plan` with the bucket size of `bucketing.SIZES` that exposes least reduction, the smallest of equal ones."""
    if not plan.fuses:
        return plan
    costs, last_rows = _costs_for(plan), plan.microbatches[-1]

    def exposed(size: int) -> float:
        return sum(costs.of_stage(plan, stage).reduced(stage, last_rows, size) for stage in plan.stages)

    return replace(plan, bucket_bytes=min(SIZES, key=exposed))


def tightest_with(costs: Costs, plan: Plan) -> tuple[tuple[int, MemoryBytes], ...]:
    """Of each position of `plan` the device with least bytes to spare, and what it holds."""
    positions, count = plan.positions, len(plan.microbatches)
    return tuple(
        costs.of_stage(plan, plan.stages[p]).memory(
            plan.stages[p::positions], schedule=plan.schedule, positions=positions, position=p, microbatches=count,
            total_stages=len(plan.stages), rows=plan.microbatches[0],
        )
        for p in range(positions)
    )  # fmt: skip


def estimate_with(costs: Costs, plan: Plan) -> Ledger:
    """The predicted step of `plan` (whose graph, cluster and settings are these)."""
    positions, count = plan.positions, len(plan.microbatches)
    stages = costs.costs_of(plan)
    step = step_seconds(stages, plan.schedule, positions=positions, microbatches=count, fixed=costs.fixed(plan.ranks))
    seconds = _itemised(costs, plan, stages, step)
    return Ledger(
        step_seconds=seconds.total,
        seconds=seconds,
        memory=tuple(held for _, held in tightest_with(costs, plan)),
        rows=plan.rows,
        flops=costs.flops(plan.rows),
        peak_flops=sum(costs.cluster.devices[d].rate(costs.numerics.compute) for d in plan.ranks),
        sent_bytes=_sent_bytes(costs, plan),
        reduced_bytes=_reduced_bytes(costs, plan),
    )


def _itemised(costs: Costs, plan: Plan, stages: tuple[StageCost, ...], step: float) -> Seconds:
    """The step of the position with most work, by cause; what other stages make it wait for is bubble."""
    positions, count = plan.positions, len(plan.microbatches)
    turns = len(plan.stages) // positions
    busy = [sum(_busy(cost, count) for cost in stages[p::positions]) for p in range(positions)]
    slowest = busy.index(max(busy))
    passes = [
        _passes(costs.of_stage(plan, stage), stage, plan.microbatches) for stage in plan.stages[slowest::positions]
    ]
    own = stages[slowest::positions]
    communication = sum(cost.messages for cost in stages) / turns
    if count > 1:
        communication += stalls(plan.schedule, positions, count) * sum(cost.messages for cost in own) / turns
    spent = Seconds(
        forward=sum(part.forward for part in passes),
        backward=sum(part.backward for part in passes) + (count - 1) * sum(cost.accumulate for cost in own),
        recompute=sum(part.recompute for part in passes),
        communication=communication,
        reduction=sum(part.gather_forward + part.gather_backward for part in passes)
        + sum(cost.reduction for cost in own)
        + costs.fixed(plan.ranks),
        optimizer=sum(cost.optimizer for cost in own),
    )
    return replace(spent, bubble=max(0.0, step - spent.total))


def _passes(costs: Costs, stage: Stage, microbatches: tuple[int, ...]) -> StageSeconds:
    """Seconds of a stage over all microbatches."""
    full, last = costs.full(stage, microbatches[0]), costs.full(stage, microbatches[-1])
    many = len(microbatches) - 1
    return StageSeconds(
        forward=many * full.forward + last.forward,
        backward=many * full.backward + last.backward,
        weight=many * full.weight + last.weight,
        recompute=many * full.recompute + last.recompute,
        gather_forward=many * full.gather_forward + last.gather_forward,
        gather_backward=many * full.gather_backward + last.gather_backward,
    )


def _sent_bytes(costs: Costs, plan: Plan) -> int:
    """Bytes all messages of a step carry."""
    spans = [costs.of_stage(plan, stage).ranges.of(stage.first, stage.last) for stage in plan.stages]
    fixed, per_row = affine_sum(size for span in spans for size in (span.sent, span.returned))
    return fixed * len(plan.microbatches) + per_row * plan.rows


def _reduced_bytes(costs: Costs, plan: Plan) -> int:
    """Bytes of gradients that are reduced over replicas in a step."""
    return sum(
        costs.of_stage(plan, stage).ranges.of(stage.first, stage.last).counts.trainable * costs.numerics.weight_bytes
        for stage in plan.stages
        if stage.replicas > 1
    )


# The Costs of the plan estimated last: judging a plan estimates it several times, and so do searches, plan after plan.
_LATEST: list[Costs] = []


def _costs_for(plan: Plan) -> Costs:
    given = (plan.graph, plan.cluster, plan.settings)
    for known in _LATEST:
        if all(a is b for a, b in zip(given, (known.graph, known.cluster, known.settings), strict=True)):
            return known
    _LATEST[:] = [Costs(*given)]
    return _LATEST[0]


def _busy(cost: StageCost, microbatches: int) -> float:
    return (microbatches - 1) * cost.work + cost.last_forward + cost.last_backward
