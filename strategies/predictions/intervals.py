"""Intervals of predicted seconds: where 80% of runs alike lie, by how far off predictions of other tables were.

Localised split conformal prediction (Vovk et al. 2005; weights: Tibshirani et al., arXiv:1904.06019; by likeness: Guan,
arXiv:2106.08460): residuals are log(measured / predicted), and the interval of a row is its prediction times e to their
10% and 90% quantiles. A row's own table is never among them. Rows are alike where a device's work is, steps of little
being bound by hosts and launches and those of much by products:

    weight of a residual    exp(-(decades between the FLOPs a device and step of both)^2 / 2), divided so that a table
                            weighs as much as its row that is most like

Of one table alone nothing can be said, nor of a row of which no other table has one within FAR decades: such rows have
no interval (0, infinity).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf, log, log10

import numpy as np
from numpy.typing import NDArray

from placer.strategies.predictions.prediction import Missing, Prediction

SHARE = 0.8
# Decades of work: what is further away says next to nothing (a weight below e^-2).
FAR = 2.0

Floats = NDArray[np.float64]


def with_intervals(found: Sequence[Prediction | Missing]) -> tuple[Prediction | Missing, ...]:
    """The predictions with their intervals."""
    made = [one for one in found if isinstance(one, Prediction)]
    timed = sorted((one for one in made if one.row.seconds), key=_residual)
    tables = {one.row.dataset for one in made}
    factors = {table: _factors([one for one in made if one.row.dataset == table], timed) for table in tables}
    each = {table: iter(own) for table, own in factors.items()}
    return tuple(_within(one, *next(each[one.row.dataset])) if isinstance(one, Prediction) else one for one in found)


def _within(one: Prediction, low: float, high: float) -> Prediction:
    return replace(one, low=one.seconds * low, high=one.seconds * high)


def _residual(one: Prediction) -> float:
    return log(one.row.seconds / one.seconds)


def _decades(rows: Sequence[Prediction]) -> Floats:
    """The work of a device in each row's step."""
    return np.array([log10(max(1.0, one.ledger.flops / max(1, one.row.devices))) for one in rows])


def _factors(rows: Sequence[Prediction], timed: Sequence[Prediction]) -> list[tuple[float, float]]:
    """Factors on the predictions of one table's rows, from the others' `timed` rows, which are sorted by residual."""
    others = [one for one in timed if one.row.dataset != rows[0].row.dataset]
    if not others:
        return [(0.0, inf)] * len(rows)
    apart = _decades(rows)[:, None] - _decades(others)[None, :]
    passed = _weights(apart, np.array([one.row.dataset for one in others])).cumsum(axis=1)
    passed /= passed[:, -1:]
    factors = np.exp([_residual(one) for one in others])
    # The first value up to which so much of the weight lies; sums end at 1 but for rounding.
    low, high = ((passed < share).sum(axis=1).clip(max=len(others) - 1) for share in ((1 - SHARE) / 2, (1 + SHARE) / 2))
    known = np.abs(apart).min(axis=1) <= FAR
    return [
        (float(factors[a]), float(factors[b])) if k else (0.0, inf) for a, b, k in zip(low, high, known, strict=True)
    ]


def _weights(apart: Floats, tables: NDArray[np.str_]) -> Floats:
    """What each residual weighs for each row, so many decades apart."""
    likeness: Floats = np.exp(-(apart**2) / 2)
    for table in np.unique(tables):
        own = likeness[:, tables == table]
        likeness[:, tables == table] *= own.max(axis=1, keepdims=True) / own.sum(axis=1, keepdims=True)
    return likeness
