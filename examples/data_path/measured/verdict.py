"""What was measured of a path, beside what was predicted: the error, and which part really binds.

A part binds where relieving it makes the loader faster by much more than relieving any other does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean

from examples.data_path.measured.paths import Part, Path

# What relieving the part that binds has to give, in shares, and how many times what another relief gives. Where one
# part clearly binds its relief gives up to 1, and that of another one nothing but chance.
LEAST_GAIN, TIMES = 0.25, 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A path: samples/s and the part that binds as predicted; samples/s measured, and with each part relieved."""

    path: Path
    predicted: float
    bottleneck: Part
    measured: float
    relieved: tuple[tuple[Part, float], ...]

    @property
    def error(self) -> float:
        """Of the prediction, in shares of what was measured."""
        return self.predicted / self.measured - 1

    @property
    def gains(self) -> dict[Part, float]:
        """What relieving each part gives, in shares of what was measured."""
        return {part: rate / self.measured - 1 for part, rate in self.relieved}

    @property
    def real(self) -> Part | None:
        """The part that really binds; None where no relief stands out."""
        first, *others = sorted(self.gains.items(), key=lambda entry: -entry[1])
        clear = first[1] >= LEAST_GAIN and all(first[1] >= TIMES * gain for _, gain in others)
        return first[0] if clear else None

    @property
    def right(self) -> bool:
        """Whether what binds is what was predicted to."""
        return self.real == self.bottleneck


def mean_error(outcomes: Sequence[Outcome]) -> float:
    """The mean of the absolute relative errors."""
    return mean(abs(one.error) for one in outcomes)
