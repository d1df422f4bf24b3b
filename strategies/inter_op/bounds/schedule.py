"""What blocks add at least to a step under a schedule, from their seconds.

`floor` is linear in the seconds of the blocks it is given (but for one maximum of sums), so that it serves for a block,
for all blocks from j on and for the whole model:

    fill      1f1b, gpipe: F + B;  interleaved: (F + B) / v;  zero-bubble: max(F, I)
    steady    (m-2) (F + B) + F' + B' (m = 1: 0); interleaved: + (1 - 1/v) (F + B) (1 + max(0, p - m));
              zero-bubble: + what each block alone hides

each of F, B, W and the rest of the backward I = B - W, without messages, gathers, recompute (unless it is fixed) and
prologue. It mirrors `placer.costs.timing.step.terms`; tests/search/test_strategies_bounds.py fails when they part.
`Rhythm.floors` is the same for many numbers of positions at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from placer.plans.plan import ScheduleName
from placer.strategies.space.outline import Outline

# Sums in another order differ by rounding; a floor must not exceed what it bounds.
SLACK = 1 - 1e-12


class Amount(NamedTuple):
    """Seconds of some blocks; `inner` the backward without W, `hide` the sum of each block's least of W, F, `inner`."""

    forward: float = 0.0
    backward: float = 0.0
    weight: float = 0.0
    inner: float = 0.0
    hide: float = 0.0

    def plus(self, other: Amount) -> Amount:
        """Both together."""
        return Amount(*(a + b for a, b in zip(self, other, strict=True)))

    @property
    def work(self) -> float:
        """F + B."""
        return self.forward + self.backward


class Floor(NamedTuple):
    """What some blocks add at least."""

    fill: float
    steady: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Rhythm:
    """What of an outline decides how seconds of blocks become seconds of a step."""

    schedule: ScheduleName
    virtual: int
    count: int

    def floor(self, positions: int, full: Amount, last: Amount) -> Floor:
        """What blocks add to fill and steady: seconds of full microbatches, and of the last one."""
        fill, base, slope, hidden = self._parts(full, last)
        waits = max(0, positions - self.count)
        filling = min(1.0, (self.count - 1) / (positions - 1)) if positions > 1 else 0.0
        alone = positions == 1 and self.schedule == "zero-bubble"
        steady = base + slope * waits + hidden * filling + (0.0 if alone else self._weight(full))
        return Floor(SLACK * (full.work if alone else fill), SLACK * steady)

    def floors(self, positions: NDArray[np.int64], full: Amount, last: Amount) -> tuple[float, NDArray[np.float64]]:
        """`floor` for many numbers of positions above 1: one fill, and the steady of each."""
        fill, base, slope, hidden = self._parts(full, last)
        filling = np.minimum(1.0, (self.count - 1) / (positions - 1))
        steady = base + slope * np.maximum(0, positions - self.count) + hidden * filling + self._weight(full)
        return SLACK * fill, SLACK * steady

    def _parts(self, full: Amount, last: Amount) -> tuple[float, float, float, float]:
        """Fill; steady whatever the positions; what each microbatch short of the positions adds; what may be hidden."""
        work, m = full.work, self.count
        base = (m - 2) * work + last.work if m > 1 else 0.0
        if self.virtual > 1:
            share = (1 - 1 / self.virtual) * work
            return work / self.virtual, base + share, share, 0.0
        if self.schedule == "zero-bubble":
            return max(full.forward, full.inner), base, 0.0, full.hide
        return work, base, 0.0, 0.0

    def _weight(self, full: Amount) -> float:
        return full.weight if self.schedule == "zero-bubble" else 0.0


def rhythm(outline: Outline) -> Rhythm:
    """The rhythm of an outline."""
    return Rhythm(schedule=outline.schedule, virtual=outline.virtual, count=outline.count)
