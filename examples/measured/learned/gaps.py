"""Rivals on one problem, and over all problems: medians with 95% intervals by bootstrap."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

RESAMPLED = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One problem: of each player its best value after each budget, of others their values; inf: nothing legal."""

    seed: int
    name: str
    size: int
    devices: int
    players: dict[str, tuple[float, ...]]
    others: dict[str, float]

    def gap(self, rival: str, place: int) -> float:
        """Of a rival to the trained policy after the budget at `place`."""
        own = self.players["trained"][place]
        other = self.players[rival][place] if rival in self.players else self.others[rival]
        if math.isinf(own):
            return 0.0 if math.isinf(other) else -1.0
        return other / own - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """The median gap of a rival, its 95% interval, and on how many problems the policy is faster, and slower."""

    rival: str
    plans: int
    median: float
    low: float
    high: float
    faster: int
    slower: int


def gap_of(rows: Sequence[Row], rival: str, plans: int, place: int) -> Gap:
    """Over all problems."""
    gaps, rng = [row.gap(rival, place) for row in rows], random.Random(0)
    medians = sorted(median(rng.choices(gaps, k=len(gaps))) for _ in range(RESAMPLED))
    return Gap(
        rival=rival, plans=plans, median=median(gaps), low=medians[RESAMPLED // 40], high=medians[-RESAMPLED // 40],
        faster=sum(gap > 1e-9 for gap in gaps), slower=sum(gap < -1e-9 for gap in gaps),
    )  # fmt: skip


def printed(gap: Gap, problems: int) -> str:
    """A line of the table."""
    return (
        f"{gap.plans:5d}  {gap.rival:10}  {gap.median:+8.1%}  [{gap.low:+8.1%}, {gap.high:+8.1%}]   "
        f"{gap.faster:3d} of {problems}, slower {gap.slower:3d}"
    )
