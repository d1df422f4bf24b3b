"""random_plan(seed, graph, ...): a random plan of a graph on 2 to `ranks` processes; what is illegal is drawn again.

Positions x replicas x devices of a replica, cuts anywhere, any schedule, shares, sharding, recompute and layout of each
stage, devices in any order, microbatches of any rows with an uneven last one, and settings that change a step.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from itertools import pairwise
from random import Random
from typing import TypedDict

from examples.parity.differential.cuts import ROWS, random_cutting, random_layout
from examples.parity.differential.meshes import reshaped
from examples.parity.processes import processes
from examples.parity.splits import searched
from placer.graph import Graph
from placer.legality import Violation, check
from placer.plans.plan import Layout, ModelRef, Plan, Recompute, ScheduleName, Sharding, Stage
from placer.plans.settings import RunSettings
from placer.rules.rows import whole_batch_reason
from placer.search.problem import Pins

SCHEDULES: tuple[ScheduleName, ...] = ("1f1b", "1f1b", "gpipe", "zero-bubble", "interleaved", "branched")
SHARDINGS: tuple[Sharding, ...] = (*("none",) * 3, "optimizer", "gradients", "parameters")
DRAWS = 200
# How often a layout is searched: that takes seconds.
SEARCHED = 0.1
# How many of the pipelines get a mesh of its own for each position.
RESHAPED = 0.4
# How often a model whose rows mix is drawn a plan that leaves its batch whole; others are refused and drawn again.
WHOLE = 0.8
# How likely plans of so many ranks are; few ranks are quicker, and most ways to go wrong need no more.
LIKELY = {2: 0.42, 3: 0.18, 4: 0.26, 5: 0.02, 6: 0.05, 7: 0.02, 8: 0.05}


class _Recompute(TypedDict, total=False):
    recompute: Recompute
    recomputed: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """A legal plan, and the rules that the draws before it broke."""

    plan: Plan
    redrawn: Counter[str]


def random_plan(draw: Random, graph: Graph, model: ModelRef, ranks: int) -> Drawn:
    """The first legal plan that is drawn. Raises RuntimeError where `DRAWS` are not enough."""
    redrawn: Counter[str] = Counter()
    for _ in range(DRAWS):
        plan = _drawn(draw, graph, model, ranks)
        found: tuple[Violation, ...] = check(plan)
        if not found:
            other = reshaped(draw, plan, ranks) if draw.random() < RESHAPED else plan
            return Drawn(plan=other, redrawn=redrawn)
        redrawn[found[0].rule] += 1
    raise RuntimeError(f"no legal plan of {graph.name} in {DRAWS} draws: {dict(redrawn)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shape:
    """How many there are: pipeline positions, their stages, replicas with their shares, devices of a replica."""

    positions: int
    replicas: int
    degree: int
    stages: int = 0
    shares: tuple[int, ...] = ()

    @property
    def world(self) -> int:
        """Processes."""
        return self.positions * self.replicas * self.degree


def _drawn(draw: Random, graph: Graph, model: ModelRef, ranks: int) -> Plan:
    shape = _shape(draw, len(graph.blocks), ranks)
    whole = bool(whole_batch_reason(graph, statistics=True)) and draw.random() < WHOLE
    shape = replace(shape, degree=shape.degree * shape.replicas, replicas=1) if whole else shape
    schedule = draw.choice(SCHEDULES) if shape.positions > 1 else "1f1b"
    turns = draw.choice((2, 3)) if schedule == "interleaved" else 1
    turns = max(1, min(turns, len(graph.blocks) // shape.positions))
    shape = replace(shape, stages=shape.positions * turns, shares=_shares(draw, shape.replicas))
    if schedule == "branched":
        shape = replace(shape, stages=draw.randint(shape.positions, min(len(graph.blocks), 3 * shape.positions)))
    layouts = _layouts(draw, graph, model, shape)
    return Plan(
        model=model,
        graph=graph,
        cluster=processes(shape.world),
        settings=_settings(draw),
        stages=_stages(draw, graph, shape, len(layouts), _places(draw, shape, schedule)),
        schedule=schedule if turns > 1 or schedule != "interleaved" else "1f1b",
        microbatches=(ROWS,) if whole else _microbatches(draw, shape, max((one.apart for one in layouts), default=1)),
        layouts=layouts,
        bucket_bytes=draw.choice((2**8, 2**12, 25 * 2**20)),
        seed=draw.randrange(1000),
    )


def _shape(draw: Random, blocks: int, ranks: int) -> _Shape:
    """Positions, replicas and devices of a replica, of a number of ranks that is drawn first."""
    worlds = [world for world in LIKELY if world <= ranks]
    world = draw.choices(worlds, [LIKELY[world] for world in worlds])[0]
    every = [
        _Shape(positions=positions, replicas=replicas, degree=degree)
        for positions in range(1, min(world, blocks, 4) + 1)
        for replicas in range(1, world // positions + 1)
        for degree in (1, 2, 3, 4)
        if positions * replicas * degree == world
    ]
    likely = {1: 1.0, 2: 2.0, 3: 1.0, 4: 2.0}
    return draw.choices(every, [likely[one.degree] for one in every])[0]


def _shares(draw: Random, replicas: int) -> tuple[int, ...]:
    return tuple(draw.randint(1, 4) for _ in range(replicas)) if draw.random() < 0.4 and replicas > 1 else ()


def _layouts(draw: Random, graph: Graph, model: ModelRef, shape: _Shape) -> tuple[Layout, ...]:
    """Layouts that are drawn op by op, or now and then one that a search finds, along any axis."""
    degree = shape.degree
    if degree == 1:
        return ()
    axis = draw.choice([name for name, _ in Pins().axes])
    found = searched(graph, model, ROWS, axis, degree) if degree in (2, 4) and draw.random() < SEARCHED else ()
    if found:
        return (draw.choice(found),)
    cutting = random_cutting(draw, graph, degree)
    return tuple(random_layout(draw, cutting) for _ in range(draw.randint(1, min(shape.stages, 2))))


def _places(draw: Random, shape: _Shape, schedule: ScheduleName) -> tuple[int, ...]:
    """The position of each stage: in turn, or any where stages are a graph."""
    places = [stage % shape.positions for stage in range(shape.stages)]
    if schedule == "branched":
        places[shape.positions :] = draw.choices(range(shape.positions), k=shape.stages - shape.positions)
        draw.shuffle(places)
    return tuple(places)


def _stages(draw: Random, graph: Graph, shape: _Shape, layouts: int, places: tuple[int, ...]) -> tuple[Stage, ...]:
    devices, size = list(range(shape.world)), shape.replicas * shape.degree
    if draw.random() < 0.3:
        draw.shuffle(devices)
    ends = [0, *sorted(draw.sample(range(1, len(graph.blocks)), shape.stages - 1)), len(graph.blocks)]
    sharding, alike = draw.choice(SHARDINGS) if shape.replicas > 1 else "none", draw.random() < 0.7
    again = draw.choice((0.0, 0.5, 1.0))
    return tuple(
        Stage(
            first=first,
            last=last,
            devices=tuple(devices[place * size : (place + 1) * size]),
            shares=shape.shares,
            **_recompute(draw, last - first, again),
            layout=draw.randrange(layouts) if layouts else None,
            degree=shape.degree,
            sharding=sharding if alike or shape.replicas == 1 else draw.choice(SHARDINGS),
        )
        for place, (first, last) in zip(places, pairwise(ends), strict=True)
    )


def _recompute(draw: Random, blocks: int, often: float) -> _Recompute:
    """Whether a stage of so many blocks recomputes, all or all but its products, and of how many blocks."""
    if draw.random() >= often:
        return {}
    some = blocks > 1 and draw.random() < 0.3
    return {"recompute": draw.choice((True, "selective")), "recomputed": draw.randrange(1, blocks) if some else None}


def _microbatches(draw: Random, shape: _Shape, apart: int) -> tuple[int, ...]:
    """Rows of each: alike with a smaller last one, or any. Where the devices of a replica have rows of their own, each
    must have as many of every microbatch."""
    if apart > 1:
        return (apart * (sum(shape.shares) or shape.replicas),) * draw.choice((1, 2))
    count, rows = draw.choice((1, 2, 2, 2, 3, 4)), draw.randint(1, 3) + shape.replicas - 1
    if draw.random() < 0.25:
        return tuple(draw.randint(1, rows + 1) for _ in range(count))
    rest = draw.randint(1, rows)
    return (*(rows,) * (count - 1), rest) if count > 1 else (rows,)


def _settings(draw: Random) -> RunSettings:
    found = RunSettings(
        precision="float64",
        learning_rate=draw.choice((1e-3, 1e-2)),
        weight_decay=draw.choice((0.0, 0.01)),
        clip_norm=draw.choice((1e-2, 0.5, 0.5, 1.0, None)),
        attention=draw.choice(("eager", "flash")),
        batch_norm="microbatch",
        overlap=draw.random() < 0.7,
    )
    return replace(found, optimizer="sgd", momentum=0.9) if draw.random() < 0.1 else found
