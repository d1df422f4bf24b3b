"""The collectives of a step: those placer issues itself, and those it expects of DDP and FSDP2.

one stage, replicated        DDP: its buckets during the last microbatch's backward
sharded stages               FSDP2: gather and scatter per unit (see `sharded`)
several stages, replicated   placer: each stage's buckets after its last backward
all                          tied parameters held by several stages, the squared norm, the loss
"""

from __future__ import annotations

from collections.abc import Iterator

from placer.plans import Plan
from placer.program.buckets import ddp_buckets, gradient_buckets, held_bytes, shard_bytes, shared_parameters
from placer.program.instructions import Collective, Engine
from placer.program.layout import position_of
from placer.program.sharded import sharded_collectives
from placer.schedule import Action

# The squared norm and the loss are summed in float64.
SCALAR_BYTES = 8


def stage_collectives(plan: Plan, position: int, line: tuple[Action, ...]) -> dict[Action, tuple[Collective, ...]]:
    """The collectives of the stages of one position, by the action they stand behind, in order of issue."""
    found: dict[Action, tuple[Collective, ...]] = {}
    for stage in sorted({action.stage for action in line}):
        if plan.stages[stage].replicas == 1:
            continue
        own = tuple(action for action in line if action.stage == stage)
        if plan.stages[stage].sharding == "none":
            found[own[-1]] = tuple(_bucket_reductions(plan, position, stage))
        else:
            found |= sharded_collectives(plan, stage, position_ranks(plan, position), own)
    return found


def closing_collectives(plan: Plan, position: int, replica: int) -> Iterator[Collective]:
    """What follows a rank's last computation: tied parameters in order of their names, the norm, the loss."""
    for name, stages in sorted(shared_parameters(plan).items()):
        collective = _tied(plan, name, stages, position, replica)
        if collective is not None and len(collective.ranks) > 1:
            yield collective
    everyone = tuple(range(plan.world_size))
    if len(everyone) == 1:
        return
    if plan.settings.clip_norm is not None:
        yield Collective(kind="all_reduce", engine="placer", purpose="norm", ranks=everyone, bytes=SCALAR_BYTES)
    yield Collective(kind="all_reduce", engine="placer", purpose="loss", ranks=everyone, bytes=SCALAR_BYTES)


def position_ranks(plan: Plan, position: int) -> tuple[int, ...]:
    """The ranks of a position, replica by replica."""
    replicas = plan.stages[0].replicas
    return tuple(range(position * replicas, (position + 1) * replicas))


def _bucket_reductions(plan: Plan, position: int, stage: int) -> Iterator[Collective]:
    alone = len(plan.stages) == 1
    engine: Engine = "ddp" if alone else "placer"
    for index, bucket in enumerate(ddp_buckets(plan) if alone else gradient_buckets(plan, stage)):
        yield Collective(
            kind="all_reduce",
            engine=engine,
            purpose="gradients",
            ranks=position_ranks(plan, position),
            bytes=bucket.bytes,
            stage=stage,
            unit=f"bucket {index}",
            overlaps=alone and plan.settings.overlap,
        )


def _tied(plan: Plan, name: str, stages: tuple[int, ...], position: int, replica: int) -> Collective | None:
    """The sum of a tied parameter's gradient over all that hold it; of its shards over the holders of each shard."""
    positions, replicas = position_of(plan), plan.stages[0].replicas
    holders = sorted({positions[stage] for stage in stages})
    if position not in holders:
        return None
    graph, settings = plan.graph, plan.settings
    sharded = plan.stages[stages[0]].sharding != "none" and replicas > 1
    members = (replica,) if sharded else range(replicas)
    size = shard_bytes(graph, name, settings, replicas) if sharded else held_bytes(graph, name, settings)
    ranks = tuple(holder * replicas + member for holder in holders for member in members)
    return Collective(kind="all_reduce", engine="placer", purpose="tied", ranks=ranks, bytes=size, unit=name)
