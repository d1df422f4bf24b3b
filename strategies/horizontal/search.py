"""`horizontal`: the best plan whose stages are a graph, so that branches of the model compute at the same time.

Outlines are numbers of positions, replicas, microbatches (powers of two) and device orders; positions are alike. Of
each outline two first placements are judged (`earliest`), with recompute or sharded state where they do not fit
without; from those of the most promising outlines blocks are moved on (`descent`), or, of a model of few blocks, every
stage graph of every outline is looked at (`complete`). Nothing is proven: there is no
bound. Where a model does not branch there is nothing to place. Positions are devices that hold their blocks whole, or
cut them under a layout (those of the exact search). Classes of devices and nodes are searched alone too (`parts`).
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

from placer.errors import Infeasible
from placer.plans.plan import Layout
from placer.search.judge import Verdict, broken_pins, judge
from placer.search.problem import Problem, Solution
from placer.strategies.horizontal.complete import Complete, graphs
from placer.strategies.horizontal.descent import Descent
from placer.strategies.horizontal.earliest import finished_first, in_ranges
from placer.strategies.intra_op.layouts import layouts, pinned_degree
from placer.strategies.space.block_costs import block_seconds
from placer.strategies.space.block_graph import BlockGraph
from placer.strategies.space.likely_outlines import likely_outlines
from placer.strategies.space.outline import (
    recomputes,
    shardings,
)
from placer.strategies.space.parts import best_of_parts
from placer.strategies.space.pin_conflicts import require_pins
from placer.strategies.space.placements import Placement, Placing, Ranges, Score

# More branches than this rarely compute at the same time, and longer pipelines are found by `stages`.
MOST_POSITIONS = 8
# First placements that are judged, and of how many the best blocks are moved.
MOST_OUTLINES, IMPROVED = 160, 8
# Placements that are judged where there is no budget: some seconds.
EVALUATIONS = 1_500
# Stage graphs of a small model of which all are judged that may be the best.
COMPLETE = 6_000


@dataclass(frozen=True, slots=True, kw_only=True)
class _Start:
    """A first placement and what it is worth."""

    score: Score
    placing: Placing
    placement: Placement
    ranges: Ranges | None = None


class Horizontal:
    """List scheduling, then descent over the positions of blocks, judged by the estimate."""

    name = "horizontal"
    exact = False

    def solve(self, problem: Problem) -> Solution | Infeasible:
        """The best plan that was found; why there is none. Raises UsageError for contradicting pins."""
        require_pins(problem)
        if problem.pins.schedule not in (None, "branched"):
            return Infeasible(binding=f"the pin schedule={problem.pins.schedule} is of a chain of stages")
        if not BlockGraph.of(problem.graph).branches:
            return Infeasible(binding="every block of the model waits for the one before it: it has no branches")
        return best_of_parts(problem, _solved)


def _solved(problem: Problem) -> Solution | Infeasible:
    """The best plan of all devices that was found."""
    starts, judged = _starts(problem, BlockGraph.of(problem.graph))
    return _completed(problem, starts, judged) if _few(starts) else _improved(problem, starts, judged)


def _starts(problem: Problem, blocks: BlockGraph) -> tuple[list[_Start], int]:
    """The best first placement of each outline, the most promising first, and how many were judged."""
    found: list[_Start] = []
    judged = 0
    for outline, layout in likely_outlines(problem, _layouts(problem), "branched", range(2, MOST_POSITIONS + 1)):
        if judged >= MOST_OUTLINES or (found and (problem.spent or judged >= (problem.budget or judged + 1))):
            break
        costs = problem.costs.under(layout)
        seconds = block_seconds(costs, outline)
        placing = Placing(
            problem=problem, blocks=blocks, outline=outline, layout=layout, recompute=recomputes(problem)[0]
        )
        for placement in dict.fromkeys((finished_first(costs, outline, blocks, seconds), in_ranges(outline, seconds))):
            if placing.allowed(placement) and not (found and judged >= (problem.budget or judged + 1)):
                judged += 1
                found.append(_start(placing, placement))
    return sorted(found, key=lambda start: (start.score, start.placing.outline, start.placement)), judged


def _layouts(problem: Problem) -> tuple[Layout | None, ...]:
    """How the devices of a replica may hold blocks: whole, or cut."""
    whole = (None,) if pinned_degree(problem.pins) == 1 else ()
    return (*whole, *layouts(problem, problem.costs))


def _start(placing: Placing, placement: Placement) -> _Start:
    """With forwards run again, with its state in shards, or both, where it does not fit otherwise."""
    found = [_Start(score=placing.best(placement)[0], placing=placing, placement=placement)]
    if found[0].score[0]:
        found += [_Start(score=own.best(placement)[0], placing=own, placement=placement) for own in _roomier(placing)]
    return min(found, key=lambda start: start.score)


def _roomier(placing: Placing) -> Iterator[Placing]:
    """The same outline in ways that hold less."""
    states = shardings(placing.problem, placing.outline.replicas, "branched")
    for state in dict.fromkeys((placing.outline.sharding, states[-1])):
        for again in recomputes(placing.problem):
            if (state, again) != (placing.outline.sharding, placing.recompute):
                yield replace(placing, outline=placing.outline.sharded(state), recompute=again)


def _few(starts: list[_Start]) -> bool:
    """Whether all stage graphs of all outlines can be looked at."""
    ways = {start.placing.outline.sharded("none"): _ways(start.placing) for start in starts}
    sizes = (len(own) * graphs(own[0].blocks.size, own[0].outline.positions) for own in ways.values())
    return sum(sizes) <= COMPLETE


def _ways(placing: Placing) -> list[Placing]:
    """The same outline, whatever it keeps and runs again."""
    return [placing, *_roomier(placing)]


def _completed(problem: Problem, starts: list[_Start], judged: int) -> Solution | Infeasible:
    """The best plan of every stage graph of the outlines of `starts`."""
    left = COMPLETE if problem.budget is None else problem.budget - judged
    search = Complete(most=left, over=lambda: problem.spent)
    best = min(starts, key=lambda start: start.score, default=None)
    for placing in dict.fromkeys(way for start in starts for way in _ways(start.placing)):
        seconds = block_seconds(problem.costs.under(placing.layout), placing.outline)
        found = None if best is None else search.best(placing, seconds, best.score)
        if found is not None:
            best = _Start(score=found[0], placing=placing, placement=found[1].placement, ranges=found[1].ranges)
    return _improved(problem, [] if best is None else [best], judged + search.evaluations, descend=False)


def _improved(problem: Problem, starts: list[_Start], judged: int, *, descend: bool = True) -> Solution | Infeasible:
    """The best plan by moving blocks from each of the first `starts`, or the best of these as they are."""
    best: Verdict | None = None
    complaint = ""
    rng = random.Random(problem.seed)
    for start in starts[:IMPROVED]:
        left = (EVALUATIONS if problem.budget is None else problem.budget) - judged
        if best is not None and (problem.spent or left <= 0):
            break
        descent = Descent(start.placing, rng, most=left, over=lambda: problem.spent)
        placement = descent.down(start.placement) if descend and not descent.spent else start.placement
        ranges = start.ranges if placement == start.placement else None
        if ranges is None:
            _, placement, ranges = start.placing.best(placement)
        verdict = judge(problem.costs, start.placing.finished(placement, ranges), lowered=False)
        judged += descent.evaluations
        pins = broken_pins(verdict.plan, problem.pins)
        if pins or not verdict.legal:
            complaint = "; ".join(pins) or verdict.complaint
        elif best is None or verdict.order < best.order:
            best = verdict
            problem.found(verdict.seconds)
    if best is None:
        return Infeasible(binding=complaint or "pins or cluster leave no placement of branches")
    return Solution(plan=best.plan, evaluations=judged)
