"""What the searches of plans whose positions have submeshes of their own do alike, and the plans they find.

What has the smallest bound is looked at next: first a schedule's terms (microbatch, schedule, sharding), by a quick
bound, which are taken apart; then their parts, each solved for a plan or for nothing that is faster. What patience or
seconds leave unsolved keeps its bound.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from heapq import heapify, heappop, heappush
from typing import Generic, TypeVar

from placer.io.memo import remembered
from placer.plans.plan import Layout, Plan, Recompute, ScheduleName, Stage
from placer.search.problem import Problem
from placer.strategies.inter_op.bounds.schedule import ScheduleTerms
from placer.strategies.inter_op.equivalence import RangeClasses
from placer.strategies.inter_op.submeshes.bounds import StageBounds
from placer.strategies.inter_op.submeshes.stage_costs import SubmeshCosts
from placer.strategies.inter_op.submeshes.submesh import PlacedSubmesh
from placer.strategies.space.outline import fused, microbatch_rows, schedules, shardings

Entry = TypeVar("Entry")


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmeshPlan:
    """A plan found: its seconds, and the placement, inner cuts and recompute of every stage."""

    value: float
    terms: ScheduleTerms
    placements: tuple[PlacedSubmesh, ...]
    cuts: tuple[int, ...]
    recompute: tuple[Recompute, ...]


@dataclass
class BestFirst(ABC, Generic[Entry]):
    """What is left of these plans. `views` are the costs of the model under each layout; without views there are none.

    An entry is a schedule's terms or a part of them; entries of one bound are looked at in their order.
    """

    problem: Problem
    layouts: tuple[Layout, ...]
    views: dict[int, RangeClasses]
    open: list[float] = field(default_factory=list)
    placed: int = 0

    @cached_property
    def queue(self) -> list[tuple[float, Entry]]:
        """What was not looked at yet, by its bound."""
        found = list(self._roots()) if self.views else []
        heapify(found)
        return found

    @remembered
    def stage_costs(self, terms: ScheduleTerms) -> SubmeshCosts:
        """Exact costs of stages under a schedule's terms."""
        return SubmeshCosts(self.stage_bounds, terms, self.layouts)

    @property
    def least(self) -> float | None:
        """The smallest bound of what was not solved; None where nothing is left."""
        return min([*self.open, *(entry[0] for entry in self.queue[:1])], default=None)

    @property
    def nearest(self) -> float | None:
        """The bound of what is looked at next; None where nothing is left."""
        return self.queue[0][0] if self.queue else None

    def next(self, ceiling: float) -> SubmeshPlan | None:
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

    def quick(self, positions: tuple[int, ...], most: int) -> Iterator[tuple[float, ScheduleTerms]]:
        """Every schedule's terms of plans of so many positions of at most `most` replicas, by a quick bound."""
        names = dict.fromkeys(name for p in positions for name in self.schedules(p))
        for rows in microbatch_rows(self.problem, 1):
            for name in names:
                for sharding in shardings(self.problem, most, name):
                    terms = ScheduleTerms(rows=rows, schedule=name, sharding=sharding, batch=self.problem.rows)
                    yield self.stage_bounds.quick(rows, name), terms

    def schedules(self, positions: int) -> tuple[ScheduleName, ...]:
        """The schedules of plans of so many positions, with one stage at each."""
        # Under gpipe a message is waited for as often and more is held than under 1f1b, which is as fast otherwise.
        asked = self.problem.pins.schedule == "gpipe"
        found = (name for name, virtual in schedules(self.problem, positions) if virtual == 1)
        return tuple(name for name in found if name != "gpipe" or asked)

    def plan(self, found: SubmeshPlan) -> Plan:
        """The plan that was found."""
        problem, terms = self.problem, found.terms
        used = sorted({own.submesh.layout for own in found.placements if own.submesh.layout >= 0})
        edges = (0, *found.cuts, len(problem.graph.blocks))
        stages = tuple(
            Stage(
                first=edges[s], last=edges[s + 1], devices=own.devices, sharding=terms.kept(own.submesh.replicas),
                recompute=found.recompute[s], degree=own.submesh.degree,
                layout=used.index(own.submesh.layout) if own.submesh.layout >= 0 else None,
            )
            for s, own in enumerate(found.placements)
        )  # fmt: skip
        full, rest = divmod(problem.rows, terms.rows)
        plan = Plan(
            model=problem.model, graph=problem.graph, cluster=problem.cluster, settings=problem.settings,
            stages=stages, schedule=terms.schedule, microbatches=(terms.rows,) * full + ((rest,) if rest else ()),
            seed=problem.seed, layouts=tuple(self.layouts[number] for number in used),
        )  # fmt: skip
        return fused(problem, plan)

    @property
    @abstractmethod
    def stage_bounds(self) -> StageBounds:
        """Bounds of stages on all submeshes."""

    @abstractmethod
    def _roots(self) -> Iterable[tuple[float, Entry]]:
        """Every schedule's terms by its quick bound."""

    @abstractmethod
    def _parts(self, entry: Entry, ceiling: float) -> Iterable[tuple[float, Entry]] | None:
        """The parts of terms by their bounds, those that may lie below `ceiling`; None of what is a part itself."""

    @abstractmethod
    def _solved(self, bound: float, entry: Entry, ceiling: float) -> SubmeshPlan | None:
        """The best plan of a part below the ceiling."""
