"""A straight line through times by size: seconds = intercept + slope * bytes, relative errors weighed equally."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from placer.errors import ExecutionError


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """seconds = intercept + slope * bytes; neither is negative, slope is positive."""

    intercept: float
    slope: float


def line(points: Sequence[tuple[float, float]]) -> Line:
    """The line through (bytes, seconds) with the least sum of squared relative errors."""
    if len(points) < 2 or any(seconds <= 0 for _, seconds in points):
        raise ExecutionError(f"a measurement gave no usable times: {list(points)}; run placer calibrate again")
    weights = [1 / seconds**2 for _, seconds in points]
    total = sum(weights)
    size = sum(w * x for w, (x, _) in zip(weights, points, strict=True)) / total
    time = sum(w * y for w, (_, y) in zip(weights, points, strict=True)) / total
    spread = sum(w * (x - size) ** 2 for w, (x, _) in zip(weights, points, strict=True))
    slope = sum(w * (x - size) * (y - time) for w, (x, y) in zip(weights, points, strict=True)) / spread
    intercept = time - slope * size
    if slope <= 0:  # noise swallowed the size: the largest message is all that is known
        largest = max(points)
        return Line(intercept=0.0, slope=largest[1] / largest[0])
    if intercept < 0:  # a line through the origin
        return Line(intercept=0.0, slope=sum(w * x * y for w, (x, y) in zip(weights, points, strict=True)) / sum(w * x * x for w, (x, _) in zip(weights, points, strict=True)))  # fmt: skip
    return Line(intercept=intercept, slope=slope)
