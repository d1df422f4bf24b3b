"""Every plan of a small problem, judged by legality and estimate alone: the oracle the exact strategies are held to.

In: a Problem of at most `MOST_PLANS` plans. Out: the plan of the smallest estimate; its bound is that estimate. The
enumeration is its own: it shares no code with `space` or `inter_op`, so that a mistake there cannot hide here. Layouts
are given to both (`layouts`); whether they are the best of all splits is tested apart, split by split. Of unlike
devices all orders are looked at, and those kept that `device_orders` describes; of unlike replicas all whole rows of a
microbatch.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import replace

from placer.costs.costs import Costs
from placer.costs.step_estimate import estimate_with
from placer.errors import Infeasible, UsageError
from placer.legality import check
from placer.plans.plan import Layout, Plan, Recompute, ScheduleName, Sharding, Stage
from placer.search.judge import broken_pins
from placer.search.problem import Pins, Problem, Solution
from placer.strategies.intra_op.layouts import layouts, roomy_layouts
from placer.strategies.oracle.enumeration import (
    SCHEDULES,
    SHARDINGS,
    DeviceGrids,
    Grid,
    every_microbatches,
    every_recompute,
    shaped_plans,
)

# Some ten seconds of estimates and checks on one core.
MOST_PLANS = 60_000
DEEPEST_LOOP = 4


class Exhaustive:
    """Enumerates, estimates, sorts; the first legal plan is the best one."""

    name = "exhaustive"
    exact = True

    def solve(self, problem: Problem) -> Solution | Infeasible:
        """The best plan of the whole space; where none fits, of more layouts (`roomy_layouts`). Raises UsageError for
        more than `MOST_PLANS` plans."""
        found = _best(problem, every_plan(problem))
        if isinstance(found, Infeasible):
            costs = problem.costs
            roomy = _best(problem, _alike(problem, costs, roomy_layouts(problem, costs)))
            return found if isinstance(roomy, Infeasible) else roomy
        return found


def _best(problem: Problem, every: Iterator[Plan]) -> Solution | Infeasible:
    """The best of these plans."""
    blocks, devices = len(problem.graph.blocks), problem.cluster.size
    plans = list(itertools.islice(every, MOST_PLANS + 1))
    if len(plans) > MOST_PLANS:
        raise UsageError(
            f"exhaustive search was asked for {blocks} blocks on {devices} devices: "
            f"more than {MOST_PLANS} plans; use the strategy stages, or pin some choices"
        )
    costs = problem.costs
    seconds = [estimate_with(costs, plan).step_seconds for plan in plans]
    broken: list[tuple[int, str]] = []
    for index in sorted(range(len(plans)), key=seconds.__getitem__):
        violations = check(plans[index], costs)
        if not violations:
            return Solution(plan=plans[index], bound=seconds[index], evaluations=len(plans))
        broken.append((len(violations), "; ".join(violation.message for violation in violations)))
    return _infeasible(broken)


def every_plan(problem: Problem) -> Iterator[Plan]:
    """Every plan the pins allow, legal or not. Raises UsageError for many kinds of devices or ways to share."""
    costs = problem.costs
    found = layouts(problem, costs)
    yield from _alike(problem, costs, (None, *found))
    for plan in shaped_plans(problem, found):
        yield from (made for made in _fused(plan, costs, problem.pins) if not broken_pins(made, problem.pins))


def _alike(problem: Problem, costs: Costs, found: Iterable[Layout | None]) -> Iterator[Plan]:
    """The plans whose positions are all alike, under each of these layouts."""
    for layout in found:
        machines = DeviceGrids(problem.cluster, costs.under(layout))
        for grid in _grids(problem, machines):
            for stages, schedule in _stagings(problem, grid):
                for microbatches in every_microbatches(problem.rows):
                    for shares in machines.shares(grid, microbatches[0]):
                        plan = _plan(problem, stages, schedule, microbatches, shares, layout)
                        for made in _fused(plan, costs, problem.pins):
                            if not broken_pins(made, problem.pins):
                                yield made


def _plan(
    problem: Problem, stages: tuple[Stage, ...], schedule: ScheduleName, microbatches: tuple[int, ...],
    shares: tuple[int, ...], layout: Layout | None,
) -> Plan:  # fmt: skip
    stages = tuple(replace(stage, shares=shares) for stage in stages) if shares else stages
    if layout is not None:
        stages = tuple(replace(stage, layout=0, degree=layout.degree) for stage in stages)
    return Plan(
        model=problem.model, graph=problem.graph, cluster=problem.cluster, settings=problem.settings,
        stages=stages, schedule=schedule, microbatches=microbatches, seed=problem.seed,
        layouts=() if layout is None else (layout,),
    )  # fmt: skip


def _fused(plan: Plan, costs: Costs, pins: Pins) -> Iterator[Plan]:
    """The plan with its gradients in buckets of every size; of sizes that fill as many buckets the smallest."""
    if pins.bucket is not None:
        yield replace(plan, bucket_bytes=pins.bucket)
        return
    if all(stage.replicas == 1 or stage.by_fsdp for stage in plan.stages):
        yield plan
        return
    views = [costs.of_stage(plan, stage) for stage in plan.stages]
    seen = set()
    for exponent in range(20, 31):
        filled = tuple(
            max(1, math.ceil(_gradient_bytes(view, stage) / 2**exponent))
            for view, stage in zip(views, plan.stages, strict=True)
        )
        if filled not in seen:
            seen.add(filled)
            yield replace(plan, bucket_bytes=2**exponent)


def _gradient_bytes(costs: Costs, stage: Stage) -> int:
    held = costs.ranges.of(stage.first, stage.last).counts
    return (held.trainable - held.elsewhere) * costs.numerics.weight_bytes


def _grids(problem: Problem, machines: DeviceGrids) -> Iterator[Grid]:
    """Every way to give positions and replicas their devices."""
    blocks, count = len(problem.graph.blocks), len(machines.units)
    for positions in range(1, min(blocks, count) + 1):
        for replicas in range(1, min(count // positions, problem.rows) + 1):
            yield from machines.grids(positions, replicas)


def _stagings(problem: Problem, grid: Grid) -> Iterator[tuple[tuple[Stage, ...], ScheduleName]]:
    blocks, positions, replicas = len(problem.graph.blocks), len(grid), len(grid[0])
    for loops in range(1, DEEPEST_LOOP + 1 if positions > 1 else 2):
        for sharding in SHARDINGS if replicas > 1 else SHARDINGS[:1]:
            for edges in _cuts(blocks, positions * loops, even=loops > 1):
                for recompute in every_recompute(problem, positions * loops):
                    stages = _stages((0, *edges, blocks), grid, sharding, recompute)
                    names = SCHEDULES if loops == 1 else ("interleaved",)
                    yield from ((stages, name) for name in names)


def _cuts(blocks: int, stages: int, *, even: bool) -> Iterator[tuple[int, ...]]:
    """Every way to cut; of `even` ones only those whose stages differ by one block at most."""
    for edges in itertools.combinations(range(1, blocks), stages - 1):
        sizes = [b - a for a, b in itertools.pairwise((0, *edges, blocks))]
        if not even or max(sizes) - min(sizes) <= 1:
            yield edges


def _stages(
    edges: tuple[int, ...], grid: Grid, sharding: Sharding, recompute: tuple[Recompute, ...]
) -> tuple[Stage, ...]:
    devices = [tuple(itertools.chain.from_iterable(units)) for units in grid]
    return tuple(
        Stage(
            first=edges[s], last=edges[s + 1], devices=devices[s % len(grid)], sharding=sharding,
            recompute=recompute[s],
        )
        for s in range(len(edges) - 1)
    )  # fmt: skip


def _infeasible(broken: list[tuple[int, str]]) -> Infeasible:
    """The complaint against the plan that breaks fewest rules; sorted() is stable, so the fastest such plan."""
    if not broken:
        return Infeasible(binding="pins: no plan honours all of them", advice="Drop one of the pins")
    fewest = sorted(broken, key=lambda entry: entry[0])[0][1]
    advice = f"Each of the {len(broken)} plans breaks a rule; this is the one that breaks the fewest"
    return Infeasible(binding=fewest, advice=advice)
