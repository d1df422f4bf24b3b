"""A strategy of one's own: cuts the model into two stages by forward FLOPs, tries every number of microbatches.

It grades nothing itself: placer checks the plan it returns, and estimates it afresh. Installed with the entry point

    [project.entry-points."placer.strategies"]
    halves = "examples.extending.strategy:Halves"

in a package's pyproject.toml, it is `placer plan ... --strategy halves` and `placer.plan(..., strategy="halves")`.
"""

from __future__ import annotations

from itertools import accumulate

import placer
from placer.legality import check
from placer.plans.plan import Plan, Stage


class Halves:
    """Two stages of about equal FLOPs, in as many microbatches as are fastest."""

    name = "halves"
    exact = False

    def solve(self, problem: placer.Problem) -> placer.Solution | placer.Infeasible:
        """The fastest legal plan of two stages, or what stands in its way."""
        graph, blocks = problem.graph, len(problem.graph.blocks)
        if problem.cluster.size < 2 or blocks < 2:
            return placer.Infeasible(binding="two stages take two devices and two blocks")
        work = (sum(op.forward_flops.at(problem.rows) for op in graph.block_class(b).ops) for b in range(blocks))
        flops = list(accumulate(work))
        cut = min(range(1, blocks), key=lambda block: abs(flops[-1] - 2 * flops[block - 1]))
        plans = [self._plan(problem, cut, count) for count in range(1, problem.rows + 1) if problem.rows % count == 0]
        legal = [plan for plan in plans if not check(plan)]
        if not legal:
            return placer.Infeasible(binding="; ".join(violation.message for violation in check(plans[-1])))
        best = min(legal, key=lambda plan: placer.estimate(plan).step_seconds)
        return placer.Solution(plan=best, evaluations=len(plans))

    def _plan(self, problem: placer.Problem, cut: int, microbatches: int) -> Plan:
        edges = ((0, cut), (cut, len(problem.graph.blocks)))
        return Plan(
            graph=problem.graph, cluster=problem.cluster, settings=problem.settings, model=problem.model,
            stages=tuple(Stage(first=first, last=last, devices=(i,)) for i, (first, last) in enumerate(edges)),
            microbatches=(problem.rows // microbatches,) * microbatches, schedule="1f1b", seed=problem.seed,
            strategy=self.name,
        )  # fmt: skip
