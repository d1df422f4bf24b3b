"""The best plan so far: which step time a search had found after how many seconds.

A search tells what it finds (`Problem.found`); who compares searches listens. Nothing is decided by it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field


@dataclass(eq=False)
class Progress:
    """Listens from when it is made; `curve`: seconds since then, and the step seconds that were the best from then."""

    begun: float = field(default_factory=time.perf_counter)
    curve: list[tuple[float, float]] = field(default_factory=list)

    def found(self, step_seconds: float) -> None:
        """A legal plan of so many seconds a step is known."""
        if not self.curve or step_seconds < self.curve[-1][1]:
            self.curve.append((time.perf_counter() - self.begun, step_seconds))
