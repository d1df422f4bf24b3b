"""Piper's problem solved: the least largest stage time, exact, or within a proved bound.

    minimise max_i time_i   over stages, degrees and variants   (formula: `placer.placement.published_planners.piper`)

A limit on the time is met or not (`Sweep`); halving between the bound and the best plan finds the least that is met.
A pass that fails proves that nothing lies below the next time at which anything changes; one that succeeds has stages
whose variants are then chosen exactly: either the plan stands, and its value is the new best, or a table learns that
it promised too much and the pass is repeated. First on few ideals, for a plan; then on all, for the proof.

`solve` is what `placer place` does with a Piper graph: the plan is judged by the evaluator, and worded as an answer.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from dataclasses import dataclass

import numpy as np

from placer.errors import Infeasible, InfeasibleError, StrategyError, UsageError
from placer.placement.answers import ROUNDING, PlaceAnswer, PlacedStage
from placer.placement.formats import FileProblem, PlaceRequest
from placer.placement.published_planners.piper import PiperProblem, PiperStage, value_of
from placer.strategies.engine.knapsack import KnapsackChoice
from placer.strategies.placement.piper.families import IdealFamily, ideals, least_work, thinned, widened
from placer.strategies.placement.piper.limit_dp import StageChoice, Sweep
from placer.strategies.placement.piper.stage_space import StageSpace
from placer.strategies.placement.piper.stages import degrees

# A plan is called optimal when nothing below it by more than this part of it is left.
TOLERANCE = 1e-9
# Ideals of the first search, for a plan. Most ideals of the second, for the proof, and most stages x degrees that they
# may make (8 bytes each): beyond them some orders of the nodes are searched instead of all.
FEW, MANY, MOST = 40, 5000, 4 * 10**7
# Where there are more: how far a plan may be from the best of a family, how much a round may gain, and how the family
# grows around the cuts of the plan.
COARSE, HOPED, ROUNDS, NEAR, NEAR_LIMIT = 1e-3, 0.03, 4, 3, 240


@dataclass(frozen=True, slots=True, kw_only=True)
class PiperSolution:
    """A plan, its value by the evaluator, a proved lower bound of any plan's value, the seconds it took.

    `complete`: all ideals were searched, not some orders of the nodes.
    """

    stages: tuple[PiperStage, ...]
    objective: float
    bound: float
    seconds: float
    complete: bool

    @property
    def gap(self) -> float:
        """(objective - bound) / bound."""
        return max(0.0, self.objective - self.bound) / self.bound if self.bound > 0 else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """Stages and their value."""

    stages: tuple[PiperStage, ...]
    value: float


def solve_piper(
    problem: PiperProblem, *, many: int | None = None, seconds: float | None = None
) -> PiperSolution | Infeasible:
    """The best plan; Infeasible only where it is proved that there is none, or none along the orders searched.

    All ideals are searched where there are at most `many` of them; by default as many as fit in memory. After
    `seconds` the best plan found by then is returned, with the bound proved by then.
    """
    started = time.perf_counter()
    until = np.inf if seconds is None else started + seconds
    alternatives = max(1, len(degrees(problem).data))
    family = ideals(problem, many or min(MANY, math.isqrt(2 * MOST // alternatives)))
    few = thinned(problem, family, FEW) if len(family.inside) > 2 * FEW else family
    best = _first_plan(problem, few) or (_first_plan(problem, family) if few is not family else None)
    if best is None:
        return _infeasible(problem, family)
    bound = _work_bound(problem)
    if few is not family:
        best, _ = _narrowed(problem, few, best, bound, COARSE, until)
    best, proved = _narrowed(problem, family, best, bound, TOLERANCE if family.complete else COARSE, until)
    if not family.complete:
        best, proved = _improved(problem, family, best, bound, until), bound
    return PiperSolution(
        stages=best.stages,
        objective=best.value,
        # The value itself where only TOLERANCE lies between them.
        bound=best.value if proved >= best.value * (1 - TOLERANCE) else proved,
        seconds=time.perf_counter() - started,
        complete=family.complete,
    )


def _improved(problem: PiperProblem, family: IdealFamily, best: _Plan, bound: float, until: float) -> _Plan:
    """The best plan after widening the family around its cuts, while that helps."""
    for _ in range(ROUNDS):
        wider = widened(problem, family, best.stages, steps=NEAR, limit=NEAR_LIMIT)
        before = best.value
        best, _ = _narrowed(problem, wider, best, max(bound, best.value * (1 - HOPED)), COARSE, until)
        if best.value > before * (1 - COARSE):
            break
    return best


def _first_plan(problem: PiperProblem, family: IdealFamily) -> _Plan | None:
    """Any plan: limits from twice the bound upwards, the last of them above every stage."""
    most = _longest(problem)
    limit = max(2 * _work_bound(problem), most / 10**6)
    while limit < most:
        tried = _tried(StageSpace(problem, family, limit), limit, np.inf)
        if isinstance(tried, _Plan):
            return tried
        limit *= 4
    tried = _tried(StageSpace(problem, family, most), most, np.inf)
    return tried if isinstance(tried, _Plan) else None


def _narrowed(
    problem: PiperProblem, family: IdealFamily, best: _Plan, bound: float, tolerance: float, until: float
) -> tuple[_Plan, float]:
    """The best plan of `family` and the bound proved for it, by halving what lies between.

    With a tolerance above TOLERANCE variants are rounded, not relaxed: only the plan counts then, not the bound.
    """
    space = StageSpace(problem, family, best.value, rounded=tolerance > TOLERANCE)
    while bound < best.value * (1 - tolerance) and time.perf_counter() < until:
        limit = (bound + best.value) / 2
        tried = _tried(space, limit, (limit + best.value) / 2)
        if isinstance(tried, _Plan):
            best = tried
        else:
            bound = max(bound, min(tried, best.value))
    return best, bound


def _tried(space: StageSpace, limit: float, enough: float) -> _Plan | float:
    """Passes until its stages with variants chosen exactly stay within `enough`, at least `limit`, or one fails.

    Out: the plan, or, where there is none, what is proved of every plan of the family.
    """
    walk = Sweep(space, limit)
    while True:
        swept = walk.run()
        if not swept.stages:
            return max(limit, swept.next_limit)
        decided = [space.decided(stage.pair, stage.degrees, stage.y) for stage in swept.stages]
        if np.isfinite(slowest := max(time for _, time in decided)) and slowest <= max(limit, enough) * (1 + 1e-11):
            stages = _stages(space, swept.stages, [choice for choice, _ in decided])
            return _Plan(stages=stages, value=value_of(space.problem, stages).value)


def _stages(
    space: StageSpace, chosen: tuple[StageChoice, ...], choices: list[KnapsackChoice]
) -> tuple[PiperStage, ...]:
    """The stages in the problem's words."""
    made = []
    for stage, choice in zip(chosen, choices, strict=True):
        data, tensor = int(space.by.data[stage.degrees]), int(space.by.tensor[stage.degrees])
        nodes = [space.problem.nodes[i] for i in space.nodes(stage.pair)]
        names = tuple(node.at(tensor)[i].name for node, i in zip(nodes, choice.chosen, strict=True))
        made.append(PiperStage(nodes=tuple(n.id for n in nodes), data=data, tensor=tensor, variants=names))
    return tuple(made)


