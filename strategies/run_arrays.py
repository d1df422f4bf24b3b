"""Arrays over all runs of blocks [first, last), of shape (blocks + 1, blocks + 1), and what fills them by name."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from placer.graph import Affine
from placer.spans import Spans

Floats = NDArray[np.float64]
NEVER = float("inf")
# What a run holds, whatever its rows, and what is so much and so much a row.
A_ROW = " a row"
HELD = ("parameters", "trainable", "buffers")
GROWING = ("saved", "inputs", "sent", "returned")
SIZES = (*HELD, *GROWING, *(name + A_ROW for name in GROWING))


def size_of(spans: Spans, name: str, first: int, last: int) -> int:
    """What `SIZES` names of a run."""
    span = spans.of(first, last)
    if name in HELD:
        held: int = getattr(span.held, name)
        return held
    size: Affine = getattr(span, name.removesuffix(A_ROW))
    return size.per_row if name.endswith(A_ROW) else size.fixed


def over_runs(sums: Floats) -> Floats:
    """Of prefix sums the sum of every run [first, last)."""
    return sums[None, :] - sums[:, None]


def over_pairs(sums: Floats) -> Floats:
    """Of sums over the gaps before block b what lies between the first and the last block of [first, last)."""
    return padded(sums[None, :] - sums[:, None])


def padded(own: Floats) -> Floats:
    """An array over (first, last block) as one over [first, last): a row below, a column before."""
    return np.pad(own, ((0, 1), (1, 0)))
