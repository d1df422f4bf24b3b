"""Which of equally fast outlines a search meets first is chance; of such the one with the most even microbatches wins.

Other frameworks know only microbatches of equally many rows, so that a plan of 16 + 16 rows can be exported to them and
one of 28 + 4 cannot. Both take the same time where a device waits for its host whatever rows it has.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from placer.costs.costs import Costs
from placer.plans.plan import Layout
from placer.search.judge import ROUNDING, Verdict, judge
from placer.search.problem import Problem
from placer.strategies.inter_op.partition.chain_dp import StageCuts
from placer.strategies.space.outline import Outline, microbatch_rows, plan_of


def evened(problem: Problem, outline: Outline, costs: Costs, cuts: StageCuts, layout: Layout | None) -> Verdict:
    """The verdict on an outline's plan under `costs`, or on one of as many, more even microbatches if as good."""
    plans = [plan_of(problem, each, cuts.cuts, cuts.recompute, layout) for each in _as_many(problem, outline, costs)]
    verdicts = [judge(problem.costs, plan) for plan in plans]
    least = min(verdict.seconds for verdict in verdicts) * (1 + ROUNDING)
    return min(verdicts, key=lambda one: (not one.legal, max(one.seconds, least), *one.order[1:]))


def _as_many(problem: Problem, outline: Outline, costs: Costs) -> Iterator[Outline]:
    """An outline, then the one with as many microbatches whose first have the fewest rows."""
    yield outline
    allowed = microbatch_rows(problem, outline.replicas, costs.apart)
    fewest = min([rows for rows in allowed if -(-outline.rows // rows) == outline.count], default=outline.microbatch)
    if fewest < outline.microbatch and not outline.shares:
        yield replace(outline, microbatch=fewest)
