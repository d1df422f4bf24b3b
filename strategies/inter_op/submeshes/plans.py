"""Plans whose positions have shapes of their own: the paces they may have, and the plan of what a search found."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from placer.plans.plan import Layout, Plan, ScheduleName, Stage
from placer.search.problem import Problem
from placer.strategies.inter_op.submeshes.bounds import Pace
from placer.strategies.inter_op.submeshes.pareto_dp import Shaped
from placer.strategies.space.outline import fused, microbatch_rows, schedules, shardings


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapedPlan:
    """A plan found: its seconds, and what makes it."""

    value: float
    pace: Pace
    made: Shaped


def one_turn(problem: Problem, positions: int) -> tuple[ScheduleName, ...]:
    """The schedules of plans with one stage at each position."""
    return tuple(name for name, virtual in schedules(problem, positions) if virtual == 1)


def paces(problem: Problem, positions: tuple[int, ...], most: int) -> Iterator[Pace]:
    """Every pace of plans of so many positions, of at most `most` replicas."""
    names = dict.fromkeys(name for p in positions for name in one_turn(problem, p))
    for rows in microbatch_rows(problem, 1):
        for schedule in names:
            for sharding in shardings(problem.pins, most, schedule):
                yield Pace(rows=rows, schedule=schedule, sharding=sharding)


def shaped_plan(problem: Problem, layouts: tuple[Layout, ...], found: ShapedPlan) -> Plan:
    """The plan that was found."""
    made, blocks = found.made, len(problem.graph.blocks)
    used = sorted({spot.shape.layout for spot in made.spots if spot.shape.layout >= 0})
    edges = (0, *made.cuts, blocks)
    stages = tuple(
        Stage(
            first=edges[s], last=edges[s + 1], devices=spot.devices, sharding=found.pace.kept(spot.shape),
            recompute=made.recompute[s], degree=spot.shape.degree,
            layout=used.index(spot.shape.layout) if spot.shape.layout >= 0 else None,
        )
        for s, spot in enumerate(made.spots)
    )  # fmt: skip
    full, rest = divmod(problem.rows, found.pace.rows)
    plan = Plan(
        model=problem.model, graph=problem.graph, cluster=problem.cluster, settings=problem.settings, stages=stages,
        schedule=found.pace.schedule, microbatches=(found.pace.rows,) * full + ((rest,) if rest else ()),
        seed=problem.seed, layouts=tuple(layouts[number] for number in used),
    )  # fmt: skip
    return fused(problem, plan)
