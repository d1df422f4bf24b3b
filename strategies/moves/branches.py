"""Moves of plans whose stages are a graph: runs of blocks, or parts of them, from one position to another.

What is moved is a position for every block; the stages are made anew of it (`space/placements`), and do as the stage
did that had their first block before. A position that loses all its blocks is left.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from random import Random

from placer.plans.plan import Plan, Stage
from placer.strategies.moves.neighbourhood import Neighbourhood, devices_of, loops, units
from placer.strategies.space.placements import Placement, stage_ranges, twins_joined

# How often a whole run is moved, not a part of it, and how often onto devices that nobody uses where there are such.
MOSTLY_WHOLE, TO_FREE = 0.5, 0.2


def branch(around: Neighbourhood, plan: Plan, rng: Random) -> Plan | None:
    """A chain of stages as a graph of them, on the same devices."""
    if loops(plan) or plan.positions < 2 or not around.branches:
        return None
    return _placed(around, plan, _homes(plan), plan.meshes)


def move_run(around: Neighbourhood, plan: Plan, rng: Random) -> Plan | None:
    """The blocks of a run, or some next to each other that stand on one position, to another position."""
    homes, meshes = _homes(plan), list(plan.meshes)
    blocks = _part(around, homes, rng)
    spare = around.free(plan, meshes[homes[blocks[0]]].degree)
    wanted = around.problem.pins.pipeline
    if spare and wanted is None and rng.random() < TO_FREE:
        model, count = meshes[homes[blocks[0]]], rng.randint(1, len(spare))
        meshes.append(replace(model, devices=devices_of(spare[:count]), shares=()))
        target = len(meshes) - 1
    else:
        others = [position for position in range(len(meshes)) if position != homes[blocks[0]]]
        if not others:
            return None
        target = rng.choice(others)
    return _placed(around, plan, _moved(homes, blocks, target), meshes)


def swap_runs(around: Neighbourhood, plan: Plan, rng: Random) -> Plan | None:
    """Blocks of one position for such of another."""
    homes = _homes(plan)
    one, other = _part(around, homes, rng), _part(around, homes, rng)
    if homes[one[0]] == homes[other[0]]:
        return None
    both = _moved(_moved(homes, one, homes[other[0]]), other, homes[one[0]])
    return _placed(around, plan, both, plan.meshes)


def join_positions(around: Neighbourhood, plan: Plan, rng: Random) -> Plan | None:
    """All blocks of two positions on the devices of both, or of one of them."""
    if plan.positions < 2:
        return None
    one, other = rng.sample(range(plan.positions), 2)
    meshes, homes = list(plan.meshes), _homes(plan)
    if rng.random() < MOSTLY_WHOLE:
        own = [*units(meshes[one]), *around.within(meshes[other].devices, meshes[one].degree)]
        meshes[one] = replace(meshes[one], devices=devices_of(own), shares=())
    return _placed(around, plan, tuple(one if home == other else home for home in homes), meshes)


def split_position(around: Neighbourhood, plan: Plan, rng: Random) -> Plan | None:
    """A position of several replicas as two of half as many, some of its runs on each."""
    several = [position for position, mesh in enumerate(plan.meshes) if mesh.replicas > 1]
    if not several:
        return None
    position = rng.choice(several)
    meshes, homes = list(plan.meshes), list(_homes(plan))
    own = units(meshes[position])
    half = len(own) // 2
    meshes.append(replace(meshes[position], devices=devices_of(own[half:]), shares=()))
    meshes[position] = replace(meshes[position], devices=devices_of(own[:half]), shares=())
    for run in around.blocks.runs:
        if rng.random() < 0.5:
            homes = [len(meshes) - 1 if b in run and home == position else home for b, home in enumerate(homes)]
    return _placed(around, plan, tuple(homes), meshes)


def part_stage(around: Neighbourhood, plan: Plan, rng: Random) -> Plan | None:
    """A stage in two on the same devices, so that others go on with what the first of them has made."""
    several = [index for index, stage in enumerate(plan.stages) if stage.last - stage.first > 1]
    if not several:
        return None
    index = rng.choice(several)
    stage = plan.stages[index]
    at = rng.randrange(stage.first + 1, stage.last)
    both = replace(stage, last=at, recomputed=None), replace(stage, first=at, recomputed=None)
    return replace(plan, stages=(*plan.stages[:index], *both, *plan.stages[index + 1 :]))


def merge_stages(around: Neighbourhood, plan: Plan, rng: Random) -> Plan | None:
    """Two stages that follow each other on the same devices in one."""
    pairs = [index for index, (a, b) in enumerate(pairwise(plan.stages)) if a.devices == b.devices]
    if not pairs or len(plan.stages) < 3:
        return None
    index = rng.choice(pairs)
    merged = replace(plan.stages[index], last=plan.stages[index + 1].last, recomputed=None)
    return replace(plan, stages=(*plan.stages[:index], merged, *plan.stages[index + 2 :]))


def _homes(plan: Plan) -> Placement:
    """The position of each block."""
    at = {stage: position for position, stages in enumerate(plan.stages_at) for stage in stages}
    return tuple(at[index] for index, stage in enumerate(plan.stages) for _ in range(stage.first, stage.last))


def _part(around: Neighbourhood, homes: Placement, rng: Random) -> tuple[int, ...]:
    """Blocks of one run that stand on one position: all of them, or those up to one or from one on."""
    run = rng.choice(around.blocks.runs)
    block = rng.choice(run)
    own = tuple(b for b in run if homes[b] == homes[block])
    if rng.random() < MOSTLY_WHOLE:
        return own
    at = own.index(block)
    return own[at:] if rng.random() < 0.5 else own[: at + 1]


def _moved(homes: Placement, blocks: Sequence[int], target: int) -> Placement:
    moving = set(blocks)
    return tuple(target if block in moving else home for block, home in enumerate(homes))


def _placed(around: Neighbourhood, plan: Plan, homes: Placement, meshes: Sequence[Stage]) -> Plan | None:
    """The plan of a position for every block; a chain of one stage where one position has all."""
    count, wanted = len(set(homes)), around.problem.pins.pipeline
    if wanted not in (None, count):
        return None
    joined = around.problem.pins.stage_of == () and _has_twins_joined(around, plan)
    if joined:
        homes, ranges = twins_joined(homes, around.blocks)
    else:
        ranges = tuple(stage_ranges(homes, around.blocks))
    before = [stage for stage in plan.stages for _ in range(stage.first, stage.last)]
    own = ranges if count > 1 else [(0, len(homes))]
    stages = tuple(_on(before[first], first, last, meshes[homes[first]]) for first, last in own)
    return replace(plan, stages=stages, schedule="branched" if count > 1 else "1f1b")


def _has_twins_joined(around: Neighbourhood, plan: Plan) -> bool:
    """Whether a stage of the plan has twins, so that those of what it is moved to are together too."""
    twin_of = around.blocks.twin_of
    return any(twin_of[b] == twin_of[b - 1] for stage in plan.stages for b in range(stage.first + 1, stage.last))


def _on(stage: Stage, first: int, last: int, mesh: Stage) -> Stage:
    """A stage of these blocks on a mesh, which otherwise does as `stage` did."""
    part = stage.recomputed if (stage.first, stage.last) == (first, last) else None
    made = replace(
        stage, first=first, last=last, devices=mesh.devices, shares=mesh.shares, degree=mesh.degree,
        layout=mesh.layout, recomputed=part,
    )  # fmt: skip
    return stage if made == stage else made
