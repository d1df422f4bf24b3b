"""The exact search of cuts x devices x replication x microbatches x schedule x sharding x recompute.

In: a Problem. Out: the plan of the smallest estimate in the space of `space.py`, with a proven lower bound.

Every outline (all choices but cuts and recompute) has a lower bound

    bound = fill of all blocks + max(steady of all blocks / p, steady of the largest block) + fixed

from floors that hold for every cut. Outlines are solved exactly, the smallest bound first: by `chain` where a position
has one stage, by `loop` where it has several. The search ends when the smallest bound left reaches the best plan, which
is then optimal: bound and estimate are equal. When the budget or the patience of `loop` ends it earlier, the smallest
bound of what was left is the bound.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from heapq import heapify, heappop
from itertools import pairwise

from placer.costs import Costs
from placer.errors import Infeasible
from placer.search import Problem, Solution
from placer.strategies.chain import Partition, best_chain
from placer.strategies.diagnosis import what_binds
from placer.strategies.judging import Judged, judge
from placer.strategies.loop import best_loop
from placer.strategies.pricing import Places, Pricing, Runs
from placer.strategies.space import Outline, outlines, plan_of, position_counts, replica_counts

# Nodes `loop` may look at for one outline: about a second.
PATIENCE = 20_000


@dataclass(slots=True)
class _Progress:
    best: Judged | None = None
    evaluations: int = 0
    left: list[float] = field(default_factory=list)

    @property
    def ceiling(self) -> float:
        return float("inf") if self.best is None else self.best.seconds


class Stages:
    """Best-first over outlines, exact within each."""

    name = "stages"
    exact = True

    def solve(self, problem: Problem) -> Solution | Infeasible:
        """The best plan. After an interrupt, the best so far with the bound proven so far."""
        progress = _Progress()
        queue: list[tuple[float, Outline]] = []
        search = _Outlines(problem)
        try:
            queue = [(search.bound(outline), outline) for outline in outlines(problem)]
            heapify(queue)
            while queue and queue[0][0] < progress.ceiling and not _spent(problem, progress):
                self._try(search, heappop(queue)[1], progress)
        except KeyboardInterrupt:
            if progress.best is None:
                raise
        if progress.best is None:
            return what_binds(problem, search.costs)
        left = min([progress.ceiling, *progress.left, *(bound for bound, _ in queue)])
        return Solution(plan=progress.best.plan, bound=left, evaluations=progress.evaluations)

    def _try(self, search: _Outlines, outline: Outline, progress: _Progress) -> None:
        """Solve one outline below the best so far; keep its bound where it stays open."""
        progress.evaluations += 1
        found, complete = search.best(outline, progress.ceiling)
        if not complete:
            progress.left.append(search.bound(outline))
        if found is None:
            return
        verdict = judge(plan_of(search.problem, outline, found.cuts, found.recompute))
        if not verdict.legal:
            progress.left.append(search.bound(outline))
        elif progress.best is None or verdict.order < progress.best.order:
            progress.best = verdict


class _Outlines:
    """Outlines of one problem with what they share."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.costs = Costs(problem.graph, problem.cluster, problem.settings)
        self.runs = Runs(problem, self.costs)
        self.places = {
            (p, d): Places(problem, p, d) for p in position_counts(problem) for d in replica_counts(problem, p)
        }
        self._priced: dict[Outline, Pricing] = {}

    def pricing(self, outline: Outline) -> Pricing:
        """The outline's prices, kept."""
        found = self._priced.get(outline)
        if found is None:
            places = self.places[outline.positions, outline.replicas]
            found = self._priced[outline] = Pricing(self.problem, self.costs, self.runs, places, outline)
        return found

    def bound(self, outline: Outline) -> float:
        """A lower bound of every plan of the outline."""
        pricing = self.pricing(outline)
        steady = pricing.floors.peaks[0]
        largest = max((a - b for a, b in pairwise(steady)), default=0.0)
        return pricing.floors.additive[0] + max(steady[0] / outline.positions, largest) + pricing.fixed

    def best(self, outline: Outline, ceiling: float) -> tuple[Partition | None, bool]:
        """The outline's best partition below `ceiling`, if any, and whether that is proven."""
        pricing = self.pricing(outline)
        inner = ceiling - pricing.fixed
        if outline.virtual > 1:
            result = best_loop(pricing.loop(), ceiling=inner, patience=PATIENCE)
            return result.partition, result.complete
        found = best_chain(
            stages=outline.stages, pieces=pricing.pieces, weights=(1.0, 1.0), floors=pricing.floors, ceiling=inner
        )
        return found, True


def _spent(problem: Problem, progress: _Progress) -> bool:
    return problem.budget is not None and progress.evaluations >= problem.budget