def _work_bound(problem: PiperProblem) -> float:
    """No plan is faster than all work spread over all devices."""
    return float(least_work(problem).sum()) / problem.devices


def _longest(problem: PiperProblem) -> float:
    """A time that no stage exceeds: all nodes in their slowest variants, every edge and all sync bytes twice."""
    every = [[v for _, variants in node.variants for v in variants] for node in problem.nodes]
    time = sum(max(v.time for v in variants) for variants in every)
    weights = sum(max(v.parameter_bytes for v in variants) for variants in every)
    sync = sum(max(sum(b for _, b in (*v.forward_bytes, *v.backward_bytes)) for v in variants) for variants in every)
    edges = sum(edge.bytes for edge in problem.edges)
    return time + (4 * edges + 2 * sync + 4 * weights / problem.microbatches) / problem.bandwidth


def _infeasible(problem: PiperProblem, family: IdealFamily) -> Infeasible:
    """What binds."""
    some = " along the orders of the nodes that were searched (there are too many ideals for all)"
    scope = "" if family.complete else some
    return Infeasible(
        binding=f"no stages fit {problem.memory_bytes / 2**30:.3g} GiB on each of {problem.devices} devices{scope}",
        advice="give more memory or more devices",
    )


UNIT = "file's time"
KIND = "largest stage time per microbatch, data x tensor x pipeline x recompute"


def solve(problem: FileProblem, request: PlaceRequest) -> PlaceAnswer:
    """The best plan. Raises InfeasibleError with what binds."""
    if not isinstance(problem, PiperProblem):
        raise UsageError(f"a {problem.format!r} problem was given to Piper's solver; give it a Piper graph")
    found = solve_piper(problem, seconds=request.seconds)
    if isinstance(found, Infeasible):
        raise InfeasibleError(found)
    value = value_of(problem, found.stages)
    if found.bound > value.value * (1 + ROUNDING):
        raise StrategyError(f"a solver proved {found.bound!r}, its own plan reaches {value.value!r}")
    return PlaceAnswer(
        objective=value.value,
        unit=UNIT,
        kind=KIND,
        bound=found.bound,
        seconds=found.seconds,
        assignment=tuple((str(node), f"stage {i}") for i, stage in enumerate(found.stages) for node in stage.nodes),
        stages=tuple(_stage(i, stage, value.times[i], value.memory_bytes[i]) for i, stage in enumerate(found.stages)),
    )


def _stage(number: int, stage: PiperStage, time: float, memory: float) -> PlacedStage:
    """A stage in the words of an answer."""
    variants = ", ".join(f"{count} {name}" for name, count in sorted(Counter(stage.variants).items()))
    return PlacedStage(
        device=f"stage {number}",
        nodes=tuple(str(node) for node in stage.nodes),
        load=time,
        memory_bytes=memory,
        detail=f"data {stage.data} x tensor {stage.tensor}, {variants}:",
        data=stage.data,
        tensor=stage.tensor,
        variants=stage.variants,
    )
