"""The collectives of a step: those placer issues itself, and those it expects of DDP and FSDP2.

one stage, replicated        DDP: its buckets during the last microbatch's backward; as below where that is not to be
sharded stages               FSDP2: gather and scatter per unit (see `fsdp`); placer: what has no dims
several stages, replicated   placer: each stage's buckets after its last backward
state of the optimizer       placer: whole parameters, gathered after the update from those that updated rows of them
replicas of several devices  parts of gradients summed over the replica's devices
all                          tied parameters held by several stages, the squared norm, the loss; with opaque parts which
                             weights gradients reached

Data parallelism reduces over the devices that stand alike in their replicas (`inner`). Sums over ranks on GPUs and on
CPUs say in which way they are done (`mixed_allreduce`), those of gradients over several hosts where the plan says so
(`reductions`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Literal

from placer.costs.communication.side_by_side import side_by_side
from placer.plans.plan import Plan
from placer.plans.schedule import Action
from placer.plans.transfers import position_of
from placer.program.buckets import (
    GradientBucket,
    between_replicas,
    ddp_buckets,
    divided_buckets,
    divides,
    gradient_buckets,
    held_bytes,
    parameter_dtype,
    part_buckets,
    shard_bytes,
    shared_parameters,
    summed_in,
)
from placer.program.fsdp import sharded_collectives
from placer.program.instructions import Collective
from placer.program.mixed_allreduce import sum_route
from placer.program.ranks import like_ranks, rank_of, summed_ranks
from placer.program.reductions import planned_route
from placer.program.told import told_weights
from placer.spmd.parameter_layouts import held_parameters

# The squared norm and the loss are summed in float64.
SCALAR_BYTES = 8
# Whether a weight was reached is said in float32.
REACHED_BYTES = 4


def stage_collectives(
    plan: Plan, position: int, line: tuple[Action, ...], inner: int = 0
) -> dict[Action, tuple[Collective, ...]]:
    """The collectives of the stages of one position, by the action they stand behind, in order of issue."""
    found: dict[Action, tuple[Collective, ...]] = {}
    for stage in sorted({action.stage for action in line}):
        if plan.stages[stage].replicas == 1:
            continue
        own = tuple(action for action in line if action.stage == stage)
        if plan.stages[stage].by_fsdp:
            found |= sharded_collectives(plan, stage, like_ranks(plan, position, inner), own, inner)
        found[own[-1]] = (*found.get(own[-1], ()), *_bucket_reductions(plan, position, stage, inner))
    return found


def closing_collectives(plan: Plan, position: int, replica: int, inner: int = 0) -> Iterator[Collective]:
    """What follows a rank's last computation: parts of gradients, tied parameters by name, what was reached, the norm,
    the loss."""
    yield from _parts(plan, position, replica, inner)
    for name, stages in sorted(shared_parameters(plan).items()):
        collective = _tied(plan, name, stages, position, (replica, inner))
        if collective is not None and len(collective.ranks) > 1:
            yield collective
    everyone = tuple(range(plan.world_size))
    if len(everyone) == 1:
        return
    told = REACHED_BYTES * len(told_weights(plan.graph))
    if told:
        yield Collective(
            kind="all_reduce", engine="placer", purpose="reached", ranks=everyone, bytes=told, dtype="float32",
            way=sum_route(plan, everyone, told),
        )  # fmt: skip
    if plan.settings.clip_norm is not None:
        yield _scalar(plan, "norm", everyone)
    yield _scalar(plan, "loss", everyone)


def updated_collectives(plan: Plan, position: int, inner: int = 0) -> Iterator[Collective]:
    """What follows a rank's update: the rows of parameters that its replicas updated, from each to all."""
    for stage, at in enumerate(position_of(plan)):
        for index, bucket in enumerate(divided_buckets(plan, stage, inner) if at == position else ()):
            gathered = _of_bucket(bucket, stage, f"rows {index}", like_ranks(plan, position, inner))
            yield replace(gathered, kind="all_gather", purpose="parameters")


def _scalar(plan: Plan, purpose: Literal["norm", "loss"], ranks: tuple[int, ...]) -> Collective:
    return Collective(
        kind="all_reduce", engine="placer", purpose=purpose, ranks=ranks, bytes=SCALAR_BYTES, dtype="float64",
        way=sum_route(plan, ranks, SCALAR_BYTES),
    )  # fmt: skip


def _parts(plan: Plan, position: int, replica: int, inner: int) -> Iterator[Collective]:
    """The sums over a replica's devices, or those along an axis, of the gradients each of them has a part of."""
    for stage, at in enumerate(position_of(plan)):
        for index, (over, bucket) in enumerate(part_buckets(plan, stage, inner) if at == position else ()):
            ranks = summed_ranks(plan, stage, over, rank_of(plan, position, replica, inner))
            dtype, size = summed_in(bucket.dtype, bucket.bytes)
            found = _of_bucket(bucket, stage, f"parts {index}", ranks)
            yield replace(found, purpose="parts", dtype=dtype, bytes=size)


