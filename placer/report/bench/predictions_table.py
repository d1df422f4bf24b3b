"""The errors of predictions as a table, as a document of JSON, and as a page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from math import isfinite

from pydantic import JsonValue
from rich.console import Group, RenderableType
from rich.text import Text

from placer.report.documents import Document
from placer.report.printing import share_text, table
from placer.strategies.predictions.errors import Errors, Slice

COLUMNS = (
    "rows of", "rows", "predicted", "MAPE", "median", "90th", "bias", "constant", "6N", "inside", "regret", "bytes",
    "inside", "too large, surely / ran out, fits, surely",
)  # fmt: skip
# Of a slice so many of the rows that are furthest off are named.
WORST = 3
MISSING = 12


def view(slices: Sequence[Slice]) -> RenderableType:
    """The table, what intervals are made of, the rows furthest off and why rows are missing."""
    made = table(*COLUMNS, left=1)
    for one in slices:
        made.add_row(*cells(one))
    whole = [one for one in slices if " / " not in one.name]
    told = [f"{one.name}: {_worst(one)}" for one in whole if one.seconds]
    spread = [f"{one.name}: {', '.join(f'{ratio:.2f}' for ratio in one.spread)}" for one in whole if one.spread]
    reasons = Counter(f"{one.name}: {each.reason}" for one in whole for each in one.missing)
    lost = [f"{count} rows of {reason}" for reason, count in reasons.most_common(MISSING)]
    return Group(
        made, Text("measured / predicted seconds at 10%, 50%, 90% of rows: what intervals of other tables are made of"),
        *map(Text, spread), Text("furthest off (predicted / measured seconds)"), *map(Text, told),
        Text("not predicted" if lost else ""), *map(Text, lost),
    )  # fmt: skip


def cells(one: Slice) -> tuple[str, ...]:
    """A slice as a row of the table, "-" where there is nothing to tell."""
    seconds = one.seconds
    return (
        one.name, str(one.rows), str(len(one.predicted)), *_errors(seconds), _share(one.constant_mape),
        _share(one.six_n_mape), _share(one.inside), _share(one.regret),
        "-" if one.bytes is None else f"{one.bytes.mape:.1%} {one.bytes.bias:+.1%}",
        _share(one.inside_bytes), f"{one.too_large}, {one.beyond} / {one.fitting}, {one.surely} of {one.ran_out}",
    )  # fmt: skip


def _errors(found: Errors | None) -> tuple[str, str, str, str]:
    if found is None:
        return "-", "-", "-", "-"
    return share_text(found.mape), share_text(found.median), share_text(found.p90), f"{found.bias:+.1%}"


def _share(value: float | None) -> str:
    return "-" if value is None else share_text(value)


def _worst(one: Slice) -> str:
    timed = sorted((p for p in one.predicted if p.error is not None), key=lambda p: -abs(p.error or 0.0))
    return ", ".join(f"{p.row.name} {p.seconds:.4g} / {p.row.seconds:.4g}" for p in timed[:WORST])


def document(slices: Sequence[Slice]) -> Document:
    """The slices with every row of theirs."""
    return {"slices": [_slice_document(one) for one in slices]}


def _slice_document(one: Slice) -> dict[str, JsonValue]:
    return {
        "slice": one.name,
        "rows": one.rows,
        "represented": len(one.predicted),
        **_error_document("", one.seconds),
        "constant_mape": one.constant_mape,
        "six_n_mape": one.six_n_mape,
        "inside_interval": one.inside,
        "measured_over_predicted_at_10_50_90_percent": None if one.spread is None else list(one.spread),
        "groups": one.groups,
        "mean_regret": one.regret,
        "worst_regret": one.worst_regret,
        "rank_correlation": one.rank,
        **_error_document("bytes_", one.bytes),
        "bytes_inside_interval": one.inside_bytes,
        "ran_called_too_large": one.too_large,
        "ran_called_too_large_beyond_interval": one.beyond,
        "ran_out_called_fitting": one.fitting,
        "ran_out_called_fitting_beyond_interval": one.surely,
        "ran_out": one.ran_out,
        "predictions": list(_rows(one)),
        "missing": [
            {"reason": reason, "rows": count}
            for reason, count in Counter(each.reason for each in one.missing).most_common()
        ],
    }


def _error_document(before: str, found: Errors | None) -> dict[str, JsonValue]:
    names = ("count", "mape", "median", "p90", "bias")
    return {f"{before}{name}": None if found is None else getattr(found, name) for name in names}


def _rows(one: Slice) -> Iterator[JsonValue]:
    for each in one.predicted:
        yield {
            "row_id": each.row.name,
            "predicted": each.seconds,
            "measured": each.row.seconds or None,
            "low": each.low or None,
            "high": each.high if isfinite(each.high) else None,
            "predicted_bytes": each.bytes,
            "measured_bytes": each.row.bytes or None,
            "bytes_low": each.bytes_low or None,
            "bytes_high": each.bytes_high if isfinite(each.bytes_high) else None,
            "fits": each.fits,
            "notes": list(each.notes),
        }
