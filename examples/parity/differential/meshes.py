"""reshaped(draw, plan, ranks): the same plan with its positions on meshes of different shapes, where that is legal.

Each position draws replicas, shares, devices of a replica and a layout of its own; what its stages do else stays.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

from examples.parity.differential.cuts import random_cutting, random_layout
from examples.parity.processes import processes
from placer.graph import Graph
from placer.legality import check
from placer.plans.plan import Layout, Plan, Stage

# Positions x replicas x devices that are too many, and what legality refuses, are drawn again so often.
DRAWS = 30


def reshaped(draw: Random, plan: Plan, ranks: int) -> Plan:
    """A legal plan on other meshes; `plan` itself where it has one position, or where no draw is legal."""
    for _ in range(DRAWS if plan.positions > 1 else 0):
        made = _drawn(draw, plan, ranks)
        if made is not None and not check(made):
            return made
    return plan


def _drawn(draw: Random, plan: Plan, ranks: int) -> Plan | None:
    shapes = [(draw.choice((1, 1, 2, 2, 3, 4)), draw.choice((1, 1, 2, 3))) for _ in range(plan.positions)]
    ends = [0]
    for replicas, degree in shapes:
        ends.append(ends[-1] + replicas * degree)
    if ends[-1] > ranks or len(set(shapes)) == 1:
        return None
    degrees = sorted({degree for _, degree in shapes if degree > 1})
    layouts = tuple(_layout(draw, plan.graph, degree) for degree in degrees)
    shares = [_shares(draw, replicas) for replicas, _ in shapes]
    stages = []
    for index, stage in enumerate(plan.stages):
        at = index % plan.positions
        replicas, degree = shapes[at]
        sharded = stage.sharding if replicas > 1 else "none"
        stages.append(
            Stage(
                first=stage.first, last=stage.last, devices=tuple(range(ends[at], ends[at + 1])), shares=shares[at],
                sharding=sharded, recompute=stage.recompute, recomputed=stage.recomputed, degree=degree,
                layout=degrees.index(degree) if degree > 1 else None,
            )
        )  # fmt: skip
    return replace(plan, stages=tuple(stages), layouts=layouts, cluster=processes(ends[-1]))


def _layout(draw: Random, graph: Graph, degree: int) -> Layout:
    return random_layout(draw, random_cutting(draw, graph, degree))


def _shares(draw: Random, replicas: int) -> tuple[int, ...]:
    return tuple(draw.randint(1, 4) for _ in range(replicas)) if draw.random() < 0.4 and replicas > 1 else ()
