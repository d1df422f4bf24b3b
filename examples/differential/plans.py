"""random_plan(seed, graph, ...): a random plan of a graph on 2 to `ranks` processes; what is illegal is drawn again.

Positions x replicas x devices of a replica, cuts anywhere, any schedule, shares, sharding, recompute and layout of each
stage, devices in any order, microbatches of any rows with an uneven last one, and settings that change a step.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from itertools import pairwise
from random import Random

from examples.differential.cuts import AXES, ROWS, random_cutting, random_layout
from examples.verify_cases import processes
from examples.verify_splits import searched
from placer.graph import Graph
from placer.legality import Violation, check
from placer.plans import Layout, ModelRef, Plan, ScheduleName, Sharding, Stage
from placer.settings import RunSettings

SCHEDULES: tuple[ScheduleName, ...] = ("1f1b", "1f1b", "gpipe", "zero-bubble", "interleaved")
SHARDINGS: tuple[Sharding, ...] = ("none", "none", "gradients", "parameters")
DRAWS = 200
# How often a layout is searched: that takes seconds.
SEARCHED = 0.12


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
            return Drawn(plan=plan, redrawn=redrawn)
        redrawn[found[0].rule] += 1
    raise RuntimeError(f"no legal plan of {graph.name} in {DRAWS} draws: {dict(redrawn)}")


def _drawn(draw: Random, graph: Graph, model: ModelRef, ranks: int) -> Plan:
    positions, replicas, degree = _shape(draw, len(graph.blocks), ranks)
    schedule = draw.choice(SCHEDULES) if positions > 1 else "1f1b"
    turns = draw.choice((2, 3)) if schedule == "interleaved" else 1
    turns = max(1, min(turns, len(graph.blocks) // positions))
    layouts = _layouts(draw, graph, model, degree, positions * turns)
    return Plan(
        model=model,
        graph=graph,
        cluster=processes(positions * replicas * degree),
        settings=_settings(draw),
        stages=_stages(draw, graph, (positions, replicas, degree), positions * turns, len(layouts)),
        schedule=schedule if turns > 1 or schedule != "interleaved" else "1f1b",
        microbatches=_microbatches(draw, replicas),
        layouts=layouts,
        seed=draw.randrange(1000),
    )


def _shape(draw: Random, blocks: int, ranks: int) -> tuple[int, int, int]:
    """Positions, replicas and devices of a replica; worlds of few ranks are drawn more often, being quicker."""
    every = [
        (positions, replicas, degree)
        for positions in range(1, min(ranks, blocks, 4) + 1)
        for replicas in range(1, ranks // positions + 1)
        for degree in (1, 2, 3, 4)
        if 2 <= positions * replicas * degree <= ranks
    ]
    weights = [1.0 / (p * r * d) * (2.0 if d in (2, 4) else 1.0 if d == 1 else 0.3) for p, r, d in every]
    return draw.choices(every, weights)[0]


def _layouts(draw: Random, graph: Graph, model: ModelRef, degree: int, stages: int) -> tuple[Layout, ...]:
    """Layouts that are drawn op by op, or now and then one that a search finds."""
    if degree == 1:
        return ()
    found = searched(graph, model, ROWS, draw.choice(AXES), degree) if draw.random() < SEARCHED else ()
    if found:
        return (draw.choice(found),)
    cutting = random_cutting(draw, graph, degree)
    return tuple(random_layout(draw, cutting) for _ in range(draw.randint(1, min(stages, 2))))


def _stages(draw: Random, graph: Graph, shape: tuple[int, int, int], count: int, layouts: int) -> tuple[Stage, ...]:
    positions, replicas, degree = shape
    devices = list(range(positions * replicas * degree))
    if draw.random() < 0.3:
        draw.shuffle(devices)
    size = replicas * degree
    ends = [0, *sorted(draw.sample(range(1, len(graph.blocks)), count - 1)), len(graph.blocks)]
    shares = tuple(draw.randint(1, 4) for _ in range(replicas)) if draw.random() < 0.4 and replicas > 1 else ()
    sharding, alike = draw.choice(SHARDINGS) if replicas > 1 else "none", draw.random() < 0.7
    again = draw.choice((0.0, 0.5, 1.0))
    made = []
    for index, (first, last) in enumerate(pairwise(ends)):
        at = index % positions
        made.append(
            Stage(
                first=first, last=last, devices=tuple(devices[at * size : (at + 1) * size]), shares=shares,
                recompute=draw.random() < again, layout=draw.randrange(layouts) if layouts else None, degree=degree,
                sharding=sharding if alike or replicas == 1 else draw.choice(SHARDINGS),
            )
        )  # fmt: skip
    return tuple(made)


def _microbatches(draw: Random, replicas: int) -> tuple[int, ...]:
    """Rows of each: alike with a smaller last one, or any."""
    count, rows = draw.choice((1, 2, 2, 3, 4)), draw.randint(1, 3) + replicas - 1
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
        bucket_bytes=draw.choice((2**8, 2**12, 25 * 2**20)),
        overlap=draw.random() < 0.7,
    )
    return replace(found, optimizer="sgd", momentum=0.9) if draw.random() < 0.1 else found
