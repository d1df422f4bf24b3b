"""Moves of what a stage or a plan does without being placed otherwise: schedule, sharding, recompute, buckets."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import get_args

from placer.costs.communication.gradient_buckets import SIZES
from placer.costs.step_estimate import with_best_buckets
from placer.plans.plan import Plan, ScheduleName, Sharding
from placer.plans.schedule import BRANCHED, LOOPING
from placer.strategies.moves.neighbourhood import Neighbourhood, everywhere, loops

SCHEDULES: tuple[ScheduleName, ...] = tuple(name for name in get_args(ScheduleName) if name not in LOOPING | BRANCHED)
SHARDINGS: tuple[Sharding, ...] = get_args(Sharding)


def reschedule(around: Neighbourhood, plan: Plan, rng: Random) -> Plan | None:
    """Another schedule of one stage a position."""
    if loops(plan) or plan.positions < 2:
        return None
    return replace(plan, schedule=rng.choice([name for name in SCHEDULES if name != plan.schedule]))


def reshard(around: Neighbourhood, plan: Plan, rng: Random) -> Plan | None:
    """Another sharding of a stage that has replicas."""
    several = [index for index, stage in enumerate(plan.stages) if stage.replicas > 1]
    if not several:
        return None
    index = rng.choice(several)
    stages = list(plan.stages)
    sharding = rng.choice([kept for kept in SHARDINGS if kept != stages[index].sharding])
    stages[index] = replace(stages[index], sharding=sharding)
    return replace(plan, stages=tuple(stages))


def reshard_all(around: Neighbourhood, plan: Plan, rng: Random) -> Plan | None:
    """The same sharding of all stages that have replicas."""
    sharding = rng.choice(SHARDINGS)
    return everywhere(plan, lambda s: replace(s, sharding=sharding) if s.replicas > 1 else s)


def recompute_one(around: Neighbourhood, plan: Plan, rng: Random) -> Plan | None:
    """A stage that recomputes otherwise than it did."""
    if len(around.recomputes) < 2:
        return None
    stages, index = list(plan.stages), rng.randrange(len(plan.stages))
    others = [again for again in around.recomputes if again != stages[index].recompute]
    stages[index] = replace(stages[index], recompute=rng.choice(others), recomputed=None)
    return replace(plan, stages=tuple(stages))


def recompute_all(around: Neighbourhood, plan: Plan, rng: Random) -> Plan | None:
    """All stages up to one recompute, those after it do not: the first ones keep most microbatches."""
    if len(around.recomputes) < 2:
        return None
    count, again = rng.randint(0, len(plan.stages)), rng.choice([one for one in around.recomputes if one])
    wanted = (again if index < count else False for index in range(len(plan.stages)))
    stages = (
        s if s.again == own else replace(s, recompute=own, recomputed=None)
        for s, own in zip(plan.stages, wanted, strict=True)
    )
    return replace(plan, stages=tuple(stages))


def recompute_part(around: Neighbourhood, plan: Plan, rng: Random) -> Plan | None:
    """A stage of which only the first blocks recompute, more or fewer than did."""
    allowed = [again for again in around.recomputes if again]
    several = [index for index, stage in enumerate(plan.stages) if stage.last - stage.first > 1]
    if not allowed or not several or around.fixed:
        return None
    stages, index = list(plan.stages), rng.choice(several)
    stage = stages[index]
    count = rng.randint(1, stage.last - stage.first - 1)
    stages[index] = replace(stage, recompute=stage.recompute or rng.choice(allowed), recomputed=count)
    return replace(plan, stages=tuple(stages))


def rebucket(around: Neighbourhood, plan: Plan, rng: Random) -> Plan | None:
    """The size of buckets that exposes least, or any."""
    if not plan.fuses or not plan.reduces_beside:
        return None
    return (
        with_best_buckets(around.costs, plan) if rng.random() < 0.5 else replace(plan, bucket_bytes=rng.choice(SIZES))
    )
