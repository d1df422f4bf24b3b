"""Moves of cuts: blocks from one stage to its neighbour, a stage in two, two stages in one, positions that take turns.

Stages of a position that has several differ by one block at most: the closed step time is that of even turns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from random import Random

from placer.plans.plan import Plan, Stage
from placer.strategies.inter_op.partition.even import even_cuts, level_cuts
from placer.strategies.moves.neighbourhood import Neighbourhood, devices_of, loops, units
from placer.strategies.space.outline import MOST_VIRTUAL

# Of ten shifts those by one block; the others are by any number.
MOSTLY_ONE = 0.7


def shift_cut(around: Neighbourhood, plan: Plan, rng: Random) -> Plan | None:
    """Some blocks from a stage to the one before or after it."""
    if len(plan.stages) < 2:
        return None
    index = rng.randrange(len(plan.stages) - 1)
    before, after = plan.stages[index : index + 2]
    room = [cut for cut in range(before.first + 1, after.last) if cut != before.last]
    if not room:
        return None
    near = [cut for cut in room if abs(cut - before.last) == 1]
    return _cut_at(plan, {index: rng.choice(near if rng.random() < MOSTLY_ONE else room)})


def shift_cuts(around: Neighbourhood, plan: Plan, rng: Random) -> Plan | None:
    """One block in at one end of a run of stages, one out at the other end: the cuts between all move by one."""
    if len(plan.stages) < 3:
        return None
    first, last = sorted(rng.sample(range(len(plan.stages) - 1), 2))
    step = rng.choice((-1, 1))
    return _cut_at(plan, {index: plan.stages[index].last + step for index in range(first, last + 1)})


def recut(around: Neighbourhood, plan: Plan, rng: Random) -> Plan | None:
    """All cuts anew, where stages take equally long on their own devices, or are of equally many blocks."""
    count = len(plan.stages)
    if count < 2:
        return None
    blocks = len(plan.graph.blocks)
    weights = block_seconds(around, plan) if rng.random() < MOSTLY_ONE else [1.0] * blocks
    return _recut(plan, (level_cuts if loops(plan) else even_cuts)(weights, count))


def split_stage(around: Neighbourhood, plan: Plan, rng: Random) -> Plan | None:
    """A stage in two, on half of its replicas each, or the second one on devices that nobody uses."""
    if loops(plan):
        return None
    index = rng.randrange(len(plan.stages))
    stage = plan.stages[index]
    if stage.last - stage.first < 2:
        return None
    own, free = units(stage), around.free(plan, stage.degree)
    if free and (len(own) < 2 or rng.random() < 0.5):
        first, second = own, free[: rng.randint(1, min(len(free), len(own)))]
    elif len(own) > 1:
        count = len(own) // 2 if rng.random() < MOSTLY_ONE else rng.randrange(1, len(own))
        first, second = own[:count], own[count:]
    else:
        return None
    at = rng.randrange(stage.first + 1, stage.last)
    both = (
        replace(stage, last=at, devices=devices_of(first), shares=()),
        replace(stage, first=at, devices=devices_of(second), shares=()),
    )
    return _several(around, plan, (*plan.stages[:index], *both, *plan.stages[index + 1 :]))


def join_stages(around: Neighbourhood, plan: Plan, rng: Random) -> Plan | None:
    """Two stages that follow each other in one, on the devices of both or of one of them."""
    if loops(plan) or len(plan.stages) < 2:
        return None
    index = rng.randrange(len(plan.stages) - 1)
    pair = plan.stages[index : index + 2]
    model, other = pair if rng.random() < 0.5 else pair[::-1]
    more = around.within(other.devices, model.degree) if rng.random() < MOSTLY_ONE else []
    own = [*units(model), *more] if model is pair[0] else [*more, *units(model)]
    joined = replace(model, first=pair[0].first, last=pair[1].last, devices=devices_of(own), shares=())
    return _several(around, plan, (*plan.stages[:index], joined, *plan.stages[index + 2 :]))


def split_all(around: Neighbourhood, plan: Plan, rng: Random) -> Plan | None:
    """Every stage in two, each on half of its replicas."""
    if loops(plan) or any(s.replicas % 2 or s.last - s.first < 2 for s in plan.stages):
        return None
    made: list[Stage] = []
    for stage in plan.stages:
        middle, half = (stage.first + stage.last) // 2, len(stage.devices) // 2
        made.append(replace(stage, last=middle, devices=stage.devices[:half], shares=()))
        made.append(replace(stage, first=middle, devices=stage.devices[half:], shares=()))
    return _several(around, plan, tuple(made))


def join_all(around: Neighbourhood, plan: Plan, rng: Random) -> Plan | None:
    """Stages two by two in one, on the devices of both."""
    if loops(plan) or len(plan.stages) % 2:
        return None
    pairs = list(zip(plan.stages[::2], plan.stages[1::2], strict=True))
    if any(a.degree != b.degree for a, b in pairs):
        return None
    joined = (replace(a, last=b.last, devices=(*a.devices, *b.devices), shares=()) for a, b in pairs)
    return _several(around, plan, tuple(joined))


def take_turns(around: Neighbourhood, plan: Plan, rng: Random) -> Plan | None:
    """The same positions with another number of stages each."""
    positions, blocks = plan.positions, len(plan.graph.blocks)
    most = min(MOST_VIRTUAL, blocks // positions)
    counts = [count for count in range(1, most + 1) if count * positions != len(plan.stages)]
    if positions < 2 or not counts:
        return None
    turns = rng.choice(counts)
    weights = block_seconds(around, plan)
    cuts = (level_cuts if turns > 1 else even_cuts)(weights, positions * turns)
    edges = (0, *cuts, blocks)
    stages = tuple(
        replace(plan.stages[s % positions], first=edges[s], last=edges[s + 1]) for s in range(positions * turns)
    )
    return replace(plan, stages=stages, schedule="interleaved" if turns > 1 else "1f1b")


def block_seconds(around: Neighbourhood, plan: Plan) -> list[float]:
    """Seconds of each block on the first device of the stage that has it, for the rows of its first replica."""
    found: list[float] = []
    for stage in plan.stages:
        profile = around.costs.of_stage(plan, stage).block_times.of(
            stage.devices[0], max(1, plan.microbatches[0] // stage.replicas)
        )
        both = [a + b for a, b in zip(profile.forward, profile.backward, strict=True)]
        found += [both[block + 1] - both[block] for block in range(stage.first, stage.last)]
    return found


def _several(around: Neighbourhood, plan: Plan, stages: tuple[Stage, ...]) -> Plan | None:
    """The plan with these stages where there may be so many positions."""
    wanted = around.problem.pins.pipeline
    return None if wanted not in (None, len(stages)) else replace(plan, stages=stages)


def _recut(plan: Plan, cuts: Sequence[int]) -> Plan:
    edges = (0, *cuts, len(plan.graph.blocks))
    stages = (replace(s, first=a, last=b) for s, (a, b) in zip(plan.stages, pairwise(edges), strict=True))
    return replace(plan, stages=tuple(stages))


def _cut_at(plan: Plan, lasts: dict[int, int]) -> Plan | None:
    """The plan whose stages of these numbers end there; stages that keep their blocks stay the very same."""
    stages = list(plan.stages)
    for index, last in lasts.items():
        stages[index] = replace(stages[index], last=last)
        stages[index + 1] = replace(stages[index + 1], first=last)
    sizes = [stage.last - stage.first for stage in stages]
    if min(sizes) < 1 or (loops(plan) and max(sizes) - min(sizes) > 1):
        return None
    return replace(plan, stages=tuple(stages))
