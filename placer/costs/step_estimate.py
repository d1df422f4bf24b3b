"""`estimate(plan)`: the predicted step of a plan as a Ledger, from the seconds and bytes of `Costs`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from operator import mul
from typing import NamedTuple

from placer.costs.communication.gradient_buckets import SIZES
from placer.costs.communication.network import TransferSeconds
from placer.costs.costs import Costs, PricedStage
from placer.costs.memory.in_flight import InFlight, in_flight_of, microbatches_in_flight
from placer.costs.timing.after_backward import host_bytes
from placer.costs.timing.branched import BranchedOrder, Messages
from placer.costs.timing.played import Wire
from placer.costs.timing.stage import StageSeconds, StageTimes
from placer.costs.timing.step import StageCost, stalls, step_seconds, waits_between_passes, waits_between_turns
from placer.costs.timing.ways import ways
from placer.graph import affine_sum
from placer.io.memo import once
from placer.plans.known_stages import Microbatches
from placer.plans.ledger import Ledger, MemoryBytes, Seconds
from placer.plans.order import plan_actions, timed_actions
from placer.plans.plan import Plan, Stage
from placer.plans.schedule import BRANCHED
from placer.plans.transfers import Transfer, is_chain, position_of, read_graph, skipping, transfers

# A chain is played where skipping messages, one after another, or waits between turns may take so much of the closed
# step: so little of it may be wrong where they do not. By definition no price.
PLAYED = 0.02
# The parts that one of a step's items takes, in turn, of what is left between the sum of all and the step: halves where
# it is rounded up twice. By definition no price.
ROUNDINGS = (1, 0.5, 0.5, 0.5, 1)


class _Step(NamedTuple):
    """Seconds of a step without the world's collectives, and the order that was played for them where one was."""

    seconds: float
    order: BranchedOrder | None = None


def estimate(plan: Plan) -> Ledger:
    """The predicted step of a plan: seconds by cause, bytes by category and position."""
    return estimate_with(costs_of(plan), plan)


def costs_of(plan: Plan) -> Costs:
    """The costs of what a plan was made for."""
    return Costs(plan.graph, plan.cluster, plan.settings)


def estimate_with(costs: Costs, plan: Plan) -> Ledger:
    """The predicted step of `plan` (whose graph, cluster and settings are these)."""
    ranks, rows, stages, flops = plan.ranks, plan.rows, costs.stages_of(plan), costs.flops
    step, seconds = _itemised(costs, plan)
    reduced = sum(one.span.counts.trainable for one in stages if one.known.stage.replicas > 1)
    return Ledger(
        step_seconds=step,
        seconds=seconds,
        memory=tuple(held for _, held in tightest(costs, plan)),
        rows=rows,
        flops=flops.at(rows),
        peak_flops=sum(costs.cluster.devices[d].rate(costs.numerics.products) for d in ranks),
        sent_bytes=_sent(stages, plan),
        reduced_bytes=int(costs.numerics.between_replicas(reduced * costs.numerics.weight_bytes)),
    )


def predicted_step(costs: Costs, plan: Plan) -> float:
    """The step of `estimate_with`, in seconds, without its causes and bytes: what a search compares."""
    return _step(costs.stages_of(plan), plan, stage_costs(costs, plan)).seconds + costs.fixed_in_plan(plan)


def stage_costs(costs: Costs, plan: Plan) -> tuple[StageCost, ...]:
    """The `StageCost` of each stage of a plan."""
    stages, sizes = costs.stages_of(plan), costs.known.microbatches(plan)
    following: list[PricedStage | None] = [*stages[1:], None]
    if plan.schedule in BRANCHED:  # whose messages are of pairs of stages
        following = [None] * len(stages)
    first, asked = stages[0], (sizes.largest, sizes.last, plan.bucket_bytes)
    return tuple([
        costs.cost_in_plan(stage, after, first, asked) for stage, after in zip(stages, following, strict=True)
    ])  # fmt: skip


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
    stages, sizes = costs.stages_of(plan), costs.known.microbatches(plan)
    rows, several, found = sizes.largest, sizes.several, []
    for numbers, flying in zip(costs.known.positions(plan), _in_flight(costs, plan), strict=True):
        one = stages[numbers[0]]
        key = tuple([stages[number].known for number in numbers[1:]]), flying, rows, several
        held = one.held.get(key)
        if held is None:
            own = tuple(stages[number].known.stage for number in numbers)
            held = one.held[key] = one.costs.memory(own, flying, rows, accumulates=several)
        found.append(held)
    return tuple(found)


