"""The search of plans whose positions have shapes of their own, by bound: beside the outlines that `stages` searches.

Paces (microbatch, schedule, sharding) are taken by a quick bound that holds for any positions, then pace by pace and
number of positions by the shortest ways of `shape_ways`; what may still beat the best plan is solved by
`shape_labels`, first with few labels a stage for a plan, then exactly. What patience or seconds leave unsolved keeps
its bound.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from heapq import heapify, heappop, heappush

from placer.plans import Layout, Plan
from placer.search import Problem
from placer.strategies.run_arrays import NEVER, every_run
from placer.strategies.runs import Runs
from placer.strategies.shape_floors import Floors, Pace
from placer.strategies.shape_labels import best_labels
from placer.strategies.shape_plans import ShapedPlan, one_turn, paces, shaped_plan
from placer.strategies.shape_prices import Prices
from placer.strategies.shape_ways import Ways
from placer.strategies.shapes import Grounds, shapes
from placer.strategies.space import position_counts

# Labels followed a stage to find a first plan, and stages that may be looked at for one number of positions and in all:
# some seconds. With five times as many a Llama 8B on 8 devices took twice as long for a gap of 4.1% instead of 4.4%.
FEW = 8
PATIENCE, PATIENCE_IN_ALL = 20_000, 40_000


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class _Entry:
    """Plans of one pace; of `positions` positions, of any number where it is 0."""

    pace: Pace
    positions: int = 0


@dataclass
class ShapedSearch:
    """What is left of the plans with shapes of their own. `views` are the costs of the model under each layout.

    Without views there are no such plans.
    """

    problem: Problem
    layouts: tuple[Layout, ...]
    views: dict[int, Runs]
    open: list[float] = field(default_factory=list)
    placed: int = 0
    _ways: dict[Pace, tuple[Ways, Prices]] = field(default_factory=dict)

    @cached_property
    def floors(self) -> Floors | None:
        """Bounds of stages on all shapes; None where positions have no choice of shapes."""
        own = shapes(self.problem, self.layouts, tuple(self.views)) if self.views else ()
        if len(own) < 2 or len(self.problem.graph.blocks) < 2:
            return None
        grounds = Grounds(self.problem.cluster)
        runs = every_run(len(self.problem.graph.blocks))
        return Floors(self.problem, self.views, own, grounds, runs, grounds.spots(own))

    @cached_property
    def queue(self) -> list[tuple[float, _Entry]]:
        """What was not looked at yet, by its bound."""
        if self.floors is None or not self._positions:
            return []
        own = tuple(paces(self.problem, self._positions, self._most))
        quick = {both: self.floors.quick(*both) for both in dict.fromkeys((pace.rows, pace.schedule) for pace in own)}
        found = [(quick[pace.rows, pace.schedule], _Entry(pace=pace)) for pace in own]
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
        """Look at what has the smallest bound; a plan faster than `ceiling`, if that has one."""
        bound, entry = self.queue[0]
        if not entry.positions:
            self._spread(bound, entry.pace)
            return None
        found = self._solved(bound, entry, ceiling)
        heappop(self.queue)
        return found

    def plan(self, found: ShapedPlan) -> Plan:
        """The plan that was found."""
        return shaped_plan(self.problem, self.layouts, found)

    @cached_property
    def _positions(self) -> tuple[int, ...]:
        """Numbers of positions, each of which has a choice of shapes."""
        return tuple(p for p in position_counts(self.problem) if 1 < p < self.problem.cluster.size)

    @cached_property
    def _most(self) -> int:
        assert self.floors is not None
        return max(shape.replicas for shape in self.floors.shapes)

    def _spread(self, bound: float, pace: Pace) -> None:
        """Put every number of positions of a pace in its place."""
        ways, _ = self._of(pace)
        heappop(self.queue)
        for positions in self._positions:
            least = float(ways.rest(positions)[0, -1])
            if pace.schedule in one_turn(self.problem, positions) and least < NEVER:
                heappush(self.queue, (max(bound, least), _Entry(pace=pace, positions=positions)))

    def _of(self, pace: Pace) -> tuple[Ways, Prices]:
        if pace not in self._ways:
            assert self.floors is not None
            self._ways[pace] = Ways(self.floors, pace), Prices(self.floors, pace, self.layouts)
        return self._ways[pace]

    def _solved(self, bound: float, entry: _Entry, ceiling: float) -> ShapedPlan | None:
        ways, prices = self._of(entry.pace)
        best = None
        for few in (FEW, 0):
            patience = min(PATIENCE, PATIENCE_IN_ALL - self.placed)
            found = best_labels(ways, prices, positions=entry.positions, ceiling=ceiling, patience=patience, few=few)
            self.placed += found.placed
            if found.best is not None:
                best, ceiling = ShapedPlan(value=found.best.value, pace=entry.pace, made=found.best), found.best.value
        if not found.complete:
            self.open.append(bound)
        return best
