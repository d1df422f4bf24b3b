"""Placement files among the problems that strategies are compared on, where strategies apply to them.

A graph with given costs has no rows to divide, no ops to cut and no plan to run: of the strategies of `placer plan`
those place it that have an engine for such graphs, `min_cut` (whose engines prove what they find) and the list
schedulers and partitioners. Its largest device load, contiguous, stands for the step time, in the file's own unit.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from placer.errors import InfeasibleError
from placer.placement.formats import EXACT, PlaceRequest, read_problem
from placer.placement.solvers import place
from placer.search.asked import Budget
from placer.search.comparison import Outcome, budget_text

# strategy -> what `placer place --strategy` calls it
PLACING = {
    "min_cut": EXACT, "heft": "heft", "etf": "etf", "sct": "sct", "critical_path": "critical_path", "greedy": "greedy",
    "metis": "metis", "single": "single",
}  # fmt: skip
KIND = "given costs"


def compared_files(
    files: Iterable[Path], strategies: Sequence[str], budgets: Sequence[Budget], known: Iterable[Outcome] = ()
) -> Iterator[Outcome]:
    """An outcome of every file, budget and strategy that applies and is not among the `known` ones."""
    done = {outcome.key for outcome in known}
    for path in files:
        for budget in budgets:
            for name in strategies:
                if name in PLACING and (case_name(path), name, 0, budget_text(budget)) not in done:
                    yield _outcome(path, name, budget)


def case_name(path: Path) -> str:
    """What the problem of a file is called."""
    return f"{path.parent.name}/{path.name}"


def _outcome(path: Path, name: str, budget: Budget) -> Outcome:
    request = PlaceRequest(strategy=PLACING[name], budget=budget.evaluations, seconds=budget.seconds)
    problem, begun = read_problem(path, request), time.perf_counter()
    value, bound, reason = None, None, ""
    try:
        found = place(problem, request)
    except InfeasibleError as error:
        reason = str(error)
    else:
        value, bound = found.objective, found.bound or None
    took = time.perf_counter() - begun
    return Outcome(
        case=case_name(path), strategy=name, seed=0, budget=budget_text(budget), step_time_seconds=value,
        bound_seconds=bound, evaluations=0, search_time_seconds=took, reason=reason, kind=KIND,
        curve=() if value is None else ((took, value),),
    )  # fmt: skip
