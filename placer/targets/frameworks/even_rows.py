"""A plan whose microbatches have equally many rows, as frameworks want them, beside one that the search tapered."""

from __future__ import annotations

from dataclasses import replace

from placer.search.judge import judge
from placer.search.problem import Problem, Solution


def with_even_rows(problem: Problem, found: Solution) -> Solution:
    """The solution with its rows divided evenly over its microbatches, judged anew; itself where that cannot be.

    The bound stays: it is of all plans under the same pins.
    """
    rows = found.plan.microbatches
    share, rest = divmod(sum(rows), len(rows))
    if rest or len(set(rows)) == 1:
        return found
    verdict = judge(problem.costs, replace(found.plan, microbatches=(share,) * len(rows), ledger=None))
    return replace(found, plan=verdict.plan) if verdict.legal else found
