"""The search of two-shape pipelines, by bound: a schedule's terms are taken apart into their pipelines.

Each pipeline is solved exactly, by `best_cuts` over the costs of its stages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count
from typing import NamedTuple

import numpy as np

from placer.strategies.inter_op.bounds.schedule import Floats, ScheduleTerms
from placer.strategies.inter_op.partition.chain_dp import RestBounds, StageOption, best_cuts
from placer.strategies.inter_op.submeshes.best_first import BestFirst, SubmeshPlan
from placer.strategies.inter_op.submeshes.bounds import StageBounds
from placer.strategies.inter_op.submeshes.stage_costs import SubmeshCosts
from placer.strategies.inter_op.submeshes.submesh import PlacedSubmesh
from placer.strategies.inter_op.submeshes.two_shapes.bounds import PipelineBounds
from placer.strategies.inter_op.submeshes.two_shapes.family import TwoShapePipeline
from placer.strategies.space.outline import pinned_stage, stage_allowed

# Stages that may be priced for all pipelines: some seconds.
PATIENCE = 40_000


class _Entry(NamedTuple):
    """A pipeline under a schedule's terms, or all of them where these were not made yet; numbered as made."""

    number: int
    terms: ScheduleTerms
    pipeline: TwoShapePipeline | None = None


@dataclass
class TwoShapeSearch(BestFirst[_Entry]):
    """What is left of the pipelines."""

    _numbers: count[int] = field(default_factory=count)

    @cached_property
    def bounds(self) -> PipelineBounds:
        """Bounds of all pipelines."""
        return PipelineBounds(self.problem, self.layouts, self.views)

    @property
    def stage_bounds(self) -> StageBounds:
        """Bounds of their stages."""
        return self.bounds.stage_bounds

    @property
    def nearest(self) -> float | None:
        """The bound of what is looked at next; None where nothing is left, or no patience."""
        return super().nearest if self.placed < PATIENCE else None

    def _roots(self) -> Iterator[tuple[float, _Entry]]:
        if not self.bounds.pairs:
            return
        positions = tuple(sorted(self.bounds.positions - {1}))
        for bound, terms in self.quick(positions, self.bounds.most):
            yield bound, _Entry(next(self._numbers), terms)

    def _parts(self, entry: _Entry, ceiling: float) -> Iterator[tuple[float, _Entry]] | None:
        if entry.pipeline is not None:
            return None
        made = self.bounds.pipelines(entry.terms, ceiling)
        return ((least, _Entry(next(self._numbers), entry.terms, pipeline)) for least, pipeline in made)

    def _solved(self, bound: float, entry: _Entry, ceiling: float) -> SubmeshPlan | None:
        assert entry.pipeline is not None
        return self.solved(entry.terms, entry.pipeline, ceiling)

    def solved(self, terms: ScheduleTerms, pipeline: TwoShapePipeline, ceiling: float) -> SubmeshPlan | None:
        """The best cuts of a pipeline below the ceiling."""
        placements = pipeline.placements
        used = tuple(sorted(device for placed in placements for device in placed.devices))
        fixed = self.stage_bounds.costs(placements[0].submesh).fixed(used)
        made = best_cuts(
            stages=len(placements), options=self._options(self.stage_costs(terms), placements),
            rests=self._rests(terms, pipeline), ceiling=ceiling - fixed,
        )  # fmt: skip
        if made is None:
            return None
        return SubmeshPlan(
            value=made.value + fixed, terms=terms, placements=placements, cuts=made.cuts, recompute=made.recompute
        )

    def _options(
        self, costs: SubmeshCosts, placements: tuple[PlacedSubmesh, ...]
    ) -> Callable[[int, int, int], Sequence[StageOption]]:
        pinned, lead, positions = pinned_stage(self.problem), placements[0], len(placements)

        def options(stage: int, first: int, last: int) -> Sequence[StageOption]:
            placed = placements[stage]
            if not stage_allowed(pinned, stage, first, last):
                return ()
            self.placed += 1
            following = placements[stage + 1] if stage + 1 < positions else None
            if following is not None and not costs.crosses(last, placed.submesh, following.submesh):
                return ()
            found = []
            for again in costs.fitting(first, last, placed, stage, positions):
                made = costs.stage(first, last, placed, lead, again=again)
                if following is None:
                    part = costs.terms(made, positions)
                else:
                    part = costs.sending(made, first, last, placed, following, positions=positions)
                found.append(StageOption(part.fill, part.steady, part.tail, again))
            return found

        return options

    def _rests(self, terms: ScheduleTerms, pipeline: TwoShapePipeline) -> RestBounds:
        """What the blocks from j on add at least, each where it takes least."""
        each = self.bounds.each(terms, (pipeline.first, pipeline.second))
        fill, steady = (tuple(map(float, _from(own))) for own in each)
        reached = (0,) * (len(pipeline.placements) + 1)
        return RestBounds(fill=fill, steady=steady, reached=reached)


def _from(each: Floats) -> Floats:
    """Of numbers of blocks the sums from each on."""
    found: Floats = np.append(np.cumsum(each[::-1])[::-1], 0.0)
    return found
