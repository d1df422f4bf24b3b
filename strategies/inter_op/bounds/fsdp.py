"""What collectives of sharded state add at least to a step of an outline, whatever the cuts.

Over all stages gathers show what one stage of all blocks shows (`gathers`), and for every cut between two blocks the
rest of the second one's gather, which nothing hides; scatters add what they take beyond the backward.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from placer.io.memo import once
from placer.plans.plan import BY_FSDP, Sharding, replica_rows
from placer.strategies.inter_op.bounds.outline import OutlineBounds
from placer.strategies.inter_op.bounds.schedule import Amount, Floats, ScheduleTerms
from placer.strategies.inter_op.equivalence import PositionClasses
from placer.strategies.space.outline import Outline


class Shown(NamedTuple):
    """What collectives of sharded state add at least to all fills, to all steadies, and as scatters to all tails."""

    fill: float
    steady: float
    scatter: float


HIDDEN = Shown(0.0, 0.0, 0.0)


class _Pairs(NamedTuple):
    """What gathers of one pass show: all pairs of neighbours, the first block, and what cuts add, least first."""

    shown: float
    hidden: Floats
    first: float

    def over(self, stages: int) -> float:
        """Seconds over so many stages: the pairs parted by a cut are those to which it matters least."""
        return self.shown + float(self.hidden[: stages - 1].sum()) + self.first


class _Least(NamedTuple):
    """What gathers show at least, forward and backward, and what scatters add at least."""

    forward: _Pairs
    backward: _Pairs
    scatter: float


class GatherBounds:
    """The least that gathers and scatters show in the outlines of one `OutlineBounds`; remembers what they share."""

    def __init__(self, bounds: OutlineBounds) -> None:
        self.costs = bounds.ranges.costs
        self._known: dict[tuple[tuple[tuple[int, ...], ...], int, int, Sharding], _Least] = {}

    def shown(self, outline: Outline, places: PositionClasses) -> Shown:
        """What collectives of sharded state add at least over all stages."""
        if outline.sharding not in BY_FSDP:
            return HIDDEN
        full, last = (self._over(outline, places, rows) for rows in (outline.microbatch, outline.last_rows))
        least = ScheduleTerms.of(outline).bound(outline.positions, Amount(*full[:2]), Amount(*last[:2]))
        return Shown(least.fill, least.steady, last[2])

    def _over(self, outline: Outline, places: PositionClasses, rows: int) -> tuple[float, float, float]:
        """Seconds shown forward, backward, and by scatters; of each block at the place where it shows least."""
        # A replica without rows gathers nothing; of equal shares the others then have one row each.
        most, fewest = -(-rows // outline.replicas), max(1, rows // outline.replicas)
        if outline.shares:
            each = replica_rows(rows, outline.shares, outline.replicas)
            most, fewest = max(each), min(own for own in each if own)
        key = (places.distinct, most, fewest, outline.sharding)
        found = once(self._known, key, self._made, places, most, fewest, outline.sharding)
        return found.forward.over(outline.stages), found.backward.over(outline.stages), found.scatter

    def _made(self, places: PositionClasses, most: int, fewest: int, sharding: Sharding) -> _Least:
        found, beside = (
            [self.costs.stage_times.gathers(devices, own, sharding) for devices in places.distinct]
            for own in (fewest, most)
        )
        gather = np.min([each.gather for each in found], axis=0)
        again = gather * found[0].regathers
        beyond = np.min([np.diff(each.scattering) - np.diff(each.backward) for each in beside], axis=0)
        return _Least(
            forward=_pairs([each.forward for each in found], gather[1:], float(gather[0])),
            backward=_pairs([each.backward for each in found], again[:-1], float(again[-1])),
            scatter=max(0.0, float(beyond.sum())) + min(each.scatter[0] for each in found),
        )


def _pairs(found: list[tuple[float, ...]], alone: Floats, first: float) -> _Pairs:
    """From what each block shows beside its neighbour, as prefix sums, and what its gather takes that nothing hides."""
    each = [np.diff(sums) for sums in found]
    hidden = np.sort(np.maximum(0.0, alone - np.max(each, axis=0)))
    return _Pairs(float(np.min(each, axis=0).sum()), hidden, first)
