"""What the estimate says of every cut of an outline of several turns, where there are few of them.

The best cut is found by the closed form; where its order is played and takes longer, another cut may be as fast. As
stages of several turns differ by one block at most, an outline mostly has few cuts, and each is estimated.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate, combinations
from math import comb

from placer.costs.step_estimate import predicted_step
from placer.plans.plan import Layout
from placer.search.problem import Problem
from placer.strategies.space.outline import Outline, plan_of, recomputes

# Estimates take a millisecond each.
MOST = 128


def least_of_every_cut(problem: Problem, outline: Outline, layout: Layout | None) -> float | None:
    """Seconds that no plan of the outline is below; None where it has one turn or more than `MOST` cuts.

    Nothing runs again in what is estimated, or as little as is pinned: what does takes no less in the same order.
    """
    blocks = len(problem.graph.blocks)
    if outline.virtual == 1 or comb(outline.stages, blocks % outline.stages) > MOST:
        return None
    least = (next(iter(recomputes(problem))),) * outline.stages
    plans = (plan_of(problem, outline, cuts, least, layout) for cuts in every_cut(blocks, outline.stages))
    return min(predicted_step(problem.costs, plan) for plan in plans)


def every_cut(blocks: int, stages: int) -> Iterator[tuple[int, ...]]:
    """The inner cuts of so many blocks into stages that differ by one block at most."""
    short, longer = divmod(blocks, stages)
    for chosen in combinations(range(stages), longer):
        yield tuple(accumulate(short + (stage in chosen) for stage in range(stages - 1)))
