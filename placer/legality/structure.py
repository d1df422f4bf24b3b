"""The rules of a plan's shape: blocks, devices, layouts, replicas, rows, schedule, and what the settings fix."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from placer.costs.communication.reductions import reductions
from placer.errors import UsageError
from placer.plans.plan import Plan, Recompute, Stage, recompute_word, replica_rows
from placer.plans.schedule import LOOPING, SPLIT_BACKWARD, structure_violation
from placer.plans.transfers import position_of
from placer.program.buckets import parameter_dtype, shard_units, shared_parameters, trained_types
from placer.rules.rows import whole_batch_reason
from placer.spmd.device_graph import require_layout


def _blocks(plan: Plan) -> Iterator[str]:
    """Stages are runs of blocks that follow each other and cover all of them."""
    count, reached = len(plan.graph.blocks), 0
    for index, stage in enumerate(plan.stages):
        if stage.first != reached:
            yield f"stage {index} begins at block {stage.first}, the stages before it end at block {reached}"
        if stage.last <= stage.first:
            yield f"stage {index} has no block: it runs from {stage.first} to {stage.last} (exclusive)"
        reached = stage.last
    if reached != count:
        yield f"the stages end at block {reached}, the model has {count} blocks"


def _devices(plan: Plan) -> Iterator[str]:
    """Stages name devices that exist, each once; two positions share none."""
    size, groups = plan.cluster.size, dict.fromkeys(stage.devices for stage in plan.stages)
    named = set().union(*groups)
    apart = len(named) == sum(map(len, groups))
    if apart and all(groups) and (not named or (min(named) >= 0 and max(named) < size)):
        return
    for index, stage in enumerate(plan.stages):
        absent = sorted({d for d in stage.devices if not 0 <= d < size})
        if absent:
            yield (
                f"stage {index} wants device {absent[0]}, the cluster {plan.cluster.name} has {size} "
                f"(0 to {size - 1}); plan again with --cluster"
            )
        if not stage.devices:
            yield f"stage {index} has no device; give it at least one"
        if len(set(stage.devices)) != len(stage.devices):
            yield f"stage {index} names a device twice: {_listed(stage.devices)}; a device holds one replica"
    numbers = {devices: number for number, devices in enumerate(groups)}
    seen: dict[int, int] = {}
    for index, stage in enumerate(plan.stages):
        own = numbers[stage.devices]
        other = next((d for d in stage.devices if seen.setdefault(d, own) != own), None)
        if other is not None:
            yield f"stage {index} shares device {other} with a stage on other devices; stages share all or none"


def _layouts(plan: Plan) -> Iterator[str]:
    """A stage's layout exists, is of its degree, cuts this model, and its devices make whole replicas."""
    for index, stage in enumerate(plan.stages):
        if stage.degree < 1 or len(stage.devices) % stage.degree:
            yield f"stage {index} has {len(stage.devices)} devices, which replicas of {stage.degree} do not use up"
        elif stage.layout is None and stage.degree > 1:
            yield f"stage {index} has replicas of {stage.degree} devices and no layout that says how to use them"
        elif stage.layout is not None and not 0 <= stage.layout < len(plan.layouts):
            yield f"stage {index} wants layout {stage.layout}, the plan has {len(plan.layouts)}; plan again"
        elif stage.layout is not None and plan.layouts[stage.layout].degree != stage.degree:
            wanted = plan.layouts[stage.layout].degree
            yield f"stage {index} has replicas of {stage.degree} devices, its layout is for {wanted}; plan again"
    for layout in plan.layouts:
        try:
            require_layout(plan.graph, layout)
        except UsageError as error:
            yield str(error)


def _kinds(plan: Plan) -> Iterator[str]:
    """Devices of both kinds, GPUs and CPUs, are in different replicas, which keep their state whole."""
    unlike = plan.cluster.unlike
    if len(plan.cluster.backends) == 1:
        return
    for index, stage in enumerate(plan.stages):
        if stage.degree < 1:
            continue
        replicas = (stage.devices[at : at + stage.degree] for at in range(0, len(stage.devices), stage.degree))
        across = next(filter(unlike, replicas), None)
        if across is not None:
            yield (
                f"a replica of stage {index} is on GPUs and CPUs (devices {_listed(across)}), which have no library in "
                "common for what its ops say to each other; give each replica devices of one kind"
            )
        elif stage.sharding != "none" and unlike(stage.devices):
            yield (
                f"stage {index} shards {stage.sharding} over replicas on GPUs and on CPUs, for which torch has no mesh "
                "of devices; use sharding none, or devices of one kind"
            )


