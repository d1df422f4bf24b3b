"""What one strategy found for `auto`, judged again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from placer.errors import Infeasible
from placer.plans.plan import Plan
from placer.search.judge import Verdict, judge
from placer.search.problem import Problem, Solution, strategy
from placer.search.progress_line import tell
from placer.strategies.baselines.standard import Baseline


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """What one strategy found, judged again; `verdict` is not on communication before the best of all is settled.

    played: seconds of its step, where it was the best and was played event by event.
    """

    name: str
    found: Solution | Infeasible
    verdict: Verdict | None
    played: float | None = None

    @property
    def seconds(self) -> float:
        """Seconds of a step of what it found, as far as is known."""
        assert self.verdict is not None
        return self.verdict.seconds if self.played is None else self.played

    @property
    def order(self) -> tuple[float, int, int, int, int, str]:
        """What results are compared by."""
        assert self.verdict is not None
        return (self.seconds, *self.verdict.order[1:])

    @property
    def evaluations(self) -> int:
        """Plans it looked at."""
        return 1 if isinstance(self.found, Infeasible) else self.found.evaluations


def tried(name: str, problem: Problem, *, lowered: bool = False) -> Tried:
    """What a strategy finds, with or without a look at whether its communication holds."""
    tell(phase=name)
    solver = strategy(name)
    found = solver.solve(problem, lowered=lowered) if isinstance(solver, Baseline) else solver.solve(problem)
    verdict = None if isinstance(found, Infeasible) else judge(problem.costs, found.plan, lowered=lowered)
    if verdict is not None and verdict.legal:
        problem.found(verdict.seconds)
    return Tried(name=name, found=found, verdict=verdict)


def unended(run: Tried) -> Tried:
    """The run as if no budget had ended it: the part that it had is over, not the whole."""
    if isinstance(run.found, Infeasible) or run.found.ended == "interrupt":
        return run
    return replace(run, found=replace(run.found, ended=""))


def interrupted(runs: Sequence[Tried]) -> bool:
    """Whether an interrupt ended one of them."""
    return any(isinstance(run.found, Solution) and run.found.ended == "interrupt" for run in runs)


def legal_of(runs: Sequence[Tried]) -> list[tuple[Verdict, Tried]]:
    """Those that found a legal plan, with its verdict."""
    return [(run.verdict, run) for run in runs if run.verdict is not None and run.verdict.legal]


def plans_of(runs: Sequence[Tried]) -> tuple[Plan, ...]:
    """The legal plans, the best first."""
    return tuple(verdict.plan for verdict, _ in sorted(legal_of(runs), key=lambda entry: entry[0].order))
