"""`estimate(plan)`: the predicted step of a plan as a Ledger, from the seconds and bytes of `Costs`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from functools import partial

from placer.costs.communication.gradient_buckets import SIZES
from placer.costs.costs import Costs
from placer.costs.memory.in_flight import InFlight, in_flight_of, microbatches_in_flight
from placer.costs.timing.after_backward import host_bytes
from placer.costs.timing.branched import BranchedOrder
from placer.costs.timing.stage import StageSeconds, StageTimes
from placer.costs.timing.step import StageCost, stalls, step_seconds
from placer.graph import affine_sum
from placer.plans.ledger import Ledger, MemoryBytes, Seconds
from placer.plans.order import plan_actions
from placer.plans.plan import Layout, Plan, Stage
from placer.plans.schedule import BRANCHED
from placer.plans.transfers import is_chain, stage_graph, transfers
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
    reduced = sum(span.counts.trainable for span, stage in zip(ranges, plan.stages, strict=True) if stage.replicas > 1)
    return Ledger(
        step_seconds=seconds.total,
        seconds=seconds,
        memory=tuple(held for _, held in tightest(costs, plan)),
        rows=rows,
        flops=flops.at(rows),
        peak_flops=sum(costs.cluster.devices[d].rate(costs.numerics.products) for d in ranks),
        sent_bytes=_sent(own, plan),
        reduced_bytes=int(costs.numerics.between_replicas(reduced * costs.numerics.weight_bytes)),
    )


def predicted_seconds(costs: Costs, plan: Plan) -> Seconds:
    """The seconds of `estimate_with` by cause, without its bytes: what a search compares."""
    own = [costs.of_stage(plan, stage) for stage in plan.stages]
    return _itemised(own, plan, stage_costs(costs, plan), costs.fixed(plan.ranks))


def stage_costs(costs: Costs, plan: Plan) -> tuple[StageCost, ...]:
    """The `StageCost` of each stage of a plan."""
    following: list[Stage | None] = [*plan.stages[1:], None]
    if plan.schedule in BRANCHED:  # whose messages are of pairs of stages
        following = [None] * len(plan.stages)
    sizes = max(plan.microbatches), plan.microbatches[-1], plan.bucket_bytes
    return tuple(
        _known_stage(costs, plan, stage, after, sizes) for stage, after in zip(plan.stages, following, strict=True)
    )


def _known_stage(
    costs: Costs, plan: Plan, stage: Stage, following: Stage | None, sizes: tuple[int, int, int]
) -> StageCost:
    """The cost of a stage before `following`; the first stage matters only where it holds parameters of this one."""
    own = costs.of_stage(plan, stage)
    leading = plan.stages[0] if own.ranges.of(stage.first, stage.last).tied else None
    objects: tuple[object, ...] = (stage, _layout(plan, stage))
    values: tuple[object, ...] = sizes
    for other in (following, leading):
        if other is not None:  # of which only the mesh is asked
            objects, values = (*objects, other.devices, _layout(plan, other)), (*values, other.shares, other.degree)
    key = (*values, following is None, leading is None)
    return costs.known_stages.of(objects, key, partial(_stage_cost, own, plan, stage, following))


def _stage_cost(own: Costs, plan: Plan, stage: Stage, following: Stage | None) -> StageCost:
    return own.stage_cost(
        stage, following=() if following is None else Mesh.of(plan, following), leading=Mesh.of(plan, plan.stages[0]),
        rows=max(plan.microbatches), last_rows=plan.microbatches[-1], bucket_bytes=plan.bucket_bytes,
    )  # fmt: skip


def _layout(plan: Plan, stage: Stage) -> Layout | None:
    return None if stage.layout is None else plan.layouts[stage.layout]


def with_best_buckets(costs: Costs, plan: Plan) -> Plan:
    """`plan` with the bucket size of `gradient_buckets.SIZES` that exposes least reduction, the smallest of equal."""
    if not plan.fuses:
        return plan
    last_rows = plan.microbatches[-1]

    def exposed(size: int) -> float:
        return sum(costs.of_stage(plan, one).after_backward.exposed(one, last_rows, size) for one in plan.stages)

    return replace(plan, bucket_bytes=min(SIZES, key=exposed))


def with_reductions(costs: Costs, plan: Plan) -> Plan:
    """`plan` with the way of each stage to sum gradients that costs it least; with that which `costs` search with."""
    last_rows, stages = plan.microbatches[-1], plan.stages
    found = [
        costs.of_stage(plan, one).after_backward.best_reduction(one, last_rows, plan.bucket_bytes) for one in stages
    ]
    chosen = tuple(replace(one, reduction=way) for one, way in zip(stages, found, strict=True))
    return plan if chosen == stages else replace(plan, stages=chosen)


def tightest(costs: Costs, plan: Plan) -> tuple[tuple[int, MemoryBytes], ...]:
    """Of each position of `plan` the device with least bytes to spare, and what it holds at its fullest."""
    rows, several = max(plan.microbatches), len(plan.microbatches) > 1
    return tuple(
        costs.known_positions.of(
            (*stages, _layout(plan, stages[0])), (flying, rows, several),
            partial(_held, costs, plan, stages, flying),
        )
        for stages, flying in zip(_at_positions(plan), _in_flight(plan), strict=True)
    )  # fmt: skip


def _held(costs: Costs, plan: Plan, stages: tuple[Stage, ...], flying: InFlight) -> tuple[int, MemoryBytes]:
    several = len(plan.microbatches) > 1
    return costs.of_stage(plan, stages[0]).memory(stages, flying, max(plan.microbatches), accumulates=several)


def _at_positions(plan: Plan) -> Iterator[tuple[Stage, ...]]:
    """The stages of each position."""
    return (tuple(plan.stages[s] for s in own) for own in plan.stages_at)


def _in_flight(plan: Plan) -> tuple[InFlight, ...]:
    """What each position has in flight."""
    if plan.schedule in BRANCHED:
        return tuple(in_flight_of(*both) for both in zip(plan_actions(plan), plan.stages_at, strict=True))
    return microbatches_in_flight(plan.schedule, plan.positions, len(plan.stages), len(plan.microbatches))


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
    count = len(plan.microbatches)
    slowest = max(plan.stages_at, key=lambda numbers: sum(_busy(stages[s], count) for s in numbers))
    chosen = [stages[s] for s in slowest]
    times = [_summed(own[s].stage_times, plan.stages[s], plan.microbatches) for s in slowest]
    step, communication = (_chained if is_chain(plan) else _branched)(own, plan, stages, chosen)
    step += fixed
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


def _chained(
    own: Sequence[Costs], plan: Plan, stages: tuple[StageCost, ...], chosen: Sequence[StageCost]
) -> tuple[float, float]:
    """Seconds of a step of a chain of stages, and of the messages in them, `chosen` being of the slowest position."""
    positions, count = plan.positions, len(plan.microbatches)
    turns = len(stages) // positions
    communication = sum(cost.messages for cost in stages) / turns
    if count > 1:
        communication += stalls(plan.schedule, positions, count) * sum(cost.messages for cost in chosen) / turns
    return step_seconds(stages, plan.schedule, positions=positions, microbatches=count), communication


def _branched(
    own: Sequence[Costs], plan: Plan, stages: tuple[StageCost, ...], chosen: Sequence[StageCost]
) -> tuple[float, float]:
    """Seconds of a step of a graph of stages, and how much of them messages cost."""
    sent: dict[tuple[int, int, int], float] = {}
    returned: dict[tuple[int, int, int], float] = {}
    for transfer in transfers(plan):
        source, target = plan.stages[transfer.source], Mesh.of(plan, plan.stages[transfer.target])
        messages = own[transfer.source].messages
        seconds = {rows: messages.between(source, target, transfer.values, rows) for rows in set(plan.microbatches)}
        for number, rows in enumerate(plan.microbatches):
            sent[transfer.source, transfer.target, number] = seconds[rows].forward
            returned[transfer.source, transfer.target, number] = seconds[rows].backward
    forward, backward, weight = [], [], []
    for one, stage, cost in zip(own, plan.stages, stages, strict=True):
        passes = [one.stage_times.full(stage, rows) for rows in plan.microbatches]
        adding = [cost.accumulate * (microbatch > 0) for microbatch in range(len(passes))]
        forward.append([each.forward + each.gather_forward for each in passes])
        backward.append([each.whole_backward + more for each, more in zip(passes, adding, strict=True)])
        weight.append([each.weight + more for each, more in zip(passes, adding, strict=True)])
    step = BranchedOrder(
        order=plan_actions(plan), graph=stage_graph(plan), forward=forward, backward=backward, weight=weight,
        reduction=[cost.reduction for cost in stages], optimizer=[cost.optimizer for cost in stages], sent=sent,
        returned=returned,
    ).step()  # fmt: skip
    return step.seconds, step.communication


def _sent(own: Sequence[Costs], plan: Plan) -> int:
    """Bytes that a step sends between stages, on and back, by one device of each replica."""
    if not is_chain(plan):
        crossing = [(own[sent.source].ranges.crossing, sent.values) for sent in transfers(plan)]
        sizes = [size for values, names in crossing for size in (values.bytes_of(names), values.returned(names))]
    else:
        ranges = [one.ranges.of(stage.first, stage.last) for one, stage in zip(own, plan.stages, strict=True)]
        sizes = [size for span in ranges for size in (span.sent, span.returned)]
    sent, per_row = affine_sum(sizes)
    return sent * len(plan.microbatches) + per_row * plan.rows


def _summed(stage_times: StageTimes, stage: Stage, microbatches: tuple[int, ...]) -> StageSeconds:
    """Seconds of a stage over all microbatches."""
    each = [(stage_times.full(stage, rows), count) for rows, count in Counter(microbatches).items()]
    return StageSeconds(**{
        field.name: sum(count * getattr(seconds, field.name) for seconds, count in each)
        for field in fields(StageSeconds)
    })  # fmt: skip


def _busy(cost: StageCost, microbatches: int) -> float:
    return (microbatches - 1) * cost.work + cost.last_forward + cost.last_backward
