"""`min_cut` and `policy` as strategies of `placer.plan`: what either finds alone, and what moves make of it.

    half of what is left after the baselines and list schedulers   the strategy alone
    the rest                                                       `local` from its plan, then from the baselines

So neither ends with less than the best baseline that the budget has room for; cuts alone know nothing of them (they
price no reduction). The plan's alternatives say what the strategy found alone, where moves found something better. Who
knows plans already goes on from them by moves of its own: then the strategy is asked alone.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace

from placer.errors import Infeasible
from placer.plans.plan import Alternative
from placer.search.judge import ROUNDING
from placer.search.problem import Problem, Solution, Strategy
from placer.strategies.local.search import best_after, search_from
from placer.strategies.min_cut.search import MinCut
from placer.strategies.moves.walk import Seen, Walk
from placer.strategies.policy.strategy import Policy
from placer.strategies.space.pin_conflicts import require_pins


class Polished(ABC):
    """A strategy whose plan goes on by moves."""

    name: str
    exact = False

    @abstractmethod
    def alone(self) -> Strategy:
        """The strategy without moves."""

    def solve(self, problem: Problem) -> Solution | Infeasible:
        """The best plan found within the budget; why the strategy alone has none where moves have none either. Raises
        UsageError for contradicting pins."""
        require_pins(problem)
        if problem.known_plans:
            return self.alone().solve(problem)
        walk, alone = Walk(problem), list[Solution | Infeasible]()

        def search() -> None:
            seeds = walk.seeds(horizontal=False)
            if not (walk.over and walk.best):
                alone.append(self.alone().solve(_half(walk, seeds)))
                search_from(walk, [*_taken(walk, alone[0]), *seeds])

        return _better(alone, best_after(walk, self.name, search), self.name)


def _taken(walk: Walk, found: Solution | Infeasible) -> list[Seen]:
    """What the strategy found alone, as `walk` sees it; its evaluations count."""
    if isinstance(found, Infeasible):
        return []
    walk.evaluations += found.evaluations
    return [] if walk.over else list(walk.given(found.plan))


def _half(walk: Walk, seeds: list[Seen]) -> Problem:
    """The problem for half of what is left of its budget."""
    problem, now = walk.problem, time.perf_counter()
    return replace(
        problem,
        budget=None if problem.budget is None else max(1, (problem.budget - walk.evaluations) // 2),
        until=None if problem.until is None else now + (problem.until - now) / 2,
        known_plans=tuple(seed.plan for seed in seeds if seed.legal),
    )


def _better(
    alone: Sequence[Solution | Infeasible], moved: Solution | Infeasible, name: str
) -> Solution | Infeasible:  # fmt: skip
    """What moves made of what the strategy found alone, if it was asked, which is named beside it; or that, where they
    know nothing better."""
    if not alone or isinstance(alone[0], Infeasible):
        return alone[0] if alone and isinstance(moved, Infeasible) else moved
    if isinstance(moved, Infeasible):
        return alone[0]
    first, best = _seconds(alone[0]), _seconds(moved)
    if best >= first * (1 - ROUNDING):
        plan, ended = replace(alone[0].plan, strategy=name), moved.ended or alone[0].ended
        return replace(alone[0], plan=plan, evaluations=moved.evaluations, ended=ended)
    reason = f"{first / best - 1:.1%} slower, before moves went on from it and from the baselines"
    return replace(moved, alternatives=(Alternative(name=f"{name} alone", step_seconds=first, reason=reason),))


def _seconds(found: Solution) -> float:
    """Seconds of a step of a plan."""
    assert found.plan.ledger is not None
    return found.plan.ledger.step_seconds


class PolishedCuts(Polished):
    """Cuts by the engines for graphs with given costs."""

    name = "min_cut"

    def alone(self) -> Strategy:
        """The engines."""
        return MinCut()


class PolishedPolicy(Polished):
    """Learned on small problems, tuned to each."""

    name = "policy"

    def alone(self) -> Strategy:
        """The game played by the shipped scorer."""
        return Policy()