def _in_flight(costs: Costs, plan: Plan) -> tuple[InFlight, ...]:
    """What each position has in flight."""
    positions = costs.known.positions(plan)
    if plan.schedule in BRANCHED:
        return tuple(in_flight_of(*both) for both in zip(plan_actions(plan), positions, strict=True))
    return microbatches_in_flight(plan.schedule, len(positions), len(plan.stages), len(plan.microbatches))


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


def _itemised(costs: Costs, plan: Plan) -> tuple[float, Seconds]:
    """The step, and that of the position with most work by cause; what other stages make it wait for is bubble."""
    priced, stages, count = costs.stages_of(plan), stage_costs(costs, plan), len(plan.microbatches)
    busy = [(count - 1) * cost.work + cost.last_forward + cost.last_backward for cost in stages]
    slowest = max(costs.known.positions(plan), key=lambda numbers: sum([busy[s] for s in numbers]))
    chosen, microbatches = [stages[s] for s in slowest], costs.known.microbatches(plan)
    times = [_summed(priced[s], microbatches) for s in slowest]
    found, fixed = _step(priced, plan, stages), costs.fixed_in_plan(plan)
    step = found.seconds + fixed
    spent = partial(
        Seconds,
        forward=sum(part.forward for part in times),
        backward=sum(part.backward for part in times) + (count - 1) * sum(cost.accumulate for cost in chosen),
        recompute=sum(part.recompute for part in times),
        communication=_closed_messages(plan, stages, chosen) if found.order is None else found.order.communication(),
        reduction=sum(part.gather_forward + part.gather_backward for part in times)
        + sum(cost.reduction for cost in chosen)
        + fixed,
        optimizer=sum(cost.optimizer for cost in chosen),
    )
    return step, _adding_up(spent(bubble=max(0.0, step - spent().total)), step)


def _adding_up(found: Seconds, step: float) -> Seconds:
    """The items, of which the largest takes what rounding leaves between their sum and the step; where ties of
    rounding keep it from that, the next one."""
    items = {name: value for name, value in asdict(found).items() if value}
    for name in sorted(items, key=lambda name: -items[name]):
        for part in ROUNDINGS:
            left = step - found.total
            if not left:
                return found
            found = replace(found, **{name: max(0.0, getattr(found, name) + left * part)})
    return found


def _step(own: Sequence[PricedStage], plan: Plan, stages: tuple[StageCost, ...]) -> _Step:
    """The step of stages: of a graph that of the order of the plan, of a chain by its closed form.

    The order of a chain is played too where that may say more: where what skips stages takes a good share of the step,
    which the closed form has go on to the next stage and find no way full, and where positions that take turns are
    slowest in different ones, which then wait for each other, or come to their next turn before the first microbatch,
    as a last one that is small lets them; and where forwards are slowest at another position than backwards, which
    all follow them.
    """
    if not is_chain(plan):
        return _played(own, plan, stages)
    positions, count = plan.positions, len(plan.microbatches)
    closed = step_seconds(stages, plan.schedule, positions=positions, microbatches=count)
    found = skipping(plan)
    skips = bool(found) and _alone(own, plan, found) >= PLAYED * closed
    turned, passed = waits_between_turns(stages, positions, count), waits_between_passes(stages, plan.schedule, count)
    if skips or max(turned, passed) >= PLAYED * closed:
        played = _played(own, plan, stages)
        return played if played.seconds > closed else _Step(closed)
    return _Step(closed)


def _closed_messages(plan: Plan, stages: tuple[StageCost, ...], chosen: Sequence[StageCost]) -> float:
    """Seconds of a step of a chain that its messages cost by the closed form, `chosen` being of the slowest
    position."""
    positions, count = plan.positions, len(plan.microbatches)
    turns = len(stages) // positions
    communication = sum(cost.messages for cost in stages) / turns
    if count > 1:
        communication += stalls(plan.schedule, positions, count) * sum(cost.messages for cost in chosen) / turns
    return communication


