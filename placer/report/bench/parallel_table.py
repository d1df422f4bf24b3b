"""Rows of `placer bench parallel` as a table for people, as CSV, as Markdown, and for machines."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from math import inf

from pydantic import JsonValue
from rich.console import Group, RenderableType
from rich.text import Text

from placer.report.bench.parallel_rows import TOLERANCE, Row, Spread
from placer.report.documents import Document
from placer.report.printing import table

COLUMNS = ("model", "processes", "way", "ms a step", "speed-up", "exposed ms", "s in all", "accuracy", "losses")
SPREADS = ("step_seconds", "speed_up", "exposed_seconds")


def parallel_view(rows: Sequence[Row], told: Sequence[str]) -> RenderableType:
    """The table, why what is missing is, and the analysis."""
    view = table(*COLUMNS, left=3)
    for row in rows:
        view.add_row(*cells(row))
    reasons = [Text(line) for line in not_run(rows)]
    return Group(view, *reasons, *(Text(line) for line in told))


def parallel_markdown(rows: Sequence[Row], told: Sequence[str]) -> str:
    """The same in Markdown."""
    lines = [f"| {' | '.join(COLUMNS)} |", "|" + "---|" * len(COLUMNS)]
    lines += [f"| {' | '.join(_escaped(cell) for cell in cells(row))} |" for row in rows]
    return "\n".join([*lines, "", *(f"- {line}" for line in (*not_run(rows), *told)), ""])


def parallel_csv(rows: Sequence[Row]) -> str:
    """Everything, seconds and shares in full."""
    text = io.StringIO()
    names = [
        "model", "processes", "way",
        *(f"{name}_{part}" for name in SPREADS for part in ("median", "low", "high")),
        "setup_seconds", "total_seconds", "accuracies", "epoch_seconds", "losses_apart", "losses_agree", "reason",
    ]  # fmt: skip
    write = csv.writer(text, lineterminator="\n")
    write.writerow(names)
    for row in rows:
        spreads = [part for one in (row.step, row.speed_up, row.exposed) for part in _parts(one)]
        write.writerow([
            row.model, row.ranks, row.way, *spreads, row.setup_seconds, row.total_seconds,
            " ".join(f"{one:.4f}" for one in row.accuracies), " ".join(f"{one:.3f}" for one in row.epoch_seconds),
            "" if row.apart is None else row.apart, agreement(row), row.reason,
        ])  # fmt: skip
    return text.getvalue()


def parallel_document(rows: Sequence[Row], told: Sequence[str]) -> Document:
    """Every row for machines."""
    return {
        "rows": [_row_document(row) for row in rows],
        "analysis": list(told),
        "losses_tolerance": TOLERANCE,
    }


def cells(row: Row) -> tuple[str, ...]:
    """What stands in the table."""
    ended = row.step is not None
    return (
        row.model, str(row.ranks), row.way, _shown(row.step, 1e3, 1), _shown(row.speed_up, 1, 2),
        _shown(row.exposed, 1e3, 1), f"{row.total_seconds:.1f}" if ended else "-",
        " ".join(f"{one:.0%}" for one in row.accuracies) or "-", agreement(row) if ended else "not run",
    )  # fmt: skip


def agreement(row: Row) -> str:
    """Whether losses are those of one process on the whole batch."""
    if row.step is None or row.apart is None:
        return "-"
    if not row.agrees:
        return "own"
    return f"differ by {row.apart:.1e}" if row.wrong else "agree"


def not_run(rows: Sequence[Row]) -> list[str]:
    """Each way that did not run, with its reason, once; with the cell where it ran elsewhere."""
    found: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        if row.reason:
            found.setdefault((row.way, row.reason), []).append(f"{row.model} on {row.ranks}")
    return [f"{way} did not run ({', '.join(where)}): {reason}" for (way, reason), where in found.items()]


def _parts(found: Spread | None) -> tuple[object, ...]:
    return ("", "", "") if found is None else (found.value, found.low, found.high)


def _shown(found: Spread | None, scale: float, digits: int) -> str:
    if found is None:
        return "-"
    value, low, high = (f"{one * scale:.{digits}f}" for one in (found.value, found.low, found.high))
    return f"{value} [{low}, {high}]"


def _escaped(cell: str) -> str:
    return cell.replace("|", "\\|")


def _row_document(row: Row) -> JsonValue:
    apart = "infinite" if row.apart == inf else row.apart
    return {
        "model": row.model, "processes": row.ranks, "way": row.way, "step_seconds": _spread(row.step),
        "speed_up": _spread(row.speed_up), "exposed_seconds": _spread(row.exposed), "setup_seconds": row.setup_seconds,
        "total_seconds": row.total_seconds, "accuracies": list(row.accuracies),
        "epoch_seconds": list(row.epoch_seconds), "losses_apart": apart, "losses_agree": agreement(row),
        "reason": row.reason,
    }  # fmt: skip


def _spread(found: Spread | None) -> JsonValue:
    return None if found is None else {"median": found.value, "low": found.low, "high": found.high}
