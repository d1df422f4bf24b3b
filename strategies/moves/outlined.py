"""Plans drawn at random from the outlines of `space`: where a walk begins anew, and moves that change all positions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from random import Random

from placer.plans.plan import Plan, Stage
from placer.strategies.inter_op.partition.even import even_cuts, level_cuts
from placer.strategies.moves.cuts import block_seconds
from placer.strategies.moves.neighbourhood import Neighbourhood
from placer.strategies.space.device_orders import device_orders
from placer.strategies.space.outline import (
    Outline,
    microbatch_rows,
    position_counts,
    replica_counts,
    schedules,
    shardings,
)

# How often what is drawn uses as many replicas as there are devices for.
MOSTLY_ALL = 0.6


def reshape(around: Neighbourhood, plan: Plan, rng: Random) -> Plan | None:
    """Another number of positions, replicas and devices a replica, all positions alike; else as `plan` is."""
    drawn = outlined(around, rng)
    if drawn is None:
        return None
    stage = plan.stages[0]
    stages = tuple(replace(s, sharding=stage.sharding, recompute=stage.recompute) for s in drawn.stages)
    return replace(drawn, stages=stages, microbatches=plan.microbatches if rng.random() < 0.5 else drawn.microbatches)


def outlined(around: Neighbourhood, rng: Random) -> Plan | None:
    """A plan whose positions are alike, evenly cut; None where what was drawn leaves none."""
    problem = around.problem
    number = rng.choice(around.numbers)
    degree, apart = around.degree(number), around.apart(number)
    counts = position_counts(problem, degree)
    if not counts:
        return None
    positions = rng.choice(counts)
    replicas = replica_counts(problem, positions, degree)
    if not replicas:
        return None
    each = replicas[-1] if rng.random() < MOSTLY_ALL else rng.choice(replicas)
    rows, ways = microbatch_rows(problem, each, apart), schedules(problem, positions)
    if not rows or not ways:
        return None
    schedule, virtual = rng.choice(ways)
    kept = shardings(problem, each, schedule)
    if not kept:
        return None
    outline = Outline(
        positions=positions, replicas=each, virtual=virtual, rows=problem.rows, microbatch=rng.choice(rows),
        schedule=schedule, sharding=rng.choice(kept), layout=-1 if number is None else number, degree=degree,
        device_order=rng.choice(device_orders(problem.cluster, positions, each, degree)),
    )  # fmt: skip
    if any(len(outline.devices(p)) < each * degree for p in range(positions)):
        return None
    return _cut(around, outline, number, rng)


def _cut(around: Neighbourhood, outline: Outline, number: int | None, rng: Random) -> Plan:
    problem, blocks = around.problem, len(around.problem.graph.blocks)
    again, cut = rng.choice(around.recomputes), level_cuts if outline.virtual > 1 else even_cuts
    places = [
        Stage(
            first=0, last=blocks, devices=outline.devices(p), sharding=outline.sharding, recompute=again, layout=number,
            degree=outline.degree,
        )
        for p in range(outline.positions)
    ]  # fmt: skip
    plan = Plan(
        model=problem.model, graph=problem.graph, cluster=problem.cluster, settings=problem.settings,
        stages=_along(places, cut([1.0] * blocks, outline.stages), blocks), schedule=outline.schedule,
        microbatches=outline.microbatches, layouts=around.layouts, seed=problem.seed,
    )  # fmt: skip
    if outline.virtual > 1 or outline.positions == 1:
        return plan
    return replace(plan, stages=_along(places, even_cuts(block_seconds(around, plan), outline.stages), blocks))


def _along(places: Sequence[Stage], cuts: Sequence[int], blocks: int) -> tuple[Stage, ...]:
    """Stages with these cuts, going round the places."""
    edges = pairwise((0, *cuts, blocks))
    return tuple(replace(places[s % len(places)], first=a, last=b) for s, (a, b) in enumerate(edges))
