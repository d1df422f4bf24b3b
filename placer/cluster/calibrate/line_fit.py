"""A straight line through times by size: seconds = intercept + slope * bytes, relative errors weighed equally."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from placer.errors import ExecutionError


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedLine:
    """seconds = intercept + slope * bytes; neither is negative, slope is positive."""

    intercept: float
    slope: float


def fitted_line(points: Sequence[tuple[float, float]]) -> FittedLine:
    """The line through (bytes, seconds), sizes rising, with the least sum of squared relative errors."""
    if len(points) < 2 or any(seconds <= 0 for _, seconds in points):
        raise ExecutionError(f"a measurement gave no usable times: {list(points)}; run placer calibrate again")
    sizes, times = [size for size, _ in points], [seconds for _, seconds in points]
    weights = [1 / seconds**2 for seconds in times]
    size, time = _mean(sizes, weights), _mean(times, weights)
    spread = _mean([(x - size) ** 2 for x in sizes], weights)
    slope = _mean([(x - size) * (y - time) for x, y in points], weights) / spread
    if slope <= 0:  # noise swallowed the size: the largest message is all that is known
        return FittedLine(intercept=0.0, slope=times[-1] / sizes[-1])
    if time < slope * size:  # below zero at no bytes: the best line through the origin
        through = _mean([x * y for x, y in points], weights) / _mean([x * x for x in sizes], weights)
        return FittedLine(intercept=0.0, slope=through)
    return FittedLine(intercept=time - slope * size, slope=slope)


def _mean(values: Sequence[float], weights: Sequence[float]) -> float:
    return sum(w * v for w, v in zip(weights, values, strict=True)) / sum(weights)
