"""Strategies side by side: the same problems, budgets and seeds for all, each plan judged by the one estimate.

In: cases (a problem with a name), names of strategies. Out: an `Outcome` each; `standings` sums them up.

Outcomes are kept as lines of JSON, so that a comparison that was ended goes on where it was.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from placer.cluster.cluster import Cluster
from placer.errors import InfeasibleError, UsageError
from placer.plans.plan import Plan
from placer.search.asked import Budget
from placer.search.judge import solve_with
from placer.search.problem import Problem, strategy
from placer.search.progress import Progress

# Strategies that draw: only to these is a seed anything.
DRAWING = ("local", "genetic", "policy", "min_cut", "horizontal", "auto")


@dataclass(frozen=True, kw_only=True)
class Case:
    """A problem by a name of its own, made when it is asked for: what is known of it already needs none."""

    name: str
    make: Callable[[], Problem]

    @cached_property
    def problem(self) -> Problem:
        """The problem."""
        return self.make()

    @property
    def kind(self) -> str:
        """`equal` or `unequal`, as its machines are."""
        return "equal" if equal(self.problem.cluster) else "unequal"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a strategy found: seconds of a step (None: no plan, and `reason` says why), its bound, and what it took.

    curve: seconds of the search and the step seconds that were its best from then on. kind: of the case.
    """

    case: str
    strategy: str
    seed: int
    budget: str
    step_time_seconds: float | None
    bound_seconds: float | None
    evaluations: int
    search_time_seconds: float
    reason: str = ""
    kind: str = ""
    curve: tuple[tuple[float, float], ...] = ()

    @property
    def key(self) -> tuple[str, str, int, str]:
        """What was asked."""
        return self.case, self.strategy, self.seed, self.budget


def equal(cluster: Cluster) -> bool:
    """Whether all nodes are alike, and their devices."""
    return len(cluster.groups) == 1 and len(cluster.groups[0][0].devices) == 1


def compared(
    cases: Iterable[Case], strategies: Sequence[str], seeds: Sequence[int], budgets: Sequence[Budget],
    known: Iterable[Outcome] = (),
) -> Iterator[Outcome]:  # fmt: skip
    """An outcome of every case, budget, strategy and seed that is not among the `known` ones, case by case.

    Strategies that draw nothing are asked with the first seed alone.
    """
    done = {outcome.key for outcome in known}
    for case in cases:
        for budget in budgets:
            for name in strategies:
                for seed in seeds if name in DRAWING else seeds[:1]:
                    if (case.name, name, seed, budget_text(budget)) not in done:
                        yield searched(case, name, seed, budget)[0]


def budget_text(budget: Budget) -> str:
    """`200,30s`; empty without end."""
    parts = [None if budget.evaluations is None else str(budget.evaluations)]
    parts.append(None if budget.seconds is None else f"{budget.seconds:g}s")
    return ",".join(part for part in parts if part)


def searched(case: Case, name: str, seed: int, budget: Budget) -> tuple[Outcome, Plan | None]:
    """What a strategy makes of a case, and its plan."""
    given, _ = case.problem, strategy(name)  # what it takes to make a problem and to import is nobody's
    progress = Progress()
    until = None if budget.seconds is None else progress.begun + budget.seconds
    # A problem of its own: what one strategy made of its costs is no gift to the next.
    problem = replace(given, seed=seed, budget=budget.evaluations, until=until, progress=progress)
    seconds, bound, evaluations, reason, plan = None, None, 0, "", None
    try:
        found = solve_with(problem, name)
    except InfeasibleError as error:
        reason = str(error)
    else:
        plan = found.plan
        assert plan.ledger is not None
        seconds, bound, evaluations = plan.ledger.step_seconds, plan.bound, found.evaluations
    took = time.perf_counter() - progress.begun
    outcome = Outcome(
        case=case.name, strategy=name, seed=seed, budget=budget_text(budget), step_time_seconds=seconds,
        bound_seconds=bound, evaluations=evaluations, search_time_seconds=took, reason=reason, kind=case.kind,
        curve=_ended(progress.curve, took, seconds),
    )  # fmt: skip
    return outcome, plan


def _ended(curve: Sequence[tuple[float, float]], took: float, seconds: float | None) -> tuple[tuple[float, float], ...]:
    """The curve up to what the search returned: what was found on the way and was not legal after all left out."""
    if seconds is None:
        return ()
    before = [(after, found) for after, found in curve if found > seconds]
    first = next((after for after, found in curve if found == seconds), took)
    return (*before, (first, seconds))


_OUTCOME: TypeAdapter[Outcome] = TypeAdapter(Outcome)


def kept_outcomes(path: Path) -> tuple[Outcome, ...]:
    """The outcomes of a file, none where there is no file; what was not written to its end is left out."""
    if not path.exists():
        return ()
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    whole = [line for line in lines if line.endswith("\n")]
    try:
        return tuple(_OUTCOME.validate_json(line) for line in whole)
    except ValidationError as error:
        wrong = error.errors()[0]
        where = ".".join(map(str, wrong["loc"]))
        raise UsageError(
            f"{path} holds no outcomes of strategies: {where}: {wrong['msg']}; name another file"
        ) from None


def keep(path: Path, outcome: Outcome) -> None:
    """Add an outcome to a file; what was not written to its end before is written over."""
    kept = path.read_bytes() if path.exists() else b""
    with path.open("r+b" if path.exists() else "wb") as file:
        file.seek(kept.rfind(b"\n") + 1)
        file.write(f"{json.dumps(asdict(outcome))}\n".encode())
        file.truncate()
