"""The search of lines (`lines`), by bound: paces first by a quick bound, then the lines of a pace, then their cuts.

Each line is solved exactly, by `chain` over the prices of its stages. What patience or seconds leave unsolved keeps its
bound, so that the smallest bound left holds for all lines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count
from typing import NamedTuple

import numpy as np

from placer.strategies.inter_op.partition.chain_dp import Floors as ChainFloors
from placer.strategies.inter_op.partition.chain_dp import Piece, best_chain
from placer.strategies.inter_op.submeshes.best_first import ShapeSearch
from placer.strategies.inter_op.submeshes.bounds import Pace
from placer.strategies.inter_op.submeshes.pareto_dp import Shaped
from placer.strategies.inter_op.submeshes.plans import ShapedPlan, paces
from placer.strategies.inter_op.submeshes.run_arrays import Floats
from placer.strategies.inter_op.submeshes.stage_costs import Prices
from placer.strategies.inter_op.submeshes.two_shapes.bounds import LineFloors
from placer.strategies.inter_op.submeshes.two_shapes.family import Line
from placer.strategies.space.outline import pinned_stage, stage_allowed

# Stages that may be priced for all lines: some seconds.
PATIENCE = 40_000


class _Entry(NamedTuple):
    """A line of a pace, or all lines of it where these were not made yet; numbered as made."""

    number: int
    pace: Pace
    line: Line | None = None


@dataclass
class LineSearch(ShapeSearch[_Entry]):
    """What is left of the lines."""

    priced: int = 0
    _prices: dict[Pace, Prices] = field(default_factory=dict)
    _numbers: count[int] = field(default_factory=count)

    @cached_property
    def floors(self) -> LineFloors:
        """Bounds of all lines."""
        return LineFloors(self.problem, self.layouts, self.views)

    @property
    def nearest(self) -> float | None:
        """The bound of what is looked at next; None where nothing is left, or no patience."""
        return super().nearest if self.priced < PATIENCE else None

    def _paces(self) -> Iterator[tuple[float, _Entry]]:
        if not self.views or not self.floors.pairs:
            return
        for pace in paces(self.problem, tuple(sorted(self.floors.positions - {1})), self.floors.most):
            # Under gpipe a message is waited for as often and more is held than under 1f1b, which is as fast otherwise.
            if pace.schedule != "gpipe" or self.problem.pins.schedule == "gpipe":
                yield self.floors.quick(pace), _Entry(next(self._numbers), pace)

    def _parts(self, entry: _Entry, ceiling: float) -> Iterator[tuple[float, _Entry]] | None:
        if entry.line is not None:
            return None
        made = self.floors.bounds(entry.pace, ceiling)
        return ((least, _Entry(next(self._numbers), entry.pace, line)) for least, line in made)

    def _solved(self, bound: float, entry: _Entry, ceiling: float) -> ShapedPlan | None:
        assert entry.line is not None
        return self.solved(entry.pace, entry.line, ceiling)

    def solved(self, pace: Pace, line: Line, ceiling: float) -> ShapedPlan | None:
        """The best cuts of a line below the ceiling."""
        if pace not in self._prices:
            self._prices[pace] = Prices(self.floors.floors, pace, self.layouts)
        prices, spots = self._prices[pace], line.spots
        fixed = prices.floors.costs(spots[0].shape).fixed(tuple(sorted(d for spot in spots for d in spot.devices)))
        made = best_chain(
            stages=len(spots), pieces=self._pieces(prices, line), weights=(1.0, 1.0),
            floors=self._rests(pace, line), ceiling=ceiling - fixed,
        )  # fmt: skip
        if made is None:
            return None
        value = made.value + fixed
        return ShapedPlan(
            value=value, pace=pace, made=Shaped(value=value, spots=spots, cuts=made.cuts, recompute=made.recompute)
        )

    def _pieces(self, prices: Prices, line: Line) -> Callable[[int, int, int], Sequence[Piece]]:
        spots, pinned = line.spots, pinned_stage(self.problem)
        lead, positions = spots[0], len(spots)

        def pieces(stage: int, first: int, last: int) -> Sequence[Piece]:
            spot = spots[stage]
            if not stage_allowed(pinned, stage, first, last):
                return ()
            self.priced += 1
            following = spots[stage + 1] if stage + 1 < positions else None
            if following is not None and not prices.crosses(last, spot.shape, following.shape):
                return ()
            found = []
            for again in prices.fitting(first, last, spot, stage, positions):
                made = prices.stage(first, last, spot, lead, again=again)
                if following is not None:
                    made = prices.sending(made, first, last, spot, following, lead)
                part = prices.terms(made, positions)
                found.append(Piece(part.fill, (part.steady, part.tail), again))
            return found

        return pieces

    def _rests(self, pace: Pace, line: Line) -> ChainFloors:
        """What the blocks from j on add at least, each where it takes least."""
        each = self.floors.each(pace, (line.first, line.second))
        fill, steady = (tuple(map(float, _from(own))) for own in each)
        return ChainFloors(additive=fill, peaks=(steady, (0.0,) * len(fill)), reached=(0,) * (len(line.spots) + 1))


def _from(each: Floats) -> Floats:
    """Of numbers of blocks the sums from each on."""
    found: Floats = np.append(np.cumsum(each[::-1])[::-1], 0.0)
    return found
