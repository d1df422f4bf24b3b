"""Piper's problem solved: the least largest stage time, exact, or within a proved bound.

    minimise max_i time_i   over stages, degrees and variants       (placer.placement.piper has the formula)

A limit on the time is met or not (`sweep`); halving between the bound and the best plan finds the least that is met.
A pass that fails proves that nothing lies below the next time at which anything changes; one that succeeds has stages
whose variants are then chosen exactly: either the plan stands, and its value is the new best, or a table learns that
it promised too much and the pass is repeated. First on few ideals, for a plan; then on all, for the proof.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from placer.errors import Infeasible
from placer.placement.piper import PiperProblem, PiperStage, value_of
from placer.strategies.knapsack import Choice, Ints
from placer.strategies.piper_pairs import Family, degrees, ideals, least_work, stage_pairs, thinned
from placer.strategies.piper_recompute import Recompute
from placer.strategies.piper_sweep import Space, StageChoice, sweep

# A plan is called optimal when nothing below it by more than this part of it is left.
TOLERANCE = 1e-9
# Ideals of the first search, for a plan, and of the second, for the proof: beyond them only one order of the nodes.
FEW, MANY = 40, 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class PiperSolution:
    """A plan, its value by the evaluator, a proved lower bound of any plan's value, and the seconds it took."""

    stages: tuple[PiperStage, ...]
    objective: float
    bound: float
    seconds: float

    @property
    def gap(self) -> float:
        """(objective - bound) / bound."""
        return max(0.0, self.objective - self.bound) / self.bound if self.bound > 0 else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """Stages and their value."""

    stages: tuple[PiperStage, ...]
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tried:
    """A limit tried: the plan within it, or none and what is proved of every plan of the family."""

    plan: _Plan | None
    bound: float


def solve_piper(problem: PiperProblem, *, many: int = MANY) -> PiperSolution | Infeasible:
    """The best plan; Infeasible only where it is proved that there is none, or none along the order searched."""
    started = time.perf_counter()
    family = ideals(problem, many)
    few = thinned(problem, family, FEW) if len(family.inside) > 2 * FEW else family
    best = _first_plan(problem, few) or (_first_plan(problem, family) if few is not family else None)
    if best is None:
        return _infeasible(problem, family)
    bound = _work_bound(problem)
    if few is not family:
        best, _ = _narrowed(problem, few, best, bound, 1e-3)
    best, proved = _narrowed(problem, family, best, bound, TOLERANCE)
    return PiperSolution(
        stages=best.stages,
        objective=best.value,
        bound=best.value if family.complete and proved >= best.value * (1 - TOLERANCE) else min(best.value, bound),
        seconds=time.perf_counter() - started,
    )


def _first_plan(problem: PiperProblem, family: Family) -> _Plan | None:
    """Any plan: limits from twice the bound upwards, the last of them above every stage."""
    most = _longest(problem)
    limit = max(2 * _work_bound(problem), most / 10**6)
    while limit < most:
        plan = _tried(_space(problem, family, limit), limit, np.inf).plan
        if plan is not None:
            return plan
        limit *= 4
    return _tried(_space(problem, family, most), most, np.inf).plan


def _narrowed(
    problem: PiperProblem, family: Family, best: _Plan, bound: float, tolerance: float
) -> tuple[_Plan, float]:
    """The best plan of `family` and the bound proved for it, by halving what lies between."""
    space = _space(problem, family, best.value)
    while bound < best.value * (1 - tolerance):
        limit = (bound + best.value) / 2
        tried = _tried(space, limit, (limit + best.value) / 2)
        if tried.plan is not None:
            best = tried.plan
        else:
            bound = max(bound, min(tried.bound, best.value))
    return best, bound


def _tried(space: Space, limit: float, enough: float) -> _Tried:
    """Passes until one fails, or its stages with variants chosen exactly stay within `enough`, at least `limit`."""
    while True:
        swept = sweep(space, limit)
        if not swept.stages:
            return _Tried(plan=None, bound=max(limit, swept.next_limit))
        decided = [space.recompute.decide(stage.pair, stage.degrees, stage.y) for stage in swept.stages]
        if np.isfinite(slowest := max(time for _, time in decided)) and slowest <= max(limit, enough) * (1 + 1e-11):
            stages = _stages(space, swept.stages, [choice for choice, _ in decided])
            return _Tried(plan=_Plan(stages=stages, value=value_of(space.problem, stages).value), bound=0.0)


def _space(problem: PiperProblem, family: Family, limit: float) -> Space:
    """What there is to walk over for limits up to `limit`."""
    by = degrees(problem)
    needed = _needed(problem, family, limit)
    pairs = stage_pairs(problem, family, by, limit, needed)
    recompute = Recompute(problem, family, by, pairs)
    return Space(problem=problem, family=family, by=by, pairs=pairs, recompute=recompute)


def _needed(problem: PiperProblem, family: Family, limit: float) -> Ints:
    """Devices that the nodes of each ideal need at least within `limit`: their least work over it."""
    work = family.inside @ least_work(problem)
    return np.floor(work / limit * (1 - 1e-9)).astype(np.int64)


def _stages(space: Space, chosen: tuple[StageChoice, ...], choices: list[Choice]) -> tuple[PiperStage, ...]:
    """The stages in the problem's words."""
    made = []
    for stage, choice in zip(chosen, choices, strict=True):
        data, tensor = int(space.by.data[stage.degrees]), int(space.by.tensor[stage.degrees])
        nodes = [space.problem.nodes[i] for i in space.recompute.nodes(stage.pair)]
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


def _infeasible(problem: PiperProblem, family: Family) -> Infeasible:
    """What binds."""
    scope = "" if family.complete else " along the one order of the nodes that was searched (there are too many ideals)"
    return Infeasible(
        binding=f"no stages fit {problem.memory_bytes / 2**30:.3g} GiB on each of {problem.devices} devices{scope}",
        advice="give more memory or more devices",
    )
