"""`genetic`: populations of plans that are crossed, moved, repaired and selected by NSGA-II.

One population, or several islands in a ring (`islands`), in other processes where there are cores; `resume` names a
file that the search is kept in after each epoch and goes on from. For a budget in evaluations, or none, the plan
depends on the seed and the number of islands alone.

In: a Problem. Out: the fastest plan seen, without a bound, and as alternatives the front: the plans that take less
memory or fewer devices than any faster one. Needs DEAP (`pip install "placer-planner[genetic]"`).
"""

from __future__ import annotations

from dataclasses import replace

from placer.errors import Infeasible, require_extra
from placer.plans.plan import Alternative
from placer.search.problem import Problem, Solution
from placer.strategies.moves.walk import Seen, Walk

MOST_ALTERNATIVES = 12
GIB = 2**30


class Genetic:
    """NSGA-II over plans; deterministic by the problem's seed."""

    name = "genetic"
    exact = False

    def solve(self, problem: Problem) -> Solution | Infeasible:
        """The fastest plan found within the budget; what binds where none fits. Raises UsageError for contradicting
        pins, for a file that keeps another search, and where DEAP is missing."""
        require_extra("genetic", "deap")
        walk = Walk(problem)
        beaten_by_none, interrupted = _searched(walk)
        best = walk.best[0] if walk.best else None
        told = () if best is None else tuple(_alternative(seen, best) for seen in beaten_by_none if seen is not best)
        found = walk.result(self.name, told[:MOST_ALTERNATIVES])
        return replace(found, ended="interrupt") if interrupted and isinstance(found, Solution) else found


def _searched(walk: Walk) -> tuple[list[Seen], bool]:
    """The front of all islands, whose plans `walk` then knows, and whether an interrupt ended the search; raises
    KeyboardInterrupt where that came before a legal plan."""
    from placer.strategies.genetic import islands  # DEAP may be missing
    from placer.strategies.genetic.kept import keep, kept

    now = begun = islands.begun(walk, kept(walk.problem))
    keep(walk.problem, begun)
    interrupted = False
    try:
        for now in islands.epochs(walk, begun):
            keep(walk.problem, now)
    except KeyboardInterrupt:
        interrupted = bool(walk.best)
        if not interrupted:
            raise
    return islands.gathered(walk, now), interrupted


def _alternative(seen: Seen, best: Seen) -> Alternative:
    """What a plan of the front has for being slower."""
    gains = []
    if seen.devices < best.devices:
        gains.append(f"{seen.devices} devices instead of {best.devices}")
    if seen.score.peak < best.score.peak:
        gains.append(f"{seen.score.peak / GIB:.3g} GiB on its fullest device instead of {best.score.peak / GIB:.3g}")
    return Alternative(
        name=f"front: {seen.devices} devices, {seen.score.peak / GIB:.3g} GiB",
        step_seconds=seen.seconds,
        reason=f"{seen.seconds / best.seconds - 1:.1%} slower, with {' and '.join(gains) or 'no less of anything'}",
    )
