"""The search of plans whose positions have shapes of their own, by bound: beside the outlines that `stages` searches.

Paces (microbatch, schedule, sharding) are taken by a quick bound that holds for any positions, then pace by pace and
number of positions by the shortest ways of `shape_ways`; what may still beat the best plan is solved by
`shape_labels`, first with few labels a stage for a plan, then exactly. What patience or seconds leave unsolved keeps
its bound.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from placer.strategies.inter_op.submeshes.best_first import ShapeSearch
from placer.strategies.inter_op.submeshes.bounds import Floors, Pace
from placer.strategies.inter_op.submeshes.pareto_dp import best_labels
from placer.strategies.inter_op.submeshes.path_bounds import Ways
from placer.strategies.inter_op.submeshes.places import ShapePlaces
from placer.strategies.inter_op.submeshes.plans import ShapedPlan, one_turn, paces
from placer.strategies.inter_op.submeshes.run_arrays import NEVER, every_run
from placer.strategies.inter_op.submeshes.stage_costs import Prices
from placer.strategies.inter_op.submeshes.submesh import Grounds, shapes
from placer.strategies.space.outline import position_counts

# Labels followed a stage to find a first plan, and stages that may be looked at for one number of positions and in all:
# some seconds. With five times as many a Llama 8B on 8 devices took twice as long for a gap of 4.1% instead of 4.4%.
FEW = 8
PATIENCE, PATIENCE_IN_ALL = 20_000, 40_000


class _Entry(NamedTuple):
    """Plans of one pace; of `positions` positions, of any number where it is 0."""

    pace: Pace
    positions: int = 0


@dataclass
class ShapedSearch(ShapeSearch[_Entry]):
    """What is left of the plans with shapes of their own."""

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
        return Floors(ShapePlaces(self.problem, self.views, grounds, grounds.spots(own)), own, runs)

    @cached_property
    def _positions(self) -> tuple[int, ...]:
        """Numbers of positions, each of which has a choice of shapes."""
        return tuple(p for p in position_counts(self.problem) if 1 < p < self.problem.cluster.size)

    @cached_property
    def _most(self) -> int:
        assert self.floors is not None
        return max(shape.replicas for shape in self.floors.shapes)

    def _paces(self) -> Iterator[tuple[float, _Entry]]:
        if self.floors is None or not self._positions:
            return
        own = tuple(paces(self.problem, self._positions, self._most))
        quick = {both: self.floors.quick(*both) for both in dict.fromkeys((pace.rows, pace.schedule) for pace in own)}
        for pace in own:
            yield quick[pace.rows, pace.schedule], _Entry(pace)

    def _parts(self, entry: _Entry, ceiling: float) -> Iterator[tuple[float, _Entry]] | None:
        return None if entry.positions else self._spread(entry.pace)

    def _spread(self, pace: Pace) -> Iterator[tuple[float, _Entry]]:
        """Every number of positions of a pace that has plans."""
        ways, _ = self._of(pace)
        for positions in self._positions:
            least = float(ways.rest(positions)[0, -1])
            if pace.schedule in one_turn(self.problem, positions) and least < NEVER:
                yield least, _Entry(pace, positions)

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