def _replicas(plan: Plan) -> Iterator[str]:
    """Shares are one positive number per replica; stages on the same devices have the same replicas and shares."""
    for index, stage in enumerate(plan.stages):
        if stage.shares and (len(stage.shares) != stage.replicas or min(stage.shares) < 1):
            yield f"stage {index} has shares {_listed(stage.shares)}; give one positive share per replica"
    first: dict[tuple[int, ...], int] = {}
    for index, stage in enumerate(plan.stages):
        before = first.setdefault(stage.devices, index)
        other = plan.stages[before]
        if before == index:
            continue
        if (other.degree, other.shares) == (stage.degree, stage.shares):
            continue
        if other.degree != stage.degree:
            yield (
                f"stages {before} and {index} share their devices and have replicas of {other.degree} and "
                f"{stage.degree} of them; give both the same degree"
            )
        elif _ratios(other) != _ratios(stage):
            yield f"stages {before} and {index} share their devices and divide rows differently; give both equal shares"


def _rows(plan: Plan) -> Iterator[str]:
    """Microbatches are positive, and some microbatch has a row for every replica.

    In others, such as a last one with what a batch leaves over, a replica may be without rows.
    """
    if not plan.microbatches:
        yield "there is no microbatch; give at least one"
    if min(plan.microbatches, default=1) < 1:
        index, rows = next((index, rows) for index, rows in enumerate(plan.microbatches) if rows < 1)
        yield f"microbatch {index} has {rows} rows; give at least one"
        return
    yield from _apart(plan)
    told: set[tuple[int, tuple[float, ...]]] = set()
    divided: dict[tuple[int, tuple[int, ...]], Stage] = {}
    for stage in plan.stages if plan.microbatches else ():
        divided.setdefault((stage.replicas, stage.shares), stage)
    for stage in divided.values():
        sound = not stage.shares or (len(stage.shares) == stage.replicas and min(stage.shares) > 0)
        if stage.replicas and sound and (stage.replicas, _ratios(stage)) not in told:
            told.add((stage.replicas, _ratios(stage)))
            yield from _idle(plan, stage)


def _apart(plan: Plan) -> Iterator[str]:
    """Where each device of a replica has rows of its own, all of them have equally many."""
    for index, stage in enumerate(plan.stages):
        known = stage.layout is not None and 0 <= stage.layout < len(plan.layouts)
        apart = plan.layouts[stage.layout].apart if known and stage.layout is not None else 1
        if apart == 1 or not stage.replicas or (stage.shares and len(stage.shares) != stage.replicas):
            continue
        for number, rows in enumerate(plan.microbatches):
            uneven = [own for own in replica_rows(rows, stage.shares, stage.replicas) if own % apart]
            if uneven:
                yield (
                    f"a replica of stage {index} has {uneven[0]} rows of microbatch {number}, of which its {apart} "
                    f"devices cannot have equally many; give each replica a multiple of {apart} rows"
                )
                break


def _idle(plan: Plan, stage: Stage) -> Iterator[str]:
    if not stage.shares and max(plan.microbatches) >= stage.replicas:
        return
    sizes = dict.fromkeys(plan.microbatches)
    each = zip(*(replica_rows(rows, stage.shares, stage.replicas) for rows in sizes), strict=True)
    idle = [replica for replica, rows in enumerate(each) if not any(rows)]
    if idle:
        yield (
            f"replica {idle[0]} of {stage.replicas} has no row of any microbatch; the largest has "
            f"{max(plan.microbatches)} rows: use larger microbatches, other shares or fewer replicas"
        )


def _schedule(plan: Plan) -> Iterator[str]:
    """The schedule fits the number of stages and positions; looping ones go round the positions in order."""
    broken = structure_violation(plan.schedule, plan.positions, len(plan.stages))
    if broken:
        yield broken
        return
    for stage, position in enumerate(position_of(plan)):
        if plan.schedule in LOOPING and position != stage % plan.positions:
            yield f"stage {stage} is at position {position}, {plan.schedule} wants it at {stage % plan.positions}"


def _sharding(plan: Plan) -> Iterator[str]:
    """Sharded state has replicas to lie on, a schedule that can reduce it, and holds tied parameters alike."""
    for index, stage in enumerate(plan.stages):
        if stage.sharding == "none":
            continue
        if stage.replicas == 1:
            yield f"stage {index} shards {stage.sharding} over one device; use sharding none"
        if plan.schedule in SPLIT_BACKWARD and stage.by_fsdp:
            yield (
                f"stage {index} shards {stage.sharding}, but FSDP2 reduces at the end of a whole backward, which "
                f"{plan.schedule} splits; use 1f1b or sharding none"
            )
    if any(stage.by_fsdp for stage in plan.stages) and _structured(plan):
        yield from _tied(plan)
        yield from _mixed(plan)


