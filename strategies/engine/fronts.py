"""Fronts: of ways to the same end those that no other beats, whatever follows."""

from __future__ import annotations

import numpy as np

from placer.strategies.engine.arrays import Floats, Ints


def undominated(first: Floats | Ints, second: Floats | Ints) -> Ints:
    """The points that no other is nowhere above, by ascending `first`; of equal ones the foremost."""
    order = np.lexsort((second, first))
    ahead = np.minimum.accumulate(np.concatenate(([np.inf], second[order][:-1])))
    return order[second[order] < ahead]
