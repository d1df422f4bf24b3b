"""The best plan of placements that some method makes for each of a few outlines, those of one number of devices and of
microbatches after another.

A placement whose positions follow each other is a chain of stages, under every chain schedule. Where it is not, and
where the model branches, it is a graph of stages too. Where a plan does not fit, the method is asked again for what
keeps more microbatches, runs forwards again or divides state. Every plan is judged by the one judge.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby, product
from typing import TypeAlias

from placer.errors import Infeasible
from placer.plans.plan import Layout, Plan
from placer.search.judge import Verdict, broken_pins, judge
from placer.search.problem import Problem, Solution
from placer.strategies.space.block_graph import BlockGraph
from placer.strategies.space.outline import Outline, plan_of, recomputes, schedule_name, shardings
from placer.strategies.space.placements import Placement, Placing, Ranges

# Plans that are looked at for a legal one even where the seconds are over.
SOME = 64
# Numbers of microbatches in a row that may bring nothing better on so many devices: more of them cost more to price,
# and gain less and less.
STALE = 2

CHAINS: tuple[str, ...] = ("1f1b", "gpipe", "zero-bubble")

#: The placements for an outline of two or more positions, each position keeping so many microbatches.
Placements: TypeAlias = Callable[[Placing, int], Sequence[Placement] | Infeasible]


@dataclass
class _Best:
    """The best plan so far, how many were judged, each once, and what was wrong with the last that was not legal."""

    problem: Problem
    verdict: Verdict | None = None
    judged: int = 0
    complaint: str = ""
    known: dict[Hashable, bool] = field(default_factory=dict)

    @property
    def over(self) -> bool:
        """Whether the budget is spent and there is a plan; of one of seconds also after some plans without."""
        spent = self.problem.budget is not None and self.judged >= self.problem.budget
        if self.verdict is not None or self.problem.known_plans:
            return spent or self.problem.spent
        return self.problem.spent and self.judged >= SOME

    def legal(self, plan: Plan) -> bool:
        """Whether a plan is legal and honours the pins; it is kept where it is the best."""
        key = plan.stages, plan.schedule, plan.microbatches, plan.bucket_bytes, tuple(map(id, plan.layouts))
        if key not in self.known:
            self.known[key] = self._judged(plan)
        return self.known[key]

    def _judged(self, plan: Plan) -> bool:
        self.judged += 1
        verdict = judge(self.problem.costs, plan, lowered=False)
        pins = broken_pins(plan, self.problem.pins)
        if pins or not verdict.legal:
            self.complaint = "; ".join(pins) or verdict.complaint
            return False
        if self.verdict is None or verdict.order < self.verdict.order:
            self.verdict = verdict
            self.problem.found(verdict.seconds)
        return True


def best_placed(
    problem: Problem, outlines: Iterable[tuple[Outline, Layout | None]], methods: Sequence[Placements]
) -> Solution | Infeasible:
    """The best plan of what each of the methods makes of all outlines; why there is none."""
    best, blocks = _Best(problem), BlockGraph.of(problem.graph)
    stale, devices = 0, 0
    for (used, _), alike in groupby(outlines, key=lambda entry: (len(entry[0].used), entry[0].count)):
        stale, devices = stale if used == devices else 0, used
        before = best.verdict
        for (outline, layout), placements in product(alike if stale < STALE else (), methods):
            if best.judged and best.over:
                break
            _tried(best, blocks, outline, layout, placements)
        stale = stale + 1 if before is not None and best.verdict is before else 0
    if best.verdict is None:
        return Infeasible(binding=best.complaint or "pins or cluster leave no cut of the model's blocks")
    return Solution(plan=best.verdict.plan, evaluations=best.judged)


def _tried(best: _Best, blocks: BlockGraph, outline: Outline, layout: Layout | None, placements: Placements) -> None:
    """The plans of one outline, in ways that hold less until one fits."""
    problem = best.problem
    for sharding in dict.fromkeys((outline.sharding, shardings(problem, outline.replicas, "1f1b")[-1])):
        for recompute in recomputes(problem):
            placing = Placing(
                problem=problem, blocks=blocks, outline=outline.sharded(sharding), layout=layout, recompute=recompute
            )
            for kept in dict.fromkeys((1, min(outline.count, outline.positions))):
                found = placements(placing, kept) if outline.positions > 1 else ((0,) * blocks.size,)
                if isinstance(found, Infeasible):
                    best.complaint = str(found)
                    continue
                fits = [best.legal(plan) for placement in dict.fromkeys(found) for plan in _plans(placing, placement)]
                if any(fits) or best.over:
                    return


def _plans(placing: Placing, placement: Placement) -> Iterator[Plan]:
    """The plans of a placement."""
    for own, ranges in placing.ways(placement):
        yield from _of_one_way(placing, own, ranges)


def _of_one_way(placing: Placing, placement: Placement, ranges: Ranges) -> Iterator[Plan]:
    """The plans of a placement with these stages, if it has more of them than positions."""
    cuts = tuple(b for b in range(1, len(placement)) if placement[b] != placement[b - 1])
    used = tuple(dict.fromkeys(placement))
    is_chain = len(cuts) == len(used) - 1
    if is_chain:
        yield from _chains(placing, _over(placing.outline, used), cuts)
    graph = len(used) > 1 and (placing.blocks.branches or not is_chain)
    if graph and placing.problem.pins.schedule in (None, "branched"):
        yield placing.finished(placement, ranges)


def _over(outline: Outline, used: tuple[int, ...]) -> Outline:
    """The outline of these positions alone, in this order."""
    if used == tuple(range(outline.positions)):
        return outline
    devices = tuple(device for position in used for device in outline.devices(position))
    first = devices == tuple(range(len(devices)))
    return replace(outline, positions=len(used), device_order=() if first else devices)


def _chains(placing: Placing, outline: Outline, cuts: tuple[int, ...]) -> Iterator[Plan]:
    """A chain of stages under every schedule."""
    problem, pinned = placing.problem, placing.problem.pins.schedule
    alone = (pinned if pinned in CHAINS else CHAINS[0],)
    for name in CHAINS if outline.positions > 1 else alone:
        if pinned in (None, name):
            chain = replace(outline, schedule=schedule_name(name))
            if outline.sharding in shardings(problem, outline.replicas, chain.schedule):
                yield plan_of(problem, chain, cuts, (placing.recompute,) * outline.positions, placing.layout)
