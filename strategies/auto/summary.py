"""What `auto` answers: the winner with its bound and the runners-up with the reason why each lost, or what binds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from placer.errors import Infeasible
from placer.plans.plan import Alternative
from placer.plans.transfers import is_chain
from placer.search.judge import ROUNDING
from placer.search.problem import Ended, Solution
from placer.search.slower import why_slower
from placer.strategies.auto.shares import BASELINES, INSTEAD
from placer.strategies.auto.tried import Tried, legal_of


def summary(runs: list[Tried], ended: Ended) -> Solution | Infeasible:
    """The winner with the losers' reasons."""
    legal = legal_of(runs)
    if not legal:
        return _binding(runs)
    best, winner = min(legal, key=lambda entry: entry[1].order)
    solved = [run.found for run in runs if isinstance(run.found, Solution)]
    # What is proven of chains of stages says nothing of a graph of them.
    proven = is_chain(best.plan)
    bounds = [found.bound for found in solved if proven and found.bound is not None]
    return Solution(
        plan=replace(best.plan, strategy=winner.name),
        bound=_bound(bounds, best.seconds, min(verdict.seconds for verdict, _ in legal)),
        left_out=tuple(dict.fromkeys(kind for found in solved for kind in found.left_out)),
        alternatives=tuple(_alternative(run, winner) for run in runs if run is not winner),
        evaluations=sum(run.evaluations for run in runs),
        ended=ended or next((found.ended for found in solved if found.ended), ""),
    )


def _binding(runs: Sequence[Tried]) -> Infeasible:
    """What the exact search says binds, or the last other one; where a budget ended all but the baselines, that it
    did."""
    failed = [(run.name, run.found) for run in reversed(runs) if isinstance(run.found, Infeasible)]
    searched = [one for one in failed if one[0] not in (*BASELINES, *INSTEAD)]
    name, found = next((one for one in searched if one[0] == "stages"), next(iter(searched), failed[0]))
    if name not in BASELINES:
        return found
    over = f"the budget was over before anything but baselines was tried, and none has a legal plan ({name}: "
    return Infeasible(binding=f"{over}{found.binding})", advice="Give it a larger one")


def _bound(bounds: Sequence[float], seconds: float, least: float) -> float | None:
    """What is proven of the plan of so many seconds: nothing where it, or one of `least` seconds that is slower when
    played, is of a kind that no exact search tries."""
    if not bounds or least < max(bounds) * (1 - ROUNDING):
        return None
    return min(max(bounds), seconds)


def _alternative(run: Tried, winner: Tried) -> Alternative:
    if isinstance(run.found, Infeasible):
        return Alternative(name=run.name, step_seconds=None, reason=run.found.binding)
    verdict, best = run.verdict, winner.verdict
    assert verdict is not None
    assert best is not None
    if not verdict.legal:
        return Alternative(name=run.name, step_seconds=None, reason=verdict.complaint)
    reason = why_slower(verdict, best)
    if run.seconds != verdict.seconds:
        slower = f"{run.seconds / winner.seconds - 1:.1%} slower in all" if run.seconds > winner.seconds else "as fast"
        reason = f"played event by event; {1e3 * verdict.seconds:.3g} ms by estimate, {slower}"
    return Alternative(name=run.name, step_seconds=run.seconds, reason=reason)
