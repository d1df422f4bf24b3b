"""`min_cut`: a model's blocks cut over positions by the engines of `placer place`, and the best plan of their answers.

Of each outline (positions, replicas, microbatches in powers of two, device orders) the graph with given costs is
solved contiguously by the program over ideals, for two positions in free form by s-t min cuts too, with one microbatch
also for the finish time of one sample. An answer whose positions follow each other is a chain of stages, under every
chain schedule; where the model branches it is a graph of stages too. Where a plan does not fit, the engines get what
they must keep of more microbatches, forwards run again or state is divided. All plans are judged by the estimate; what
the engines prove is of their own objective, so that there is no bound.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from placer.errors import Infeasible, InfeasibleError
from placer.placement.answers import PlaceAnswer
from placer.placement.formats import PlaceRequest
from placer.placement.problem import PlacementProblem
from placer.plans.plan import Layout, Plan
from placer.search.judge import Verdict, broken_pins, judge
from placer.search.problem import Problem, Solution
from placer.strategies.horizontal.placements import Placement, Placing
from placer.strategies.intra_op.layouts import pinned_layouts
from placer.strategies.min_cut.given_costs import given_costs
from placer.strategies.placement.solve import solve
from placer.strategies.space.block_graph import BlockGraph
from placer.strategies.space.likely_outlines import likely_outlines
from placer.strategies.space.outline import (
    Outline,
    plan_of,
    recomputes,
    schedule_name,
    shardings,
)
from placer.strategies.space.pin_conflicts import require_pins

MOST_POSITIONS, MOST_OUTLINES = 16, 60
# What an engine may spend on one outline: priced pairs of ideals, and seconds.
PAIRS, SECONDS = 20_000_000, 5.0
CHAINS = ("1f1b", "gpipe", "zero-bubble")


@dataclass
class _Best:
    """The best plan so far, how many were judged, and what was wrong with the last that was not."""

    problem: Problem
    verdict: Verdict | None = None
    judged: int = 0
    complaint: str = ""

    @property
    def over(self) -> bool:
        """Whether the budget is spent and there is a plan."""
        spent = self.problem.budget is not None and self.judged >= self.problem.budget
        return self.verdict is not None and (spent or self.problem.spent)

    def legal(self, plan: Plan) -> bool:
        """Whether a plan is legal and honours the pins; it is kept where it is the best."""
        self.judged += 1
        verdict = judge(self.problem.costs, plan, lowered=False)
        pins = broken_pins(plan, self.problem.pins)
        if pins or not verdict.legal:
            self.complaint = "; ".join(pins) or verdict.complaint
            return False
        if self.verdict is None or verdict.order < self.verdict.order:
            self.verdict = verdict
        return True


class MinCut:
    """Cuts by the engines for graphs with given costs."""

    name = "min_cut"
    exact = False

    def solve(self, problem: Problem) -> Solution | Infeasible:
        """The best plan of all answers; why there is none. Raises UsageError for contradicting pins."""
        require_pins(problem)
        best, blocks = _Best(problem), BlockGraph.of(problem.graph)
        tried = likely_outlines(problem, pinned_layouts(problem), "1f1b", range(1, MOST_POSITIONS + 1))
        for outline, layout in tried[:MOST_OUTLINES]:
            if best.over:
                break
            _tried(best, blocks, outline, layout)
        if best.verdict is None:
            return Infeasible(binding=best.complaint or "pins or cluster leave no cut of the model's blocks")
        return Solution(plan=best.verdict.plan, evaluations=best.judged)


def _tried(best: _Best, blocks: BlockGraph, outline: Outline, layout: Layout | None) -> None:
    """The plans of one outline, in ways that hold less until one fits."""
    for sharding in dict.fromkeys((outline.sharding, shardings(best.problem.pins, outline.replicas, "1f1b")[-1])):
        for recompute in recomputes(best.problem):
            for kept in dict.fromkeys((1, min(outline.count, outline.positions))):
                made = list(_plans(best.problem, blocks, outline.sharded(sharding), layout, recompute, kept))
                fits = [best.legal(plan) for plan in made]
                if any(fits) or best.over:
                    return


def _plans(
    problem: Problem, blocks: BlockGraph, outline: Outline, layout: Layout | None, recompute: bool, kept: int
) -> Iterator[Plan]:
    """The plans of the engines' answers for one outline."""
    if outline.positions == 1:
        yield from _chains(problem, outline, (), layout, recompute)
        return
    given = given_costs(problem.costs.under(layout), blocks, outline, recompute=recompute, kept=kept)
    placing = Placing(problem=problem, blocks=blocks, outline=outline, layout=layout, recompute=recompute)
    for placement in dict.fromkeys(_placements(given, outline)):
        cuts = tuple(b for b in range(1, blocks.size) if placement[b] != placement[b - 1])
        if len(cuts) == outline.positions - 1 == max(placement):
            yield from _chains(problem, outline, cuts, layout, recompute)
        if blocks.branches and problem.pins.schedule in (None, "branched") and len(set(placement)) > 1:
            yield placing.finished(placement)


def _placements(given: PlacementProblem, outline: Outline) -> Iterator[Placement]:
    """What the engines answer, positions in the order of their first blocks; nothing where nothing fits."""
    asked = [("throughput", False)]
    asked += [("throughput", True)] if outline.positions == 2 else []
    asked += [("latency", False)] if outline.count == 1 else []
    for objective, free in asked:
        request = PlaceRequest(objective=objective, free_form=free, budget=PAIRS, seconds=SECONDS)
        try:
            yield _placement(solve(given, request))
        except InfeasibleError:
            continue


def _placement(answer: PlaceAnswer) -> Placement:
    homes = sorted((int(block), device) for block, device in answer.assignment)
    numbers: dict[str, int] = {}
    return tuple(numbers.setdefault(device, len(numbers)) for _, device in homes)


def _chains(
    problem: Problem, outline: Outline, cuts: tuple[int, ...], layout: Layout | None, recompute: bool
) -> Iterator[Plan]:
    """A chain of stages under every schedule."""
    pinned = problem.pins.schedule
    for name in CHAINS if outline.positions > 1 else CHAINS[:1]:
        if pinned in (None, name):
            chain = replace(outline, schedule=schedule_name(name))
            if outline.sharding in shardings(problem.pins, outline.replicas, chain.schedule):
                yield plan_of(problem, chain, cuts, (recompute,) * outline.positions, layout)