def _mixed(plan: Plan) -> Iterator[str]:
    """FSDP2 shards together what is of one type."""
    if len({parameter_dtype(dtype, plan.settings) for dtype in plan.graph.trained_types}) < 2:
        return
    for index, stage in enumerate(plan.stages):
        for unit in shard_units(plan, index) if stage.by_fsdp and stage.replicas > 1 else ():
            types = trained_types(plan, unit)
            if len(types) > 1:
                what = plan.graph.blocks[unit.block].name if unit.block >= 0 else "what several of its blocks share"
                yield (
                    f"stage {index} shards {stage.sharding}, but {what} has parameters of {' and of '.join(types)}, "
                    "which FSDP2 does not shard together; use sharding optimizer or none"
                )


def _tied(plan: Plan) -> Iterator[str]:
    positions = position_of(plan)
    for name, stages in shared_parameters(plan).items():
        sharded = plan.graph.parameters[name].shape and any(plan.stages[s].by_fsdp for s in stages)
        if sharded and len({positions[s] for s in stages}) < len(stages):
            yield f"{name} is tied between sharded stages {_listed(stages)} of one rank, which FSDP2 cannot hold once"


def _reductions(plan: Plan) -> Iterator[str]:
    """Gradients are summed in a way that the replicas have: within hosts and by a server only over CPUs of several."""
    for index, stage in enumerate(plan.stages):
        if stage.reduction == "flat" or not all(0 <= device < plan.cluster.size for device in stage.devices):
            continue
        if stage.degree < 1 or stage.replicas < 2 or stage.by_fsdp:
            yield (
                f"stage {index} sums gradients in the way {stage.reduction} and has no whole ones on several replicas; "
                "use reduction flat"
            )
        elif stage.reduction not in (ways := reductions(plan.cluster, stage.leaders)):
            yield (
                f"stage {index} sums gradients in the way {stage.reduction}, which is for CPUs on several nodes"
                f"{', some of them on one' * (stage.reduction == 'hierarchical')}; use reduction {' or '.join(ways)}"
            )


# What each setting fixes for all stages.
FIXED: dict[str, Recompute] = {"none": False, "full": True, "selective": "selective"}


def _recompute(plan: Plan) -> Iterator[str]:
    """The settings may fix recompute for all stages."""
    fixed = FIXED.get(plan.settings.recompute)
    wrong = [i for i, stage in enumerate(plan.stages) if fixed is not None and stage.recompute != fixed]
    if wrong:
        yield f"the settings fix recompute to {plan.settings.recompute}, stages {_listed(wrong)} do otherwise"
    for index, stage in enumerate(plan.stages):
        if stage.recomputed is not None and not (stage.recompute and stage.recomputed < stage.last - stage.first):
            yield (
                f"stage {index} of {stage.last - stage.first} blocks recomputes {recompute_word(stage.again)}; give a "
                "recompute and fewer blocks than it has, or no number of recomputed blocks"
            )


def _loss(plan: Plan) -> Iterator[str]:
    """There is a loss, and the batch is only divided where the rules of all ops keep its rows apart up to the loss."""
    if plan.graph.loss.reduction == "none":
        yield f"the model {plan.graph.name} returns no loss; give labels in the batch, or a loss_fn"
        return
    replicas = max((stage.replicas for stage in plan.stages), default=1)
    if len(plan.microbatches) == replicas == 1:
        return
    why = whole_batch_reason(plan.graph, statistics=plan.settings.batch_norm == "microbatch")
    if why:
        yield (
            f"the batch is divided into {len(plan.microbatches)} microbatches and {replicas} replicas, and its rows do "
            f"not stay apart: {why}; use one of each (the devices of a replica may divide the model all the same: "
            "--pin tensor=N)"
        )


def _structured(plan: Plan) -> bool:
    """Whether stages name blocks of the model only."""
    count = len(plan.graph.blocks)
    return all(0 <= stage.first < stage.last <= count for stage in plan.stages)


def _ratios(stage: Stage) -> tuple[float, ...]:
    shares = stage.shares or (1,) * stage.replicas
    total = sum(shares) or 1
    return tuple(share / total for share in shares)


def _listed(values: tuple[int, ...] | list[int]) -> str:
    return ", ".join(map(str, values))


STRUCTURE: dict[str, Callable[[Plan], Iterator[str]]] = {
    "blocks": _blocks,
    "devices": _devices,
    "layouts": _layouts,
    "kinds": _kinds,
    "replicas": _replicas,
    "rows": _rows,
    "schedule": _schedule,
    "sharding": _sharding,
    "reductions": _reductions,
    "recompute": _recompute,
    "loss": _loss,
}
