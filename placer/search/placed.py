"""Placement files among the problems that strategies are compared on, where strategies apply to them.

A graph with given costs has no rows to divide, no ops to cut and no plan to run: of the strategies of `placer plan`
those place it that have an engine for such graphs, `min_cut` (whose engines prove what they find), the searches over
orders (`local`, `genetic`, `policy`) and the list schedulers and partitioners. Its largest device load, contiguous,
stands for the step time, in the file's own unit.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from placer.errors import InfeasibleError
from placer.placement.formats import EXACT, PlaceRequest, read_problem
from placer.placement.solvers import place
from placer.search.asked import Budget
from placer.search.comparison import DRAWING, Outcome, budget_text

# strategy -> what `placer place --strategy` calls it
PLACING = {
    "min_cut": EXACT, "local": "local", "genetic": "genetic", "policy": "policy", "heft": "heft", "etf": "etf",
    "sct": "sct", "critical_path": "critical_path", "greedy": "greedy", "metis": "metis", "single": "single",
}  # fmt: skip
KIND = "given costs"


def compared_files(
    files: Iterable[Path], strategies: Sequence[str], budgets: Sequence[Budget], known: Iterable[Outcome] = (),
    seeds: Sequence[int] = (0,),
) -> Iterator[Outcome]:  # fmt: skip
    """An outcome of every file, budget, strategy that applies and seed of those that draw, but for the `known` ones."""
    done = {outcome.key for outcome in known}
    for path in files:
        for budget in budgets:
            for name in (name for name in strategies if name in PLACING):
                for seed in seeds if name in DRAWING and PLACING[name] != EXACT else seeds[:1]:
                    if (case_name(path), name, seed, budget_text(budget)) not in done:
                        yield _outcome(path, name, budget, seed)


def case_name(path: Path) -> str:
    """What the problem of a file is called."""
    return f"{path.parent.name}/{path.name}"


def _outcome(path: Path, name: str, budget: Budget, seed: int) -> Outcome:
    request = PlaceRequest(strategy=PLACING[name], budget=budget.evaluations, seconds=budget.seconds, seed=seed)
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
        case=case_name(path), strategy=name, seed=seed, budget=budget_text(budget), step_time_seconds=value,
        bound_seconds=bound, evaluations=0, search_time_seconds=took, reason=reason, kind=KIND,
        curve=() if value is None else ((took, value),),
    )  # fmt: skip