def _alone(own: Sequence[PricedStage], plan: Plan, found: Sequence[Transfer]) -> float:
    """Seconds of these messages of all microbatches, one after another."""
    rows, total = max(plan.microbatches), 0.0
    for one in found:
        source, target = own[one.source], own[one.target]
        sent = source.costs.messages.between(source.known.stage, target.mesh, one.values, rows)
        total += sent.forward + sent.backward
    return total * len(plan.microbatches)


def _played(own: Sequence[PricedStage], plan: Plan, stages: tuple[StageCost, ...]) -> _Step:
    """The step by the order of a plan, played."""
    forward, backward, weight = [], [], []
    for one, stage, cost in zip(own, plan.stages, stages, strict=True):
        passes = [one.costs.stage_times.full(stage, rows) for rows in plan.microbatches]
        adding = [cost.accumulate * (microbatch > 0) for microbatch in range(len(passes))]
        forward.append([each.forward + each.gather_forward for each in passes])
        backward.append([each.whole_backward + more for each, more in zip(passes, adding, strict=True)])
        weight.append([each.weight + more for each, more in zip(passes, adding, strict=True)])
    sent, returned = _messages(own, plan)
    graph = read_graph(plan)
    order = BranchedOrder(
        order=timed_actions(plan, graph), graph=graph, forward=forward, backward=backward, weight=weight,
        stages=stages, sent=sent, returned=returned,
    )  # fmt: skip
    return _Step(order.step(), order)


def _messages(own: Sequence[PricedStage], plan: Plan) -> tuple[Messages, Messages]:
    """The messages between stages, of each microbatch: values on, gradients back."""
    found, at, network = transfers(plan), position_of(plan), own[0].costs.network
    sizes = tuple(dict.fromkeys(plan.microbatches))
    ends = [(at[one.source], at[one.target]) for one in found]
    taken = ways([*ends, *[pair[::-1] for pair in ends]], [mesh.devices for mesh in plan.meshes], network)
    sent: dict[tuple[int, int], tuple[Wire, ...]] = {}
    returned: dict[tuple[int, int], tuple[Wire, ...]] = {}
    for number, transfer in enumerate(found):
        source, target = own[transfer.source], own[transfer.target]
        pair, out, back = (transfer.source, transfer.target), taken[number], taken[number + len(found)]
        key = target.known.mesh, transfer.values, sizes
        forward, backward, each = once(source.sent, key, _between, source, target, transfer.values, sizes)
        on = {rows: out.wire(seconds.forward, forward) for rows, seconds in each}
        sent[pair] = tuple([on[rows] for rows in plan.microbatches])
        if transfer.differentiable:
            returning = {rows: back.wire(seconds.backward, backward) for rows, seconds in each}
            returned[pair] = tuple([returning[rows] for rows in plan.microbatches])
    return sent, returned


def _between(
    source: PricedStage, target: PricedStage, values: tuple[str, ...], sizes: tuple[int, ...]
) -> tuple[float, float, list[tuple[int, TransferSeconds]]]:
    """Latencies of values on from one stage to another and of their gradients back; seconds, by rows."""
    ours, theirs, messages = source.mesh.devices, target.mesh.devices, source.costs.network.messages
    between = partial(source.costs.messages.between, source.known.stage, target.mesh, values)
    return messages(ours, theirs, 0), messages(theirs, ours, 0), [(rows, between(rows)) for rows in sizes]


def _sent(own: Sequence[PricedStage], plan: Plan) -> int:
    """Bytes that a step sends between stages, on and back, by one device of each replica."""
    if not is_chain(plan):
        crossing = [(own[sent.source].costs.ranges.crossing, sent.values) for sent in transfers(plan)]
        sizes = [size for values, names in crossing for size in (values.bytes_of(names), values.returned(names))]
    else:
        sizes = [size for one in own for size in (one.span.sent, one.span.returned)]
    sent, per_row = affine_sum(sizes)
    return sent * len(plan.microbatches) + per_row * plan.rows


def _summed(one: PricedStage, microbatches: Microbatches) -> StageSeconds:
    """Seconds of a stage over all microbatches."""
    return once(one.seconds, microbatches.number, _sum_of, one.costs.stage_times, one.known.stage, microbatches)


def _sum_of(stage_times: StageTimes, stage: Stage, microbatches: Microbatches) -> StageSeconds:
    each, counts = zip(*[(stage_times.full(stage, rows), count) for rows, count in microbatches.sizes], strict=True)
    return StageSeconds(*[sum(map(mul, counts, parts)) for parts in zip(*each, strict=True)])
