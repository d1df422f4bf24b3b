"""How far predictions are from what was measured, of a list of rows.

error             predicted / measured - 1
mape, median, p90 of its absolute value; bias: its mean
constant_mape     the same of the best constant share of the devices' peak rate, chosen with the measurements of
                  these very rows: a model that does not beat it has learnt nothing
six_n_mape        the same of the best constant on 6 FLOPs a parameter and token (arXiv:2001.08361)
regret            for rows that solve one problem: measured seconds of the row that is predicted fastest over those
                  of the fastest measured, less 1; `rank`: the mean correlation of the ranks of both
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from statistics import correlation, mean, median

from placer.strategies.predictions.prediction import Missing, Prediction

SHARE = 0.9
SPREAD = (0.1, 0.5, 0.9)


@dataclass(frozen=True, slots=True, kw_only=True)
class Errors:
    """Errors of `count` values."""

    count: int
    mape: float
    median: float
    p90: float
    bias: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """Rows that are judged together. inside: the share of rows within the stated interval; None where none is stated.
    spread: measured over predicted seconds at 10%, 50% and 90% of the rows: what intervals of other tables are made of.

    inside_bytes: the share of measured bytes within the stated intervals. too_large: rows that ran and are called too
    large for their devices, `beyond` their intervals; fitting: rows that ran out of memory and are called fitting,
    `surely` so, of `ran_out`.
    """

    name: str
    rows: int
    predicted: tuple[Prediction, ...]
    missing: tuple[Missing, ...]
    seconds: Errors | None
    bytes: Errors | None
    constant_mape: float | None
    six_n_mape: float | None
    inside: float | None
    spread: tuple[float, ...] | None
    groups: int
    regret: float | None
    worst_regret: float | None
    rank: float | None
    inside_bytes: float | None
    too_large: int
    beyond: int
    fitting: int
    surely: int
    ran_out: int


def slice_of(name: str, found: Sequence[Prediction | Missing]) -> Slice:
    """The errors of rows under one name."""
    predicted = tuple(one for one in found if isinstance(one, Prediction))
    timed = [one for one in predicted if one.row.seconds]
    regrets, ranks = _groups(timed)
    inside = [one.low <= one.row.seconds <= one.high for one in timed if one.low > 0]
    held = [one.bytes_low <= one.row.bytes <= one.bytes_high for one in predicted if one.row.bytes and one.bytes_low]
    return Slice(
        name=name, rows=len(found), predicted=predicted,
        missing=tuple(one for one in found if isinstance(one, Missing)),
        seconds=errors([one.error for one in timed if one.error is not None]),
        bytes=errors([one.bytes_error for one in predicted if one.bytes_error is not None]),
        constant_mape=constant_mape([(one.work, one.row.seconds) for one in timed]),
        six_n_mape=constant_mape([(one.six_n, one.row.seconds) for one in timed if one.six_n]),
        inside=mean(inside) if inside else None, spread=_spread(timed),
        groups=len(regrets), regret=mean(regrets) if regrets else None,
        worst_regret=max(regrets, default=None), rank=mean(ranks) if ranks else None,
        inside_bytes=mean(held) if held else None,
        beyond=sum(not one.fits and one.beyond and not one.row.ran_out for one in predicted),
        surely=sum(one.fits and one.beyond and one.row.ran_out for one in predicted),
        too_large=sum(not one.fits and not one.row.ran_out for one in predicted),
        fitting=sum(one.fits and one.row.ran_out for one in predicted),
        ran_out=sum(one.row.ran_out for one in predicted),
    )  # fmt: skip


def _spread(timed: Sequence[Prediction]) -> tuple[float, ...] | None:
    """Quantiles of measured over predicted seconds; None of no rows."""
    ratios = sorted(one.row.seconds / one.seconds for one in timed)
    return tuple(ratios[ceil(share * len(ratios)) - 1] for share in SPREAD) if ratios else None


def errors(signed: Sequence[float]) -> Errors | None:
    """What signed relative errors come to; None of none."""
    if not signed:
        return None
    sizes = sorted(map(abs, signed))
    return Errors(
        count=len(sizes), mape=mean(sizes), median=median(sizes), p90=sizes[ceil(SHARE * len(sizes)) - 1],
        bias=mean(signed),
    )  # fmt: skip


def constant_mape(pairs: Sequence[tuple[float, float]]) -> float | None:
    """The least MAPE of constant * work over measured seconds.

    The sum of |c w / m - 1| is least where c is the median of the m / w, each weighed by w / m.
    """
    ratios = sorted(measured / work for work, measured in pairs if work)
    if not ratios:
        return None
    half, passed = sum(1 / ratio for ratio in ratios) / 2, 0.0
    for best in ratios:
        passed += 1 / best
        if passed >= half:
            break
    return mean(abs(best / ratio - 1) for ratio in ratios)


def _groups(timed: Sequence[Prediction]) -> tuple[list[float], list[float]]:
    """Regrets and rank correlations of the groups of several rows."""
    groups: dict[tuple[object, ...], list[tuple[float, float]]] = {}
    for one in timed:
        groups.setdefault(one.group, []).append((one.seconds, one.row.seconds))
    several = [pairs for pairs in groups.values() if len(pairs) > 1]
    regrets = [min(pairs)[1] / min(measured for _, measured in pairs) - 1 for pairs in several]
    ranked = [_rank(pairs) for pairs in several if len(pairs) > 2]
    return regrets, [one for one in ranked if one is not None]


def _rank(pairs: Sequence[tuple[float, float]]) -> float | None:
    """Spearman's correlation; None where one side is all equal."""
    sides = [_ranks([pair[side] for pair in pairs]) for side in (0, 1)]
    if any(len(set(side)) == 1 for side in sides):
        return None
    return correlation(*sides)


def _ranks(values: Sequence[float]) -> list[float]:
    """Ranks, of equal values their mean."""
    order = sorted(values)
    return [order.index(value) + (order.count(value) - 1) / 2 for value in values]
