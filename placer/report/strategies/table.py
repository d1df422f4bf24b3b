"""Strategies side by side, as tables for people (terminal, Markdown), as CSV and as JSON."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import asdict, fields

from rich.console import Group, RenderableType

from placer.report.documents import Document
from placer.report.printing import seconds_text, share_text, table, titled
from placer.search.comparison import Outcome
from placer.search.standings import Standing, best_seconds, standings

HEADS = (
    "strategy", "solved", "median gap", "worst gap", "to proven", "within 5%", "after", "within 1%", "after", "search",
)  # fmt: skip


def by_budget(outcomes: Sequence[Outcome]) -> dict[str, tuple[Standing, ...]]:
    """The standings of each budget, to the best plans of all of them."""
    budgets = dict.fromkeys(outcome.budget for outcome in outcomes)
    return {name: standings([one for one in outcomes if one.budget == name], outcomes) for name in budgets}


def strategies_view(outcomes: Sequence[Outcome]) -> RenderableType:
    """A table for each budget."""
    found = by_budget(outcomes)
    views = []
    for budget, each in found.items():
        view = table(*HEADS, left=1)
        for own in each:
            view.add_row(*_cells(own))
        views.append(view if len(found) == 1 else titled(f"budget {budget or 'none'}", view))
    return Group(*views)


def strategies_markdown(outcomes: Sequence[Outcome]) -> str:
    """The same tables, and one of the median gaps on equal and on unequal machines."""
    found = by_budget(outcomes)
    parts = []
    for budget, each in found.items():
        told = f"Budget {_escaped(budget) or 'none'}\n\n" if len(found) > 1 else ""
        parts.append(told + _lines(HEADS, (_cells(own) for own in each)))
    kinds = sorted({outcome.kind for outcome in outcomes if outcome.kind})
    if len(kinds) > 1:
        parts.append(_lines(("strategy", *kinds), _kinds(outcomes, kinds)))
    return "\n".join(parts)


def strategies_csv(outcomes: Sequence[Outcome]) -> str:
    """Every outcome with its gap."""
    best, text = best_seconds(outcomes), io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow([*(field.name for field in fields(Outcome)), "gap"])
    for outcome in outcomes:
        seconds = outcome.step_time_seconds
        writer.writerow([*asdict(outcome).values(), "" if seconds is None else seconds / best[outcome.case] - 1])
    return text.getvalue()


def strategies_document(outcomes: Sequence[Outcome]) -> Document:
    """The standings of each budget, and all outcomes."""
    each = [{"budget": budget, **asdict(own)} for budget, found in by_budget(outcomes).items() for own in found]
    return {
        "strategies": [dict(own) for own in each],
        "outcomes": [{**asdict(one), "curve": [[after, found] for after, found in one.curve]} for one in outcomes],
    }


def _kinds(outcomes: Sequence[Outcome], kinds: Sequence[str]) -> Iterable[tuple[str, ...]]:
    """Of each strategy the median gap on each kind of machines."""
    found = {kind: standings([one for one in outcomes if one.kind == kind], outcomes) for kind in kinds}
    gaps = {(kind, own.strategy): own.median_gap for kind, each in found.items() for own in each}
    for name in dict.fromkeys(own.strategy for own in standings(outcomes)):
        yield name, *(_share(gaps.get((kind, name))) for kind in kinds)


def _cells(own: Standing) -> tuple[str, ...]:
    return (
        own.strategy, f"{own.solved} of {own.runs}", _share(own.median_gap), _share(own.worst_gap),
        _share(own.median_open), share_text(own.near), _seconds(own.near_seconds), share_text(own.nearer),
        _seconds(own.nearer_seconds), seconds_text(own.search_time_seconds),
    )  # fmt: skip


def _share(share: float | None) -> str:
    return "-" if share is None else share_text(share)


def _seconds(seconds: float | None) -> str:
    return "-" if seconds is None else seconds_text(seconds)


def _lines(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [tuple(heads), ("---",) * len(heads), *rows]
    return "".join(f"| {' | '.join(map(_escaped, line))} |\n" for line in lines)


def _escaped(text: str) -> str:
    """Without what ends a cell or a line."""
    return text.replace("|", "\\|").replace("\n", " ")
