"""legality.check(plan): the one judge. Every rule a plan breaks, by name and with what was found and what to do.

Rules are one table: name -> a function from the plan to messages. Those of `STRUCTURE` speak of its shape; what crosses
between stages and memory need a plan of sound shape and are asked only then; communication, for which the whole step is
lowered, is asked last.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from placer.errors import IllegalPlanError, Infeasible, InfeasibleError, PlacerError, UsageError
from placer.estimates import hosted, tightest
from placer.ledger import MemoryBytes
from placer.plans import Plan, Stage, replica_rows
from placer.program import (
    Column,
    agreement,
    columns,
    like_devices,
    lower,
    plan_actions,
    position_of,
    rows_of_replica,
    shared_parameters,
    unequal_meshes,
)
from placer.schedule import LOOPING, SPLIT_BACKWARD, structure_violation, violations
from placer.splitting import require_layout

GIB = 2**30

# Microbatches per position, and one per stage, after which a schedule repeats itself: those that fill the pipeline,
# those that drain it, and as many between them.
FULL_TURNS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """A broken rule: its name in `RULES`, and what was found and what to do."""

    rule: str
    message: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.message}"


def check(plan: Plan, *, lowered: bool = True) -> tuple[Violation, ...]:
    """Every rule `plan` breaks; empty for a legal plan.

    Without `lowered` communication is not asked, for which the whole step must be lowered: enough for a plan that is
    only to be compared.
    """
    tiers = TIERS if lowered else BEFORE_LOWERING
    read = (plan.graph, plan.cluster, plan.settings, plan.stages, plan.schedule, plan.microbatches, plan.layouts)
    parts = (*read, tiers)
    for known, found in _CHECKED:
        if all(a is b for a, b in zip(known, parts, strict=True)):
            return found
    _CHECKED.append((parts, next(filter(None, (_asked(plan, rules) for rules in tiers)), ())))
    return _CHECKED[-1][1]


# The verdicts on what was checked last, by all of a plan that rules read, which never changes: who judges a plan again
# that only got its ledger or its bound since then need not lower it again.
_CHECKED: deque[tuple[tuple[object, ...], tuple[Violation, ...]]] = deque(maxlen=8)


def require(plan: Plan) -> None:
    """Raise InfeasibleError where only memory binds, IllegalPlanError listing every broken rule otherwise."""
    found = check(plan)
    if found:
        raise error_of(found)


def error_of(found: tuple[Violation, ...]) -> PlacerError:
    """What `require` raises for the rules `found` broken, at least one."""
    if all(violation.rule == "memory" for violation in found):
        binding = "; ".join(violation.message for violation in found)
        return InfeasibleError(
            Infeasible(binding=binding, advice="Use more devices, more stages, sharding or recompute")
        )
    listed = "\n".join(f"- {violation}" for violation in found)
    return IllegalPlanError(f"the plan breaks {len(found)} rule(s); plan again or correct it:\n{listed}")


def _asked(plan: Plan, rules: dict[str, Callable[[Plan], Iterator[str]]]) -> tuple[Violation, ...]:
    return tuple(Violation(rule=name, message=message) for name, rule in rules.items() for message in rule(plan))


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
    size = plan.cluster.size
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
    groups = {devices: number for number, devices in enumerate(dict.fromkeys(stage.devices for stage in plan.stages))}
    seen: dict[int, int] = {}
    for index, stage in enumerate(plan.stages):
        own = groups[stage.devices]
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
    for index, rows in enumerate(plan.microbatches):
        if rows < 1:
            yield f"microbatch {index} has {rows} rows; give at least one"
            return
    yield from _apart(plan)
    told: set[tuple[int, tuple[float, ...]]] = set()
    for stage in plan.stages if plan.microbatches else ():
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
    each = zip(*(replica_rows(rows, stage.shares, stage.replicas) for rows in plan.microbatches), strict=True)
    idle = [replica for replica, rows in enumerate(each) if not any(rows)]
    if idle:
        yield (
            f"replica {idle[0]} of {stage.replicas} has no row of any microbatch; the largest has "
            f"{max(plan.microbatches)} rows: use larger microbatches, other shares or fewer replicas"
        )


def _meshes(plan: Plan) -> Iterator[str]:
    """What crosses between stages can be divided as the one makes it and the other reads it."""
    yield from unequal_meshes(plan)


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
    if _structured(plan):
        yield from _tied(plan)


def _tied(plan: Plan) -> Iterator[str]:
    positions = position_of(plan)
    for name, stages in shared_parameters(plan).items():
        sharded = plan.graph.parameters[name].shape and any(plan.stages[s].by_fsdp for s in stages)
        if sharded and len({positions[s] for s in stages}) < len(stages):
            yield f"{name} is tied between sharded stages {_listed(stages)} of one rank, which FSDP2 cannot hold once"


def _recompute(plan: Plan) -> Iterator[str]:
    """The settings may fix recompute for all stages."""
    fixed = {"none": False, "full": True}.get(plan.settings.recompute)
    wrong = [i for i, stage in enumerate(plan.stages) if fixed is not None and stage.recompute != fixed]
    if wrong:
        yield f"the settings fix recompute to {plan.settings.recompute}, stages {_listed(wrong)} do otherwise"


def _loss(plan: Plan) -> Iterator[str]:
    """There is a loss, and the batch is only split where the loss is known to be linear in its rows."""
    loss = plan.graph.loss
    if loss.reduction == "none":
        yield f"the model {plan.graph.name} returns no loss; give labels in the batch, or a loss_fn"
    replicas = max((stage.replicas for stage in plan.stages), default=1)
    if loss.reduction == "other" and (len(plan.microbatches) > 1 or replicas > 1):
        why = f" ({loss.why})" if loss.why else ""
        yield (
            f"the loss is not known to be linear in the rows of the batch{why}, yet the batch is split in "
            f"{len(plan.microbatches)} microbatches and {replicas} replicas; use one of each"
        )


def _memory(plan: Plan) -> Iterator[str]:
    """What the estimate says a device holds at its fullest, and the host of its node, is no more than it has."""
    over: dict[str, list[int]] = {}
    for device, held in tightest(plan):
        available = plan.cluster.devices[device].memory_bytes
        if held.total > available:
            category, size = _largest(held)
            figures = (
                f"{held.total / GIB:.2f} GiB of {available / GIB:.2f} GiB, "
                f"{(held.total - available) / GIB:.2f} GiB too much, mostly {category} ({size / GIB:.2f} GiB)"
            )
            over.setdefault(figures, []).append(device)
    for figures, (first, *others) in over.items():
        yield f"memory on device {first}{f' and {len(others)} like it' if others else ''}: {figures}"
    for node, size in sorted(hosted(plan).items()):
        available = plan.cluster.node_list[node].memory_bytes
        if size > available > 0:
            yield (
                f"memory of the host of node {node}: {size / GIB:.2f} GiB of {available / GIB:.2f} GiB, all of it the "
                "optimizer's state of its devices"
            )


def _communication(plan: Plan) -> Iterator[str]:
    """The schedule runs to its end, and all ranks agree on their communication."""
    plan = _shortened(plan)
    broken = violations(plan_actions(plan), len(plan.stages), len(plan.microbatches))
    if broken:
        yield from broken
        return
    # Of devices that do the same in step, a collective among them is reached by all when one reaches it.
    leaders = [devices[0] for devices in like_devices(plan)]
    yield from agreement(lower(plan, columns=_telling(plan), inners=leaders), partial=True)


def _telling(plan: Plan) -> tuple[Column, ...]:
    """Columns that stand for all others in what they communicate.

    Where each is one replica of every position they differ in the number of their rows only: one that has rows of every
    microbatch stands for all. Of others, one of each kind: by how many rows of which microbatch its replicas have.
    """
    found = columns(plan)
    if all(len(own) == 1 for own in found[0]):
        shares = plan.stages[0].shares or (1,)
        return (found[shares.index(max(shares))],)
    kinds: dict[object, Column] = {}
    for column in found:
        rows = tuple(rows_of_replica(plan, at, replica) for at, own in enumerate(column) for replica in own)
        kinds.setdefault((tuple(map(len, column)), rows), column)
    return tuple(kinds.values())


def _shortened(plan: Plan) -> Plan:
    """The plan with as many of its equal microbatches as show every turn of its schedule.

    Once the pipeline is full a schedule repeats the same turn for each further microbatch (interleaved: for each
    further round of as many as there are positions), so that ranks which agree over some turns agree over all.
    tests/test_legality.py holds the schedules to it.
    """
    count, positions = len(plan.microbatches), plan.positions
    enough = len(plan.stages) + FULL_TURNS * positions
    if plan.schedule in LOOPING and count % positions:
        return plan
    if count <= enough or len(set(plan.microbatches[:-1])) > 1:
        return plan
    return replace(plan, microbatches=plan.microbatches[count - enough :])


STRUCTURE: dict[str, Callable[[Plan], Iterator[str]]] = {
    "blocks": _blocks,
    "devices": _devices,
    "layouts": _layouts,
    "kinds": _kinds,
    "replicas": _replicas,
    "rows": _rows,
    "schedule": _schedule,
    "sharding": _sharding,
    "recompute": _recompute,
    "loss": _loss,
}
CROSSING: dict[str, Callable[[Plan], Iterator[str]]] = {"meshes": _meshes}
SUBSTANCE: dict[str, Callable[[Plan], Iterator[str]]] = {"memory": _memory}
AGREEMENT: dict[str, Callable[[Plan], Iterator[str]]] = {"communication": _communication}
# Asked one after the other, until one is broken.
BEFORE_LOWERING = (STRUCTURE, CROSSING, SUBSTANCE)
TIERS = (*BEFORE_LOWERING, AGREEMENT)
RULES = tuple(name for rules in TIERS for name in rules)


def _structured(plan: Plan) -> bool:
    """Whether stages name blocks of the model only."""
    count = len(plan.graph.blocks)
    return all(0 <= stage.first < stage.last <= count for stage in plan.stages)


def _ratios(stage: Stage) -> tuple[float, ...]:
    shares = stage.shares or (1,) * stage.replicas
    total = sum(shares) or 1
    return tuple(share / total for share in shares)


def _largest(held: MemoryBytes) -> tuple[str, int]:
    return max(held.categories.items(), key=lambda entry: entry[1])


def _listed(values: tuple[int, ...] | list[int]) -> str:
    return ", ".join(map(str, values))
