"""`min_cut`: a model's blocks cut over positions by the engines of `placer place`, and the best plan of their answers.

Of each outline (positions, replicas, microbatches in powers of two, device orders) the graph with given costs is
solved contiguously by the program over ideals, for two positions in free form by s-t min cuts too, with one microbatch
also for the finish time of one sample. Their plans, and how they are made to fit: `space/best_placed`. All plans are
judged by the estimate; what the engines prove is of their own objective, so that there is no bound.
"""

from __future__ import annotations

import time

from placer.errors import Infeasible, InfeasibleError
from placer.placement.answers import PlaceAnswer
from placer.placement.formats import PlaceRequest
from placer.search.problem import Problem, Solution
from placer.strategies.intra_op.layouts import pinned_layouts
from placer.strategies.min_cut.given_costs import given_costs
from placer.strategies.placement.solve import solve
from placer.strategies.space.best_placed import best_placed
from placer.strategies.space.likely_outlines import likely_outlines
from placer.strategies.space.pin_conflicts import require_pins
from placer.strategies.space.placements import Placement, Placing

MOST_POSITIONS, MOST_OUTLINES = 16, 60
# What an engine may spend on one outline: priced pairs of ideals, and seconds.
PAIRS, SECONDS = 20_000_000, 5.0
# What it gets where the problem's seconds are over and there is no plan.
LEAST_SECONDS = 0.05


class MinCut:
    """Cuts by the engines for graphs with given costs."""

    name = "min_cut"
    exact = False

    def solve(self, problem: Problem) -> Solution | Infeasible:
        """The best plan of all answers; why there is none. Raises UsageError for contradicting pins."""
        require_pins(problem)
        tried = likely_outlines(problem, pinned_layouts(problem), "1f1b", range(1, MOST_POSITIONS + 1))
        return best_placed(problem, tried[:MOST_OUTLINES], [_placements])


def _placements(placing: Placing, kept: int) -> list[Placement]:
    """What the engines answer, positions in the order of their first blocks; nothing where nothing fits."""
    outline, costs = placing.outline, placing.problem.costs.under(placing.layout)
    given = given_costs(costs, placing.blocks, outline, recompute=placing.recompute, kept=kept)
    asked = [("throughput", False)]
    asked += [("throughput", True)] if outline.positions == 2 else []
    asked += [("latency", False)] if outline.count == 1 else []
    found = []
    for objective, free in asked:
        request = PlaceRequest(objective=objective, free_form=free, budget=PAIRS, seconds=_seconds(placing.problem))
        try:
            found.append(_placement(solve(given, request)))
        except InfeasibleError:
            continue
    return found


def _seconds(problem: Problem) -> float:
    """What an engine may spend: its own limit, or what is left of the problem's seconds."""
    left = SECONDS if problem.until is None else problem.until - time.perf_counter()
    return min(SECONDS, max(LEAST_SECONDS, left))


def _placement(answer: PlaceAnswer) -> Placement:
    homes = sorted((int(block), device) for block, device in answer.assignment)
    numbers: dict[str, int] = {}
    return tuple(numbers.setdefault(device, len(numbers)) for _, device in homes)
