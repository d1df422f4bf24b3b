"""ratio(ours, theirs): how many times as long ours takes, with an interval.

    value = median(ours) / median(theirs)

Turns of one round are resampled together (rounds with replacement, 2,000 times): the interval holds 95% of the values
so found. A machine that is slow for a while is slow for both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from statistics import median

SAMPLES = 2000
SHARE = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """A ratio of medians and where 95% of its resampled values lie."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> Ratio:
    """Of the turns of the same rounds; deterministic."""
    draw, rounds = Random(0), range(len(ours))
    found = []
    for _ in range(SAMPLES):
        chosen = draw.choices(rounds, k=len(ours))
        found.append(median([ours[i] for i in chosen]) / median([theirs[i] for i in chosen]))
    found.sort()
    edge = round((1 - SHARE) / 2 * SAMPLES)
    return Ratio(value=median(ours) / median(theirs), low=found[edge], high=found[-1 - edge])
