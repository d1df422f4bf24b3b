"""Distributions of the seconds that a rank computes in a step, drawn anew and independently for each step and rank.

    measured     each of some measured values as often as the others
    normal       mean and deviation; what lies below 0 (of a deviation up to a third of the mean, 0.1%) counts as 0
    lognormal    the logarithm is normal: s^2 = log(1 + (deviation / mean)^2), m = log(mean) - s^2 / 2
    gamma        shape (mean / deviation)^2, scale deviation^2 / mean; the deviation is at most the mean

Source of the formulas: Johnson, Kotz, Balakrishnan, Continuous Univariate Distributions (1994), chapters 13, 14, 17.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from placer.errors import UsageError

Array: TypeAlias = NDArray[np.float64]
Family = Literal["lognormal", "normal", "gamma"]

# By definition of the families: more deviations than this a normal variable is off
# once in 10^12 times: ranks and lattices are smaller than that.
_FAR = 7.1
# A gamma of shape 1 or more lies beyond mean + 30 deviations once in 3 * 10^13 times.
_FAR_OF_GAMMA = 30.0
# Cells over which the density of a gamma is summed.
_CELLS = 2**15


class StepTimes(Protocol):
    """A distribution of seconds. atoms: its values where it has only some, all equally likely; else nothing. most:
    seconds beyond which nothing lies that matters."""

    @property
    def mean(self) -> float:
        """Seconds."""
        ...

    @property
    def deviation(self) -> float:
        """The standard deviation, seconds."""
        ...

    @property
    def most(self) -> float:
        """Seconds."""
        ...

    @property
    def atoms(self) -> tuple[float, ...]:
        """Seconds."""
        ...

    def below(self, seconds: Array) -> Array:
        """The probability of at most so many seconds."""
        ...

    def drawn(self, generator: np.random.Generator, size: tuple[int, ...]) -> Array:
        """Independent draws, seconds."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredTimes:
    """Values that were measured, seconds."""

    atoms: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Seconds."""
        return math.fsum(self.atoms) / len(self.atoms)

    @property
    def deviation(self) -> float:
        """Of the values themselves, seconds."""
        return math.sqrt(math.fsum((one - self.mean) ** 2 for one in self.atoms) / len(self.atoms))

    @property
    def most(self) -> float:
        """Seconds."""
        return max(self.atoms)

    def below(self, seconds: Array) -> Array:
        """The share of values of at most so many seconds."""
        return np.asarray(np.searchsorted(np.sort(self.atoms), seconds, side="right") / len(self.atoms), float)

    def drawn(self, generator: np.random.Generator, size: tuple[int, ...]) -> Array:
        """Of the values, with replacement."""
        return generator.choice(np.array(self.atoms), size)


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedTimes:
    """One of the families by its mean and deviation, seconds; both above 0."""

    family: Family
    mean: float
    deviation: float

    def __post_init__(self) -> None:
        most = {"normal": self.mean / 3, "gamma": self.mean, "lognormal": math.inf}[self.family]
        if not 0 < self.deviation <= most:
            raise UsageError(
                f"a {self.family} of mean {self.mean:g} s takes a deviation above 0 s"
                f"{f' and up to {most:g} s' if most < math.inf else ''}, {self.deviation:g} s was given; "
                "take lognormal, or give samples"
            )

    @property
    def atoms(self) -> tuple[float, ...]:
        """None."""
        return ()

    @property
    def most(self) -> float:
        """Seconds."""
        if self.family == "lognormal":
            middle, width = self._logarithm
            return math.exp(middle + _FAR * width)
        return self.mean + (_FAR if self.family == "normal" else _FAR_OF_GAMMA) * self.deviation

    def below(self, seconds: Array) -> Array:
        """The distribution function."""
        if self.family == "gamma":
            return self._gamma_below(seconds)
        if self.family == "normal":
            return np.where(seconds < 0, 0.0, _normal_below((seconds - self.mean) / self.deviation))
        middle, width = self._logarithm
        return np.where(seconds <= 0, 0.0, _normal_below((np.log(np.maximum(seconds, 1e-300)) - middle) / width))

    def drawn(self, generator: np.random.Generator, size: tuple[int, ...]) -> Array:
        """Independent draws, seconds."""
        if self.family == "gamma":
            return generator.gamma(self._shape, self.deviation**2 / self.mean, size)
        if self.family == "normal":
            return np.maximum(0.0, generator.normal(self.mean, self.deviation, size))
        return generator.lognormal(*self._logarithm, size)

    @property
    def _logarithm(self) -> tuple[float, float]:
        """Mean and deviation of the logarithm."""
        square = math.log1p((self.deviation / self.mean) ** 2)
        return math.log(self.mean) - square / 2, math.sqrt(square)

    @property
    def _shape(self) -> float:
        return (self.mean / self.deviation) ** 2

    def _gamma_below(self, seconds: Array) -> Array:
        """By the midpoints of cells of the density, which add up to 1."""
        edges = np.linspace(0.0, self.most, _CELLS + 1)
        middles, scale = (edges[1:] + edges[:-1]) / 2, self.deviation**2 / self.mean
        density = np.exp((self._shape - 1) * np.log(middles / self.mean) - (middles - self.mean) / scale)
        sums = np.concatenate(([0.0], np.cumsum(density)))
        return np.asarray(np.interp(seconds, edges, sums / sums[-1]), float)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaledTimes:
    """`offset + factor * times`: of other rows, or without the part that all ranks have in common."""

    times: StepTimes
    factor: float
    offset: float = 0.0

    @property
    def mean(self) -> float:
        """Seconds."""
        return self.offset + self.factor * self.times.mean

    @property
    def deviation(self) -> float:
        """Seconds."""
        return self.factor * self.times.deviation

    @property
    def most(self) -> float:
        """Seconds."""
        return self.offset + self.factor * self.times.most

    @property
    def atoms(self) -> tuple[float, ...]:
        """Seconds."""
        return tuple(self.offset + self.factor * one for one in self.times.atoms)

    def below(self, seconds: Array) -> Array:
        """The probability of at most so many seconds."""
        return self.times.below((seconds - self.offset) / self.factor)

    def drawn(self, generator: np.random.Generator, size: tuple[int, ...]) -> Array:
        """Independent draws, seconds."""
        return self.offset + self.factor * self.times.drawn(generator, size)


def apart(times: StepTimes, shared: float) -> StepTimes:
    """`times` without a part of deviation `shared`, seconds, that delays all ranks alike: drawn towards the mean so
    that variances add up. Raises UsageError where it varies more than the whole."""
    if shared > times.deviation:
        raise UsageError(
            f"ranks are said to share a deviation of {shared:g} s, one of them deviates by {times.deviation:g} s in "
            "all; lower shared"
        )
    if not shared:
        return times
    factor = math.sqrt(1 - (shared / times.deviation) ** 2)
    if not factor:
        return MeasuredTimes(atoms=(times.mean,))
    return ScaledTimes(times=times, factor=factor, offset=(1 - factor) * times.mean)


def _normal_below(z: Array) -> Array:
    """The standard normal distribution function, which numpy has not."""
    return np.array([math.erfc(-one / math.sqrt(2)) / 2 for one in z.tolist()])
