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

from placer.plans import Layout, Plan, ScheduleName, Stage
from placer.search import Problem
from placer.strategies.runs import Runs
from placer.strategies.shape_floors import NEVER, Floors, Pace
from placer.strategies.shape_labels import Shaped, best_labels
from placer.strategies.shape_prices import Prices
from placer.strategies.shape_ways import Ways
from placer.strategies.shapes import Grounds, shapes
from placer.strategies.space import fused, microbatch_rows, position_counts, schedules, shardings

# Labels followed a stage to find a first plan, and stages that may be looked at for one number of positions and in all:
# some seconds.
FEW = 8
PATIENCE, PATIENCE_IN_ALL = 100_000, 200_000


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class _Entry:
    """Plans of one pace; of `positions` positions, of any number where it is 0."""

    pace: Pace
    positions: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapedPlan:
    """A plan found: its seconds, and what makes it."""

    value: float
    pace: Pace
    made: Shaped


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
        return Floors(self.problem, self.views, own, Grounds(self.problem.cluster))

    @cached_property
    def queue(self) -> list[tuple[float, _Entry]]:
        """What was not looked at yet, by its bound."""
        if self.floors is None or not self._positions:
            return []
        found: list[tuple[float, _Entry]] = []
        for rows in microbatch_rows(self.problem, 1):
            for schedule in dict.fromkeys(name for p in self._positions for name in self._schedules(p)):
                bound = self.floors.quick(rows, schedule)
                for sharding in shardings(self.problem.pins, self._most, schedule):
                    pace = Pace(rows=rows, schedule=schedule, sharding=sharding)
                    found.append((bound, _Entry(pace=pace)))
        heapify(found)
        return found

    @property
    def least(self) -> float | None:
        """The smallest bound of what was not solved; None where nothing is left."""
        return min([*self.open, *(entry[0] for entry in self.queue[:1])], default=None)

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
        made, blocks, layouts = found.made, len(self.problem.graph.blocks), self.layouts
        used = sorted({spot.shape.layout for spot in made.spots if spot.shape.layout >= 0})
        edges = (0, *made.cuts, blocks)
        stages = tuple(
            Stage(
                first=edges[s], last=edges[s + 1], devices=spot.devices, sharding=found.pace.kept(spot.shape),
                recompute=made.recompute[s], degree=spot.shape.degree,
                layout=used.index(spot.shape.layout) if spot.shape.layout >= 0 else None,
            )
            for s, spot in enumerate(made.spots)
        )  # fmt: skip
        full, rest = divmod(self.problem.rows, found.pace.rows)
        plan = Plan(
            model=self.problem.model, graph=self.problem.graph, cluster=self.problem.cluster,
            settings=self.problem.settings, stages=stages, schedule=found.pace.schedule,
            microbatches=(found.pace.rows,) * full + ((rest,) if rest else ()), seed=self.problem.seed,
            layouts=tuple(layouts[number] for number in used),
        )  # fmt: skip
        return fused(self.problem, plan)

    @cached_property
    def _positions(self) -> tuple[int, ...]:
        """Numbers of positions, each of which has a choice of shapes."""
        return tuple(p for p in position_counts(self.problem) if 1 < p < self.problem.cluster.size)

    @cached_property
    def _most(self) -> int:
        assert self.floors is not None
        return max(shape.replicas for shape in self.floors.shapes)

    def _schedules(self, positions: int) -> tuple[ScheduleName, ...]:
        return tuple(name for name, virtual in schedules(self.problem, positions) if virtual == 1)

    def _spread(self, bound: float, pace: Pace) -> None:
        """Put every number of positions of a pace in its place."""
        ways, _ = self._of(pace)
        heappop(self.queue)
        for positions in self._positions:
            least = float(ways.rest(positions)[0, -1])
            if pace.schedule in self._schedules(positions) and least < NEVER:
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
