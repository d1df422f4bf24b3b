"""Fronts: of ways to the same end those that no other beats, whatever follows."""

from __future__ import annotations

from typing import Protocol, TypeVar

import numpy as np

from placer.strategies.engine.arrays import Floats, Ints


class Ending(Protocol):
    """Seconds of a way to have placed some stages."""

    @property
    def fill(self) -> float:
        """The sum of fills."""

    @property
    def steady(self) -> float:
        """The largest steady."""

    @property
    def tail(self) -> float:
        """The largest tail."""


Label = TypeVar("Label", bound=Ending)


def undominated(first: Floats | Ints, second: Floats | Ints) -> Ints:
    """The points that no other is nowhere above, by ascending `first`; of equal ones the foremost."""
    order = np.lexsort((second, first))
    ahead = np.minimum.accumulate(np.concatenate(([np.inf], second[order][:-1])))
    return order[second[order] < ahead]


def insert(labels: list[Label], made: Label) -> None:
    """Add `made` unless another is nowhere above it; drop those it is nowhere above."""
    if not any(nowhere_above(other, made) for other in labels):
        labels[:] = [other for other in labels if not nowhere_above(made, other)]
        labels.append(made)


def nowhere_above(first: Ending, second: Ending) -> bool:
    """Whether the second ends no better, whatever follows."""
    return first.fill <= second.fill and first.steady <= second.steady and first.tail <= second.tail
