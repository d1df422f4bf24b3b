"""Intervals of predicted seconds and bytes: where 80% of runs alike lie, by how far off those of other tables were.

Localised split conformal prediction (Vovk et al. 2005; weights: Tibshirani et al., arXiv:1904.06019; by likeness: Guan,
arXiv:2106.08460): residuals are log(measured / predicted), and the interval of a row is its prediction times e to their
10% and 90% quantiles. A row's own table is never among them. A table weighs as much as its row that is most like, and

    weight of a residual    exp(-apart^2 / 2)
    apart^2 of seconds      (decades between the FLOPs of a device and step)^2: steps of little are bound by hosts and
                            launches, those of much by products; + (decades between the shares of the peak that are
                            predicted)^2: what is exposed of communication and of the host; + STACKS^2 where another
                            project's layers run (`RunSettings.stack`)
    apart^2 of bytes        0: of few tables, whose errors are of the same causes at any size

Of one table alone nothing can be said, nor of seconds of a row of which no other table has one within FAR decades of
work: such rows have no interval (0, infinity).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from math import inf, log, log10

import numpy as np
from numpy.typing import NDArray

from placer.plans.settings import EARLY_MEGATRON, MEGATRON, MEGATRON_CORE
from placer.strategies.predictions.prediction import Missing, Prediction
from placer.strategies.predictions.settings import settings_of

SHARE = 0.8
# Decades of work: what is further away says next to nothing (a weight below e^-2).
FAR = 2.0
# How many decades apart the layers of torch, of Megatron before its Core and of the Core count: of 1, 1.25, 1.5, 1.75
# and 2 that with which the tables' own shares come nearest to 80% (25 November 2026, examples/published/README.md).
STACKS = 1.5

Floats = NDArray[np.float64]
Pair = tuple[float, float]
NOTHING: Pair = (0.0, inf)


def with_intervals(found: Sequence[Prediction | Missing]) -> tuple[Prediction | Missing, ...]:
    """The predictions with their intervals."""
    made = [one for one in found if isinstance(one, Prediction)]
    seconds = _of_tables(made, [one for one in made if one.row.seconds], _seconds_residual, _placed)
    held = _of_tables(made, [one for one in made if one.row.bytes], _bytes_residual, _anywhere)
    return tuple(_within(one, next(seconds), next(held)) if isinstance(one, Prediction) else one for one in found)


def _within(one: Prediction, seconds: Pair, held: Pair) -> Prediction:
    return replace(
        one, low=one.seconds * seconds[0], high=one.seconds * seconds[1],
        bytes_low=one.bytes * held[0], bytes_high=one.bytes * held[1],
    )  # fmt: skip


def _seconds_residual(one: Prediction) -> float:
    return log(one.row.seconds / one.seconds)


def _bytes_residual(one: Prediction) -> float:
    return log(one.row.bytes / one.bytes)


def _placed(rows: Sequence[Prediction]) -> Floats:
    """Where rows lie: the work of a device and step and the predicted share of the peak in decades, and whose layers
    run, each as far from the others."""
    return np.array([_place(one) for one in rows])


def _place(one: Prediction) -> tuple[float, ...]:
    stack = settings_of(one.row).stack
    families = (stack not in MEGATRON, stack in EARLY_MEGATRON, stack in MEGATRON_CORE)
    work, share = max(1.0, one.ledger.flops / max(1, one.row.devices)), one.work / one.seconds
    return log10(work), log10(share), *(STACKS / 2**0.5 * own for own in families)


def _anywhere(rows: Sequence[Prediction]) -> Floats:
    return np.zeros((len(rows), 1))


def _of_tables(
    made: Sequence[Prediction], measured: Iterable[Prediction], residual: Callable[[Prediction], float],
    placed: Callable[[Sequence[Prediction]], Floats],
) -> Iterator[Pair]:  # fmt: skip
    """Factors on each prediction, from the `measured` ones of other tables."""
    known = sorted(measured, key=residual)
    tables = dict.fromkeys(one.row.dataset for one in made)
    each = {
        table: iter(
            _factors(
                placed([one for one in made if one.row.dataset == table]),
                placed(others := [one for one in known if one.row.dataset != table]),
                np.array([residual(one) for one in others]),
                np.array([one.row.dataset for one in others]),
            )
        )
        for table in tables
    }
    return (next(each[one.row.dataset]) for one in made)


def _factors(rows: Floats, others: Floats, residuals: Floats, tables: NDArray[np.str_]) -> list[Pair]:
    """Factors for each of one table's rows, from the others' residuals, which are sorted."""
    if not len(others):
        return [NOTHING] * len(rows)
    apart = ((rows[:, None, :] - others[None, :, :]) ** 2).sum(axis=2)
    passed = _weights(apart, tables).cumsum(axis=1)
    passed /= passed[:, -1:]
    factors = np.exp(residuals)
    # The first value up to which so much of the weight lies; sums end at 1 but for rounding.
    low, high = ((passed < share).sum(axis=1).clip(max=len(others) - 1) for share in ((1 - SHARE) / 2, (1 + SHARE) / 2))
    known = np.abs(rows[:, None, 0] - others[None, :, 0]).min(axis=1) <= FAR
    return [(float(factors[a]), float(factors[b])) if k else NOTHING for a, b, k in zip(low, high, known, strict=True)]


def _weights(apart: Floats, tables: NDArray[np.str_]) -> Floats:
    """What each residual weighs for each row, so far apart (squared)."""
    likeness: Floats = np.exp(-apart / 2)
    for table in np.unique(tables):
        own = likeness[:, tables == table]
        likeness[:, tables == table] *= own.max(axis=1, keepdims=True) / own.sum(axis=1, keepdims=True)
    return likeness