def _bucket_reductions(plan: Plan, position: int, stage: int, inner: int) -> Iterator[Collective]:
    beside = plan.reduces_beside and not plan.stages[stage].by_fsdp
    ranks, degree = like_ranks(plan, position, inner), plan.stages[stage].degree
    for index, bucket in enumerate(ddp_buckets(plan, inner) if beside else gradient_buckets(plan, stage, inner)):
        dtype, size = between_replicas(bucket.dtype, bucket.bytes, plan.settings)
        found = replace(_of_bucket(bucket, stage, f"bucket {index}", ranks), dtype=dtype, bytes=size)
        way = sum_route(plan, ranks, size, degree) or planned_route(plan, stage, ranks)
        yield replace(found, engine="ddp" if beside else "placer", overlaps=beside, way=way)


def _of_bucket(bucket: GradientBucket, stage: int, unit: str, ranks: tuple[int, ...]) -> Collective:
    """The sum of a bucket of gradients by placer."""
    return Collective(
        kind="all_reduce", engine="placer", purpose="gradients", ranks=ranks, bytes=bucket.bytes, stage=stage,
        unit=unit, dtype=bucket.dtype,
    )  # fmt: skip


def _tied(plan: Plan, name: str, stages: tuple[int, ...], position: int, place: tuple[int, int]) -> Collective | None:
    """The sum of a tied parameter's gradient over all that hold it; of its shards over the holders of each shard.

    Where the stages shard it over different numbers of replicas, whole gradients are summed, of which each rank fills
    in its shard. Where their replicas have different numbers of devices, all of these take part.
    """
    replica, inner = place
    positions = position_of(plan)
    holders = sorted({positions[stage] for stage in stages})
    if position not in holders:
        return None
    by_shard, by_inner = tied_by_shard(plan, name, stages), tied_by_inner(plan, stages)
    parameter, settings = held_parameters(plan, inner)[name], plan.settings
    size = (
        shard_bytes(parameter, settings, plan.meshes[position].replicas)
        if by_shard
        else held_bytes(parameter, settings)
    )
    dtype, size = summed_in(parameter_dtype(parameter.dtype, settings), size)
    ranks = _tied_ranks(plan, holders, replica if by_shard else None, inner if by_inner else None)
    groups = tied_groups(plan, name)[ranks] if len(plan.cluster.backends) > 1 else 1
    return Collective(
        kind="all_reduce", engine="placer", purpose="tied", ranks=ranks, bytes=size, unit=name,
        dtype=dtype, way=sum_route(plan, ranks, size, groups),
    )  # fmt: skip


def _tied_ranks(plan: Plan, holders: Sequence[int], replica: int | None, inner: int | None) -> tuple[int, ...]:
    """The ranks of these positions, of one replica and of one device of each (None: of all)."""
    return tuple(
        rank_of(plan, holder, member, at)
        for holder in holders
        for member in (range(plan.meshes[holder].replicas) if replica is None else (replica,))
        for at in (range(plan.meshes[holder].degree) if inner is None else (inner,))
    )


def tied_groups(plan: Plan, name: str) -> dict[tuple[int, ...], int]:
    """Of each sum of a tied parameter's gradient, by its ranks, how many such share its nodes at once."""
    stages, positions = shared_parameters(plan)[name], position_of(plan)
    holders = sorted({positions[stage] for stage in stages})
    mesh, by_shard, by_inner = plan.meshes[holders[0]], tied_by_shard(plan, name, stages), tied_by_inner(plan, stages)
    lines = [
        _tied_ranks(plan, holders, replica, inner)
        for replica in (range(mesh.replicas) if by_shard else (None,))
        for inner in (range(mesh.degree) if by_inner else (None,))
    ]
    devices = [tuple(plan.ranks[rank] for rank in line) for line in lines]
    return dict(zip(lines, side_by_side(plan.cluster, devices), strict=True))


def tied_by_shard(plan: Plan, name: str, stages: tuple[int, ...]) -> bool:
    """Whether the stages that hold a tied parameter shard it alike, so that shards can be summed."""
    held = [plan.stages[stage] for stage in stages if divides(plan.graph.parameters[name].shape)]
    shards = {stage.replicas if stage.by_fsdp else 1 for stage in held}
    return len(shards) == 1 and shards != {1}


def tied_by_inner(plan: Plan, stages: tuple[int, ...]) -> bool:
    """Whether the devices that stand alike in their replicas hold the same of a tied parameter."""
    return len({plan.stages[stage].degree for stage in stages}) == 1
