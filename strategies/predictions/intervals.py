"""Intervals of predicted seconds: where 80% of runs alike lie, by how far off predictions of other tables were.

Split conformal prediction (Vovk et al. 2005; Tibshirani et al., arXiv:1904.06019, for weighted residuals): residuals
are log(measured / predicted), those of a table weigh 1 together, and the interval of a row is its prediction times e to
their 10% and 90% quantiles. A row's own table is never among them. Rows are alike where their work is: steps of fewer
FLOPs a device than BUSY are bound by hosts and launches, the others by products. Of one table alone nothing can be
said, nor of a kind of rows that no other table has: such rows have no interval (0, infinity).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import exp, inf, log

from placer.strategies.predictions.prediction import Missing, Prediction

SHARE = 0.8
# FLOPs of the model a device and step from which on products bind.
BUSY = 5e12


def with_intervals(found: Sequence[Prediction | Missing]) -> tuple[Prediction | Missing, ...]:
    """The predictions with their intervals."""
    residuals: dict[tuple[bool, str], list[float]] = {}
    for one in found:
        if isinstance(one, Prediction) and one.row.seconds:
            residuals.setdefault((_busy(one), one.row.dataset), []).append(log(one.row.seconds / one.seconds))
    known = {key: _interval(residuals, *key) for key in {_key(one) for one in found if isinstance(one, Prediction)}}
    return tuple(
        replace(one, low=one.seconds * known[_key(one)][0], high=one.seconds * known[_key(one)][1])
        if isinstance(one, Prediction)
        else one
        for one in found
    )


def _key(one: Prediction) -> tuple[bool, str]:
    return _busy(one), one.row.dataset


def _busy(one: Prediction) -> bool:
    return one.ledger.flops / max(1, one.row.devices) >= BUSY


def _interval(residuals: dict[tuple[bool, str], list[float]], busy: bool, table: str) -> tuple[float, float]:
    """Factors on a prediction, from the other tables' rows of that kind."""
    weighed = sorted(
        (residual, 1 / len(each))
        for (kind, name), each in residuals.items()
        if kind == busy and name != table
        for residual in each
    )
    if not weighed:
        return 0.0, inf
    return exp(_quantile(weighed, (1 - SHARE) / 2)), exp(_quantile(weighed, (1 + SHARE) / 2))


def _quantile(weighed: Sequence[tuple[float, float]], share: float) -> float:
    """The first value up to which so much of the weight lies."""
    wanted, passed = share * sum(weight for _, weight in weighed), 0.0
    for value, weight in weighed:
        passed += weight
        if passed >= wanted:
            return value
    return weighed[-1][0]
