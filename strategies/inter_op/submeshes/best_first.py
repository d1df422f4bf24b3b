"""What searches by bound of plans whose positions have shapes of their own do alike: paces first, then their parts.

What has the smallest bound is looked at next. A pace is taken apart; a part is solved, for a plan or for nothing that
is faster. What patience or seconds leave unsolved keeps its bound.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from heapq import heapify, heappop, heappush
from typing import Generic, TypeVar

from placer.plans.plan import Layout, Plan
from placer.search.problem import Problem
from placer.strategies.inter_op.equivalence import Runs
from placer.strategies.inter_op.submeshes.plans import ShapedPlan, shaped_plan

Entry = TypeVar("Entry")


@dataclass
class ShapeSearch(ABC, Generic[Entry]):
    """What is left of plans with shapes of their own. `views` are the costs of the model under each layout.

    Without views there are no such plans. An entry is a pace or a part of one; entries of one bound are looked at in
    their order.
    """

    problem: Problem
    layouts: tuple[Layout, ...]
    views: dict[int, Runs]
    open: list[float] = field(default_factory=list)

    @cached_property
    def queue(self) -> list[tuple[float, Entry]]:
        """What was not looked at yet, by its bound."""
        found = list(self._paces())
        heapify(found)
        return found

    @property
    def least(self) -> float | None:
        """The smallest bound of what was not solved; None where nothing is left."""
        return min([*self.open, *(entry[0] for entry in self.queue[:1])], default=None)

    @property
    def nearest(self) -> float | None:
        """The bound of what is looked at next; None where nothing is left."""
        return self.queue[0][0] if self.queue else None

    def next(self, ceiling: float) -> ShapedPlan | None:
        """Look at what has the smallest bound; a plan faster than `ceiling`, if that has one.

        It stays in the queue until it is done: an interrupt loses no bound.
        """
        bound, entry = self.queue[0]
        parts = self._parts(entry, ceiling)
        found = self._solved(bound, entry, ceiling) if parts is None else None
        made = tuple(parts or ())
        heappop(self.queue)
        for least, part in made:
            heappush(self.queue, (max(bound, least), part))
        return found

    def plan(self, found: ShapedPlan) -> Plan:
        """The plan that was found."""
        return shaped_plan(self.problem, self.layouts, found)

    @abstractmethod
    def _paces(self) -> Iterable[tuple[float, Entry]]:
        """Every pace by its quick bound."""

    @abstractmethod
    def _parts(self, entry: Entry, ceiling: float) -> Iterable[tuple[float, Entry]] | None:
        """The parts of a pace by their bounds, those that may lie below `ceiling`; None of what is a part itself."""

    @abstractmethod
    def _solved(self, bound: float, entry: Entry, ceiling: float) -> ShapedPlan | None:
        """The best plan of a part below the ceiling."""
