"""What outcomes of strategies sum up to.

best     of a case, the best step time of any strategy, seed and budget
proven   of a case, the highest bound that no plan lies below (what is proven of some kinds of plans only may lie above)
gap      (own - best) / best; without a plan there is none. open: (own - proven) / proven
time     to within 5% and 1%: seconds of a search until its best so far is so near to the best
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from placer.search.comparison import Outcome

# What plans are said to be within of the best.
NEAR, NEARER = 0.05, 0.01
ROUNDING = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """A strategy over all cases and seeds: how many have a plan, gaps to the best plan known and to what is proven,
    shares within 5% and 1% of the best, median seconds until then of those that get there, seconds of a search."""

    strategy: str
    runs: int
    solved: int
    median_gap: float | None
    worst_gap: float | None
    median_open: float | None
    near: float
    nearer: float
    near_seconds: float | None
    nearer_seconds: float | None
    search_time_seconds: float


def best_seconds(outcomes: Iterable[Outcome]) -> dict[str, float]:
    """Of each case that anybody has a plan of, the seconds of the best."""
    best: dict[str, float] = {}
    for outcome in outcomes:
        if outcome.step_time_seconds is not None:
            best[outcome.case] = min(outcome.step_time_seconds, best.get(outcome.case, outcome.step_time_seconds))
    return best


def proven_seconds(outcomes: Sequence[Outcome]) -> dict[str, float]:
    """Of each case with one, the highest bound that no plan lies below."""
    best, proven = best_seconds(outcomes), dict[str, float]()
    for outcome in outcomes:
        bound = outcome.bound_seconds
        if bound is not None and bound <= best.get(outcome.case, bound) * (1 + ROUNDING):
            proven[outcome.case] = max(bound, proven.get(outcome.case, 0.0))
    return proven


def standings(outcomes: Sequence[Outcome], among: Sequence[Outcome] = ()) -> tuple[Standing, ...]:
    """Each strategy's, those first that are most often within 5%; cases of which nobody has a plan do not count.

    The best plans and what is proven are those of all `among` which these outcomes are, if that is given.
    """
    best, proven = best_seconds(among or outcomes), proven_seconds(among or outcomes)
    counted = [outcome for outcome in outcomes if outcome.case in best]
    names = dict.fromkeys(outcome.strategy for outcome in counted)
    found = [_standing(name, [one for one in counted if one.strategy == name], best, proven) for name in names]
    return tuple(sorted(found, key=lambda one: (-one.near, one.solved == 0, one.median_gap or 0.0, one.strategy)))


def _standing(name: str, own: Sequence[Outcome], best: dict[str, float], proven: dict[str, float]) -> Standing:
    gaps = gaps_to(own, best)
    near, nearer = ([time_within(one, best[one.case], share) for one in own] for share in (NEAR, NEARER))
    return Standing(
        strategy=name,
        runs=len(own),
        solved=len(gaps),
        median_gap=_median(gaps),
        worst_gap=max(gaps, default=None),
        median_open=_median(gaps_to(own, proven)),
        near=sum(gap <= NEAR for gap in gaps) / len(own),
        nearer=sum(gap <= NEARER for gap in gaps) / len(own),
        near_seconds=_median([after for after in near if after is not None]),
        nearer_seconds=_median([after for after in nearer if after is not None]),
        search_time_seconds=median(outcome.search_time_seconds for outcome in own),
    )


def gaps_to(outcomes: Iterable[Outcome], reference: dict[str, float]) -> list[float]:
    """(own - reference) / reference of each outcome with a plan, of cases that have a reference."""
    return [
        outcome.step_time_seconds / reference[outcome.case] - 1
        for outcome in outcomes
        if outcome.step_time_seconds is not None and outcome.case in reference
    ]


def time_within(outcome: Outcome, best: float, share: float) -> float | None:
    """Seconds of a search until its best so far is within `share` of `best`; None where it never is."""
    return next((after for after, seconds in outcome.curve if seconds <= best * (1 + share)), None)


def _median(values: Sequence[float]) -> float | None:
    return median(values) if values else None
