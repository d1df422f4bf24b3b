"""A sweep as a table, CSV and JSON: predicted rows/s, beside published ones the error of each, MAPE by source."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence

from pydantic import JsonValue
from rich.console import Group, RenderableType
from rich.text import Text

from placer.io.refusals import short
from placer.report.documents import Document
from placer.report.printing import share_text, table, titled
from placer.search.sweep import Predicted

HEAD = ("model", "machine", "network", "precision", "nodes", "devices", "predicted_rows_per_second")
BESIDE = ("published_rows_per_second", "error", "speedup", "published_speedup", "source", "framework")
# Of the name of a network in the table.
LONGEST = 24
Key = tuple[str, ...]


def sweep_view(found: Sequence[Predicted], left: int) -> RenderableType:
    """Every cell; beside published rows their errors. left: how many published rows lie outside of the grid."""
    published = any(one.published for one in found)
    speedups = speedups_of(found)
    names = ("model", "machine", "network", "precision", "devices", "rows/s", "speed-up")
    view = table(*names, *(("published", "error", "speed-up there") if published else ()), left=4)
    for one, (ours, theirs) in zip(found, speedups, strict=True):
        cell = one.cell
        network = short(cell.network, LONGEST) if cell.nodes > 1 else "-"
        made = "no plan" if one.rows_per_second is None else f"{one.rows_per_second:.0f}"
        row = [cell.model, cell.machine, network, cell.precision, str(cell.count), made, _times(ours)]
        if one.published is not None:
            row += [f"{one.published.rows_per_second:.0f}", "" if one.error is None else share_text(one.error)]
            row.append(_times(theirs))
        view.add_row(*row)
    without = [one for one in found if one.reason]
    reasons = dict.fromkeys(f"no plan: {one.cell.model} on {one.cell.machine}: {one.reason}" for one in without)
    parts: list[RenderableType] = [view, *map(Text, reasons)]
    if published:
        parts.append(titled("mean absolute error", _errors(found)))
        parts.append(Text(f"{left} published rows lie outside of the grid" if left else "every published row is here"))
    return Group(*parts)


def sweep_document(found: Sequence[Predicted], left: int) -> Document:
    """The same for machines."""
    rows: list[JsonValue] = [dict(zip((*HEAD, *BESIDE), values, strict=True)) for values in _values(found)]
    errors: list[JsonValue] = [
        {"source": source, "framework": framework, "rows": count, "mape": error, "speedup_mape": speed}
        for (source, framework), count, error, speed in errors_by_source(found)
    ]
    return {"cells": rows, "errors": errors, "published_rows_left_out": left}


def sweep_csv(found: Sequence[Predicted]) -> str:
    """A line per cell."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow((*HEAD, *BESIDE))
    writer.writerows(_values(found))
    return text.getvalue()


def speedups_of(found: Sequence[Predicted]) -> list[tuple[float | None, float | None]]:
    """Rows/s over those of one device, predicted and published: of the same model, machine, precision and framework."""
    ours = _alone(found, lambda one: one.rows_per_second)
    theirs = _alone(found, lambda one: one.published.rows_per_second if one.published else None)
    pairs = []
    for one in found:
        mine, base = one.rows_per_second, ours.get(_key(one))
        said, there = one.published.rows_per_second if one.published else None, theirs.get(_key(one))
        pairs.append((mine / base if mine and base else None, said / there if said and there else None))
    return pairs


def errors_by_source(found: Sequence[Predicted]) -> list[tuple[tuple[str, str], int, float, float | None]]:
    """(source, framework), its rows, the mean absolute error of rows/s, and of speed-ups over one device (None: no such
    rows)."""
    kept: dict[tuple[str, str], list[tuple[float, float | None]]] = {}
    for one, (ours, theirs) in zip(found, speedups_of(found), strict=True):
        if one.published is not None and one.error is not None:
            speed = abs(ours / theirs - 1) if ours and theirs and one.cell.count > 1 else None
            kept.setdefault((one.published.source, one.published.framework), []).append((abs(one.error), speed))
    results = []
    for key, pairs in sorted(kept.items()):
        speeds = [speed for _, speed in pairs if speed is not None]
        mean = sum(error for error, _ in pairs) / len(pairs)
        results.append((key, len(pairs), mean, sum(speeds) / len(speeds) if speeds else None))
    return results


def _errors(found: Sequence[Predicted]) -> RenderableType:
    view = table("source", "framework", "rows", "rows/s", "speed-up", left=2)
    for (source, framework), count, error, speed in errors_by_source(found):
        view.add_row(source, framework, str(count), share_text(error), "-" if speed is None else share_text(speed))
    return view


def _alone(found: Sequence[Predicted], value: Callable[[Predicted], float | None]) -> dict[Key, float]:
    """By what is alike but for the count: the value of one device."""
    return {_key(one): got for one in found if one.cell.count == 1 and (got := value(one)) is not None}


def _key(one: Predicted) -> Key:
    by = (one.published.source, one.published.framework) if one.published else ("", "")
    return (one.cell.model, one.cell.machine, one.cell.precision, *by)


def _values(found: Sequence[Predicted]) -> list[list[JsonValue]]:
    rows: list[list[JsonValue]] = []
    for one, (ours, theirs) in zip(found, speedups_of(found), strict=True):
        cell, beside = one.cell, one.published
        rows.append([
            cell.model, cell.machine, cell.network if cell.nodes > 1 else "", cell.precision, cell.nodes, cell.count,
            one.rows_per_second, beside.rows_per_second if beside else None, one.error, ours, theirs,
            beside.source if beside else None, beside.framework if beside else None,
        ])  # fmt: skip
    return rows


def _times(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"
