"""Repair: the small changes that make a moved plan legal, where there are such.

    shape     shares of other replicas than there are become equal, those that leave a replica without a row get it one;
              sharding over one replica becomes none, of gradients under a schedule that splits backwards the
              optimizer's; microbatches too small for all replicas grow; where rows mix, one replica and one microbatch;
              what settings or pins fix is as they say
    memory    (`lighter`) where a position holds too much its stages recompute, shard, or microbatches are halved

None is returned where that is not enough: an empty stage, a replica of devices that are no group, a broken pin.
A microbatch that is not the last has as many rows as the first, which has most: so the closed form prices them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import reduce
from math import gcd, lcm
from random import Random
from typing import get_args

from placer.costs.communication.gradient_buckets import SIZES
from placer.io.memo import once
from placer.plans.plan import BY_FSDP, Plan, Recompute, ScheduleName, Sharding, Stage, replica_rows
from placer.plans.schedule import LOOPING, SPLIT_BACKWARD
from placer.plans.transfers import position_of
from placer.search.evaluator import Score
from placer.search.judge import broken_pins
from placer.search.problem import Pins
from placer.strategies.moves.neighbourhood import Neighbourhood, loops
from placer.strategies.space.outline import schedule_name

FREE = Pins()
SHARDED: tuple[Sharding, ...] = ("optimizer", "gradients", "parameters")


def repaired(around: Neighbourhood, plan: Plan) -> Plan | None:
    """The legal plan next to `plan`, but for memory and rules that no small change mends; None where there is none."""
    if any(stage.last <= stage.first or not stage.devices for stage in plan.stages):
        return None
    schedule = _schedule(around, plan)
    if schedule is None:
        return None
    most = 1 if around.problem.whole_batch else around.problem.rows
    replicas = max([stage.replicas for stage in plan.stages])
    if replicas > most:
        plan, replicas = replace(plan, stages=tuple(_few_replicas(stage, most) for stage in plan.stages)), most
    microbatches = _microbatches(around, plan.stages, plan.microbatches[0], replicas)
    if not microbatches:
        return None
    stages = _stages(around, plan, schedule, microbatches[0])
    if stages is None:
        return None
    found = replace(plan, stages=stages, schedule=schedule, microbatches=microbatches)
    bucket = around.problem.pins.bucket or (SIZES[-1] if not found.reduces_beside else found.bucket_bytes)
    if bucket != found.bucket_bytes:
        found = replace(found, bucket_bytes=bucket)
    pins = around.problem.pins
    return None if pins != FREE and broken_pins(found, pins) else found


def lighter(around: Neighbourhood, plan: Plan, score: Score, rng: Random) -> Iterator[Plan]:
    """Plans that hold less where `plan` holds too much, in any order: over-full positions that recompute, that divide
    their state, or both; and microbatches of half as many rows."""
    devices = plan.cluster.devices
    over = {p for p, (d, held) in enumerate(score.held_by) if held.total > devices[d].memory_bytes}
    ways = [(again, kept) for kept in (None, *SHARDED) for again in around.recomputes if again or kept]
    rng.shuffle(ways)
    for again, kept in ways:
        stages = tuple(
            _lightened(stage, again, kept) if position in over else stage
            for position, stage in zip(position_of(plan), plan.stages, strict=True)
        )
        found = None if stages == plan.stages else repaired(around, replace(plan, stages=stages))
        if found is not None:
            yield found
    if plan.microbatches[0] > 1:
        found = repaired(around, replace(plan, microbatches=cut_rows(plan.rows, plan.microbatches[0] // 2)))
        if found is not None:
            yield found


def _lightened(stage: Stage, again: Recompute, kept: Sharding | None) -> Stage:
    """The stage that recomputes too, or keeps its state so."""
    most = again if again is True or not stage.recompute else stage.recompute
    return replace(
        stage, recompute=most, recomputed=None if again else stage.recomputed, sharding=kept or stage.sharding
    )


def cut_rows(rows: int, size: int) -> tuple[int, ...]:
    """Microbatches of `size` rows, the last one what is left over."""
    full, rest = divmod(rows, size)
    return (size,) * full + ((rest,) if rest else ())


def smallest_shares(each: tuple[int, ...]) -> tuple[int, ...]:
    """The shares of so many rows each, in the smallest numbers; none where they are equal."""
    divisor = reduce(gcd, each)
    return () if len(set(each)) == 1 else tuple(rows // divisor for rows in each)


def _schedule(around: Neighbourhood, plan: Plan) -> ScheduleName | None:
    pinned, name = around.problem.pins.schedule, plan.schedule
    if loops(plan):
        return "interleaved" if len(plan.stages) % plan.positions == 0 and pinned in (None, "interleaved") else None
    if pinned in LOOPING:
        return None
    if pinned is not None:
        return schedule_name(pinned)
    return "1f1b" if plan.positions == 1 or name in LOOPING else name


def _few_replicas(stage: Stage, most: int) -> Stage:
    if stage.replicas <= most:
        return stage
    return replace(stage, devices=stage.devices[: most * stage.degree], shares=())


def _microbatches(around: Neighbourhood, stages: tuple[Stage, ...], size: int, replicas: int) -> tuple[int, ...]:
    """Microbatches of about `size` rows of which every one of at most so many replicas has one; empty where there are
    none such."""
    problem = around.problem
    rows, pinned = problem.rows, problem.pins.microbatches
    if problem.whole_batch:
        return (rows,)
    if pinned is not None:
        sizes = [own for own in range(-(-rows // pinned), rows + 1) if -(-rows // own) == pinned]
        size = min(sizes, key=lambda own: abs(own - size), default=0)
    size = min(max(size, replicas), rows)
    if around.any_apart and (parts := _parts(around, stages)):
        part = lcm(*parts)
        size = size // part * part or part
        if rows % part or size > rows:
            return ()
    return cut_rows(rows, size) if size else ()


def _parts(around: Neighbourhood, stages: tuple[Stage, ...]) -> set[int]:
    """Of stages whose devices have rows of their own how many devices those are."""
    return {stage.replicas * around.apart(stage.layout) for stage in stages if around.apart(stage.layout) > 1}


def _stages(around: Neighbourhood, plan: Plan, schedule: ScheduleName, rows: int) -> tuple[Stage, ...] | None:
    """The plan's stages with what fits together; None where a replica is on devices that are no group."""
    known, found = around.repaired_stages, []
    for stage in around.costs.known.of(plan):
        made = once(known, (stage, schedule, rows), _stage, around, stage.stage, schedule, rows)
        if made is None:
            return None
        found.append(made)
    return tuple(found)


