"""When a search of placements ends: what was asked for, and what is spent of it."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

# Pairs of ideals priced in a second, measured on one core of this kind of machine in November 2026: 5e7 to 1e8.
EVALUATIONS_A_SECOND = 5e7


class SpentError(Exception):
    """The budget ended before the program did: nothing is proved."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """When to stop: evaluated loads (pairs of ideals), wall clock seconds; None is never."""

    pairs: int | None = None
    seconds: float | None = None

    def after(self, started: float) -> Limits:
        """What is left of them since the clock said `started`."""
        if self.seconds is None:
            return self
        return replace(self, seconds=max(0.0, self.seconds - (time.perf_counter() - started)))

    def solver_seconds(self, most: float) -> float:
        """Deterministic seconds for an integer program: `most`, or what the evaluations are worth."""
        return most if self.pairs is None else min(most, self.pairs / EVALUATIONS_A_SECOND)


class Effort:
    """Pairs of ideals priced so far; `spend` raises SpentError beyond the pairs or seconds, which count from now."""

    def __init__(self, limits: Limits) -> None:
        self._left = limits.pairs
        self._until = None if limits.seconds is None else time.perf_counter() + limits.seconds

    def spend(self, pairs: int) -> None:
        """Count `pairs` more."""
        if self._left is not None:
            self._left -= pairs
        late = self._until is not None and time.perf_counter() > self._until
        if late or (self._left is not None and self._left < 0):
            raise SpentError
