"""Strategies side by side: the same problems, budgets and seeds for all, each plan judged by the one estimate.

In: cases (a problem with a name), names of strategies. Out: an `Outcome` each, and what they sum up to: of a problem
the best value is that of any strategy and seed; a gap is (own - best) / best. Without a plan there is no gap.

Outcomes are kept as lines of JSON, so that a comparison that was ended goes on where it was.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median

from pydantic import TypeAdapter, ValidationError

from placer.errors import InfeasibleError, UsageError
from placer.search.asked import Budget
from placer.search.judge import solve_with
from placer.search.problem import Problem

# What plans are said to be within of the best.
NEAR, NEARER = 0.05, 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A problem by a name of its own."""

    name: str
    problem: Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a strategy found: seconds of a step (None: no plan, and `reason` says why), its bound, and what it took."""

    case: str
    strategy: str
    seed: int
    budget: str
    step_time_seconds: float | None
    bound_seconds: float | None
    evaluations: int
    search_time_seconds: float
    reason: str = ""

    @property
    def key(self) -> tuple[str, str, int, str]:
        """What was asked."""
        return self.case, self.strategy, self.seed, self.budget


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """A strategy over all cases and seeds: how many have a plan, gaps to the best plan known, shares within 5% and 1%
    of it, seconds of a search."""

    strategy: str
    runs: int
    solved: int
    median_gap: float | None
    worst_gap: float | None
    near: float
    nearer: float
    search_time_seconds: float


def compared(
    cases: Sequence[Case], strategies: Sequence[str], seeds: Sequence[int], budget: Budget,
    known: Iterable[Outcome] = (),
) -> Iterator[Outcome]:  # fmt: skip
    """An outcome of every case, strategy and seed that is not among the `known` ones, case by case."""
    done = {outcome.key for outcome in known}
    for case in cases:
        for name in strategies:
            for seed in seeds:
                if (case.name, name, seed, budget_text(budget)) not in done:
                    yield _outcome(case, name, seed, budget)


def budget_text(budget: Budget) -> str:
    """`200,30s`; empty without end."""
    parts = [None if budget.evaluations is None else str(budget.evaluations)]
    parts.append(None if budget.seconds is None else f"{budget.seconds:g}s")
    return ",".join(part for part in parts if part)


def _outcome(case: Case, name: str, seed: int, budget: Budget) -> Outcome:
    begun = time.perf_counter()
    until = None if budget.seconds is None else begun + budget.seconds
    # A problem of its own: what one strategy made of its costs is no gift to the next.
    problem = replace(case.problem, seed=seed, budget=budget.evaluations, until=until)
    seconds, bound, evaluations, reason = None, None, 0, ""
    try:
        found = solve_with(problem, name)
    except InfeasibleError as error:
        reason = str(error)
    else:
        assert found.plan.ledger is not None
        seconds, bound, evaluations = found.plan.ledger.step_seconds, found.plan.bound, found.evaluations
    return Outcome(
        case=case.name, strategy=name, seed=seed, budget=budget_text(budget), step_time_seconds=seconds,
        bound_seconds=bound, evaluations=evaluations, search_time_seconds=time.perf_counter() - begun, reason=reason,
    )  # fmt: skip


def best_seconds(outcomes: Iterable[Outcome]) -> dict[str, float]:
    """Of each case that anybody has a plan of, the seconds of the best."""
    best: dict[str, float] = {}
    for outcome in outcomes:
        if outcome.step_time_seconds is not None:
            best[outcome.case] = min(outcome.step_time_seconds, best.get(outcome.case, outcome.step_time_seconds))
    return best


def standings(outcomes: Sequence[Outcome]) -> tuple[Standing, ...]:
    """Each strategy's, those of the smallest median gap first; cases of which nobody has a plan do not count."""
    best = best_seconds(outcomes)
    counted = [outcome for outcome in outcomes if outcome.case in best]
    names = dict.fromkeys(outcome.strategy for outcome in counted)
    found = [_standing(name, [one for one in counted if one.strategy == name], best) for name in names]
    return tuple(sorted(found, key=lambda one: (one.solved == 0, one.median_gap or 0.0, -one.nearer, one.strategy)))


def _standing(name: str, own: Sequence[Outcome], best: dict[str, float]) -> Standing:
    gaps = [
        outcome.step_time_seconds / best[outcome.case] - 1 for outcome in own if outcome.step_time_seconds is not None
    ]
    return Standing(
        strategy=name,
        runs=len(own),
        solved=len(gaps),
        median_gap=median(gaps) if gaps else None,
        worst_gap=max(gaps, default=None),
        near=sum(gap <= NEAR for gap in gaps) / len(own),
        nearer=sum(gap <= NEARER for gap in gaps) / len(own),
        search_time_seconds=median(outcome.search_time_seconds for outcome in own),
    )


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
