"""The search, by bound, of plans whose positions have submeshes of their own: beside the outlines of `stages`.

A schedule's terms are taken apart by number of positions, each bounded by the shortest paths (`path_bounds`); what may
still beat the best plan is solved by `pareto_dp`, first with few labels a stage for a plan, then exactly.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from placer.io.memo import remembered
from placer.strategies.inter_op.bounds.schedule import NEVER, ScheduleTerms
from placer.strategies.inter_op.submeshes.best_first import BestFirst, SubmeshPlan
from placer.strategies.inter_op.submeshes.bounds import StageBounds
from placer.strategies.inter_op.submeshes.pareto_dp import best_labels
from placer.strategies.inter_op.submeshes.path_bounds import PathBounds
from placer.strategies.inter_op.submeshes.range_ends import every_range
from placer.strategies.inter_op.submeshes.submesh import DeviceClasses, PlacementClasses, Submesh, submeshes
from placer.strategies.space.outline import position_counts

# Labels followed a stage to find a first plan, and stages that may be looked at for one number of positions and in all:
# some seconds. With five times as many a Llama 8B on 8 devices took twice as long for a gap of 4.1% instead of 4.4%.
FEW = 8
PATIENCE, PATIENCE_IN_ALL = 20_000, 40_000


class _Entry(NamedTuple):
    """Plans of one schedule's terms; of `positions` positions, of any number where it is 0."""

    terms: ScheduleTerms
    positions: int = 0


@dataclass
class SubmeshSearch(BestFirst[_Entry]):
    """What is left of the plans with submeshes of their own."""

    @cached_property
    def stage_bounds(self) -> StageBounds:
        """Bounds of stages on all submeshes."""
        classes = DeviceClasses(self.problem.cluster)
        places = PlacementClasses(self.problem, self.views, classes, classes.placements(self._submeshes))
        return StageBounds(places, self._submeshes, every_range(len(self.problem.graph.blocks)))

    @property
    def nearest(self) -> float | None:
        """The bound of what is looked at next; None where nothing is left, or no patience."""
        return super().nearest if self.placed < PATIENCE_IN_ALL else None

    @remembered
    def paths(self, terms: ScheduleTerms) -> PathBounds:
        """Bounds of plans under a schedule's terms."""
        return PathBounds(self.stage_bounds, terms)

    @cached_property
    def _submeshes(self) -> tuple[Submesh, ...]:
        return submeshes(self.problem, self.layouts, tuple(self.views))

    @cached_property
    def _positions(self) -> tuple[int, ...]:
        """Numbers of positions, each of which has a choice of submeshes."""
        return tuple(p for p in position_counts(self.problem) if 1 < p < self.problem.cluster.size)

    def _roots(self) -> Iterator[tuple[float, _Entry]]:
        alike = len(self._submeshes) < 2 and len(DeviceClasses(self.problem.cluster).devices) < 2
        if alike or not self._submeshes or len(self.problem.graph.blocks) < 2 or not self._positions:
            return
        most = max(submesh.replicas for submesh in self._submeshes)
        yield from ((bound, _Entry(terms)) for bound, terms in self.quick(self._positions, most))

    def _parts(self, entry: _Entry, ceiling: float) -> Iterator[tuple[float, _Entry]] | None:
        return None if entry.positions else self._spread(entry.terms)

    def _spread(self, terms: ScheduleTerms) -> Iterator[tuple[float, _Entry]]:
        """Every number of positions under a schedule's terms that has plans."""
        for positions in self._positions:
            least = float(self.paths(terms).rest(positions, fill=False)[0, -1])
            if terms.schedule in self.schedules(positions) and least < NEVER:
                yield least, _Entry(terms, positions)

    def _solved(self, bound: float, entry: _Entry, ceiling: float) -> SubmeshPlan | None:
        paths, costs, best = self.paths(entry.terms), self.stage_costs(entry.terms), None
        for few in (FEW, 0):
            patience = min(PATIENCE, PATIENCE_IN_ALL - self.placed)
            found = best_labels(paths, costs, positions=entry.positions, ceiling=ceiling, patience=patience, few=few)
            self.placed += found.placed
            if found.best is not None:
                best, ceiling = found.best, found.best.value
        if not found.complete:
            self.open.append(bound)
        return best