def _stage(around: Neighbourhood, stage: Stage, schedule: ScheduleName, rows: int) -> Stage | None:
    if not around.holds(stage):
        return None
    sharding, shares = _sharding(around, stage, schedule), _shares(around, stage, rows)
    allowed = around.recomputes
    again = stage.recompute if stage.recompute in allowed else allowed[0]
    part = stage.recomputed
    if part is not None and (not again or around.fixed or part >= stage.last - stage.first):
        part = None
    if (sharding, shares, again, part) == (stage.sharding, stage.shares, stage.recompute, stage.recomputed):
        return stage
    return replace(stage, sharding=sharding, shares=shares, recompute=again, recomputed=part)


def _sharding(around: Neighbourhood, stage: Stage, schedule: ScheduleName) -> Sharding:
    pinned = around.problem.pins.shard
    wanted = next((known for known in get_args(Sharding) if known == pinned), stage.sharding)
    if wanted == "none" or stage.replicas == 1:
        return "none"
    if around.problem.cluster.unlike(stage.devices):
        return "none"
    whole_units = schedule not in SPLIT_BACKWARD and not around.problem.mixed_types
    return "optimizer" if wanted in BY_FSDP and not whole_units else wanted


def _shares(around: Neighbourhood, stage: Stage, rows: int) -> tuple[int, ...]:
    """The stage's shares by which every replica has a row of a microbatch of so many; equal where they do not fit."""
    if not stage.shares:
        return ()
    if len(stage.shares) != stage.replicas or rows < stage.replicas or around.apart(stage.layout) > 1:
        return ()
    each = list(replica_rows(rows, stage.shares, stage.replicas))
    if min(each) > 0:
        return stage.shares
    each = [max(1, own) for own in each]
    while sum(each) > rows:
        each[each.index(max(each))] -= 1
    return smallest_shares(tuple(each))
