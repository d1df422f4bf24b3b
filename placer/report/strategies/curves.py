"""What pictures of strategies show: the searches by strategy, and the median of what is best so far over time."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, nan
from statistics import median

from placer.search.comparison import Outcome
from placer.search.standings import standings

POINTS = 60


def by_strategy(outcomes: Sequence[Outcome], best: dict[str, float]) -> dict[str, list[Outcome]]:
    """The searches of each strategy, of problems that somebody has a plan of, in the order of the standings."""
    names = [own.strategy for own in standings(outcomes)]
    return {name: [one for one in outcomes if one.strategy == name and one.case in best] for name in names}


def times(outcomes: Sequence[Outcome]) -> list[float]:
    """From the first plan to the last, evenly in their logarithm, seconds."""
    every = [max(after, 1e-3) for one in outcomes for after, _ in one.curve] or [1e-3]
    low, high = min(every), max(every)
    return [low * (high / low) ** (step / (POINTS - 1)) for step in range(POINTS)]


def median_gap(own: Sequence[Outcome], best: dict[str, float], after: float) -> float:
    """The median gap at some time; not a number where half of the searches have no plan yet."""
    found = []
    for one in own:
        known = [seconds for when, seconds in one.curve if when <= after]
        found.append(min(known) / best[one.case] - 1 if known else inf)
    middle = median(found)
    return middle if middle < inf else nan
