"""What blocks add at least to a step under a schedule, from their seconds.

`ScheduleTerms.bound` is linear in the seconds of the blocks it is given (but for one maximum of sums), so that it
serves for a block, for all blocks from j on and for the whole model:

    fill      1f1b, gpipe: F + B;  interleaved: (F + B) / v;  zero-bubble: max(F, I)
    steady    (m-2) (F + B) + F' + B' (m = 1: 0); interleaved: + (1 - 1/v) (F + B);
              zero-bubble: + what each block alone hides
    rounds    interleaved: (v-1) fill, and that without the last part of steady, / v, as the turn

each of F, B, W and the rest of the backward I = B - W, without messages, gathers, recompute (unless it is fixed) and
prologue. It mirrors `placer.costs.timing.step.terms`; tests/search/test_strategies_bounds.py fails when they part.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from placer.costs.timing.step import stalls
from placer.plans.plan import ScheduleName, Sharding
from placer.strategies.space.outline import Outline

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]
Seconds = TypeVar("Seconds", float, Floats)
# Sums in another order differ by rounding; a bound must not exceed what it bounds.
SLACK = 1 - 1e-12
NEVER = float("inf")


class Amount(NamedTuple):
    """Seconds of some blocks; `inner` the backward without W, `hide` the sum of each block's least of W, F, `inner`,
    `again` what running forwards again adds at least, where it is not fixed."""

    forward: float = 0.0
    backward: float = 0.0
    weight: float = 0.0
    inner: float = 0.0
    hide: float = 0.0
    again: float = 0.0

    def plus(self, other: Amount) -> Amount:
        """Both together."""
        return Amount(*(a + b for a, b in zip(self, other, strict=True)))

    @property
    def work(self) -> float:
        """F + B."""
        return self.forward + self.backward


class LowerBound(NamedTuple, Generic[Seconds]):
    """What some blocks add at least: for one number of positions, or for many at once."""

    fill: Seconds
    steady: Seconds


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class ScheduleTerms:
    """What of a plan decides how seconds of stages become seconds of a step.

    `rows` of all microbatches of a batch but the last one; `turns` stages share a position.
    """

    rows: int
    schedule: ScheduleName
    sharding: Sharding = "none"
    turns: int = 1
    batch: int

    @classmethod
    def of(cls, outline: Outline) -> ScheduleTerms:
        """Those of an outline."""
        return cls(
            rows=outline.microbatch, schedule=outline.schedule, sharding=outline.sharding, turns=outline.virtual,
            batch=outline.rows,
        )  # fmt: skip

    @property
    def count(self) -> int:
        """Number of microbatches."""
        return -(-self.batch // self.rows)

    @property
    def last_rows(self) -> int:
        """Rows of the last microbatch."""
        return self.batch % self.rows or self.rows

    def stalls(self, positions: int) -> int:
        """How many round trips of a message a position waits for; see `placer.costs.timing.step`."""
        return stalls(self.schedule, positions, self.count) if self.count > 1 else 0

    def kept(self, replicas: int) -> Sharding:
        """How a position of so many replicas keeps its state: a lone one has nobody to share it with."""
        return self.sharding if replicas > 1 else "none"

    @overload
    def bound(self, positions: int, full: Amount, last: Amount) -> LowerBound[float]: ...
    @overload
    def bound(self, positions: Counts, full: Amount, last: Amount) -> LowerBound[Floats]: ...
    def bound(self, positions: int | Counts, full: Amount, last: Amount) -> LowerBound[Any]:
        """What blocks add to fill and steady: seconds of full microbatches, and of the last one."""
        m, work = self.count, full.work
        fill: Any = work / self.turns
        steady: Any = ((m - 2) * work + last.work if m > 1 else 0.0) + (self.turns - 1) * fill
        if self.schedule == "zero-bubble":  # a lone position has nothing to hide its weight gradients in
            alone, least = positions == 1, min if isinstance(positions, int) else np.minimum
            filling = least(1.0, (m - 1) / (positions - 1 + alone)) * (positions > 1)
            steady = steady + full.hide * filling + full.weight * (1 - alone)
            fill = max(full.forward, full.inner) * (1 - alone) + work * alone
        return LowerBound(SLACK * fill, SLACK * steady)

    def turn(self, least: LowerBound[Seconds]) -> Seconds:
        """What the blocks of a `bound` add to one of several turns of a position."""
        return (least.steady - (self.turns - 1) * least.fill) / self.turns

    def inner(self, fill: Seconds, steady: Seconds, turn: Seconds) -> Seconds:
        """What follows the `fill` of a step at least, where the slowest position has so much `steady` and `turn`."""
        if self.turns == 1:
            return steady
        later = (self.turns - 1) * fill + turn
        return max(steady, later) if isinstance(steady, float) else np.maximum(steady, later)
