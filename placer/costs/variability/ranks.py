"""Ranks whose seconds vary, by kind, and the division of a batch under which they wait least for each other.

    seconds of r rows = fixed + (measured seconds - fixed) * r / measured rows

The expected maximum is convex in the rows (it is the mean of a maximum of linear functions), so that moving rows from
one kind to another, fewer and fewer at a time, ends where no move between two kinds betters it: of two kinds at the
best division, but for rows that ranks alike cannot divide evenly.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import permutations, product
from typing import TypeAlias

from placer.costs.variability.step_times import ScaledTimes, StepTimes
from placer.costs.variability.waiting import Crowd, expected_maximum

# Rows up to which every number is moved; ranks alike share larger ones evenly enough: the divisions found are those of
# the enumeration in `tests/costs/test_variability.py`.
_MOST_MOVED = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class RankKind:
    """Ranks alike. times: seconds of one of them in a step with `rows` rows. fixed: how many seconds of these do not
    grow with rows."""

    name: str
    times: StepTimes
    rows: int = 1
    count: int = 1
    fixed: float = 0.0

    def crowd(self, rows: int) -> Crowd:
        """The ranks when all of them together take so many rows, as evenly as whole rows allow."""
        each, more = divmod(rows, self.count)
        divided = ((each + 1, more), (each, self.count - more))
        return [(self._of(own), ranks) for own, ranks in divided if ranks]

    def _of(self, rows: int) -> StepTimes:
        factor = rows / self.rows
        return ScaledTimes(times=self.times, factor=factor, offset=(1 - factor) * self.fixed)


Kinds: TypeAlias = tuple[RankKind, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Division:
    """Rows of all ranks of each kind together, and the seconds of a synchronous step's computation with them."""

    rows: tuple[int, ...]
    seconds: float


def crowd_of(kinds: Kinds, rows: tuple[int, ...]) -> Crowd:
    """All ranks, each kind with so many rows."""
    return [one for kind, own in zip(kinds, rows, strict=True) for one in kind.crowd(own)]


def given_rows(kinds: Kinds) -> tuple[int, ...]:
    """As they were measured."""
    return tuple(kind.rows * kind.count for kind in kinds)


def given_division(kinds: Kinds) -> Division:
    """The rows with which they were measured."""
    rows = given_rows(kinds)
    return Division(rows=rows, seconds=expected_maximum(crowd_of(kinds, rows)))


def even_division(kinds: Kinds) -> Division:
    """Rows by speed: the largest mean is least, as where nothing varies."""
    rows = _searched(kinds, lambda rows: max(times.mean for times, _ in crowd_of(kinds, rows)))
    return Division(rows=rows, seconds=expected_maximum(crowd_of(kinds, rows)))


def best_division(kinds: Kinds) -> Division:
    """Of least expected maximum; every rank keeps at least a row."""
    rows = _searched(kinds, lambda rows: expected_maximum(crowd_of(kinds, rows)))
    return Division(rows=rows, seconds=expected_maximum(crowd_of(kinds, rows)))


def _searched(kinds: Kinds, seconds: Callable[[tuple[int, ...]], float]) -> tuple[int, ...]:
    """Rows from which no move between two kinds leads to fewer seconds."""
    rows = given_rows(kinds)
    found, better = seconds(rows), True
    while better:
        better = False
        for moved, (source, target) in product(_moves(kinds), permutations(range(len(kinds)), 2)):
            tried = tuple(own + moved * ((k == target) - (k == source)) for k, own in enumerate(rows))
            taken = seconds(tried) if tried[source] >= kinds[source].count else found
            if taken < found:
                rows, found, better = tried, taken, True
    return rows


def _moves(kinds: Kinds) -> tuple[int, ...]:
    """Numbers of rows that are moved: halves of the batch and down, then those that ranks alike divide unevenly."""
    halves = tuple(1 << k for k in reversed(range(sum(given_rows(kinds)).bit_length())))
    few = min(2 * max(kind.count for kind in kinds), _MOST_MOVED)
    return tuple(sorted({*halves, *range(1, few + 1)}, reverse=True))
