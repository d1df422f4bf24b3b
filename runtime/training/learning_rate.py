"""The learning rate of each step: `peak` times a factor.

warmup      (step + 1) / warmup_steps                        for step < warmup_steps
constant    1
linear      1 - (1 - final) * t                              t = share of the remaining steps that are done
cosine      final + (1 - final) * (1 + cos(pi * t)) / 2
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from placer.errors import UsageError

Decay = Literal["constant", "linear", "cosine"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LearningRate:
    """Linear warmup over `warmup_steps`, then `decay` down to `final` times the peak at step `steps`."""

    peak: float
    steps: int
    decay: Decay = "constant"
    warmup_steps: int = 0
    final: float = 0.0

    def __post_init__(self) -> None:
        if self.decay not in ("constant", "linear", "cosine"):
            raise UsageError(f"there is no learning-rate schedule {self.decay!r}; known: constant, linear, cosine")
        if not 0 <= self.warmup_steps <= self.steps:
            raise UsageError(
                f"{self.warmup_steps} warmup steps do not fit into {self.steps} steps; give a number from 0 to that"
            )
        if not 0 <= self.final <= 1:
            raise UsageError(f"the final learning rate is {self.final} of the peak; give a share from 0 to 1")

    def at(self, step: int) -> float:
        """The rate of step `step`, counted from 0; after the last step it stays where it ended."""
        if step < self.warmup_steps:
            return self.peak * (step + 1) / self.warmup_steps
        return self.peak * self._factor(min(1.0, self._done(step)))

    def _done(self, step: int) -> float:
        left = self.steps - self.warmup_steps
        return (step - self.warmup_steps) / left if left else 1.0

    def _factor(self, done: float) -> float:
        if self.decay == "linear":
            return 1 - (1 - self.final) * done
        if self.decay == "cosine":
            return self.final + (1 - self.final) * (1 + math.cos(math.pi * done)) / 2
        return 1.0
