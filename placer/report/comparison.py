"""Predicted beside measured: two ledgers of one type, subtracted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields

from rich.console import RenderableType
from rich.table import Table

from placer.ledger import Ledger, MemoryBytes
from placer.report.plan_view import seconds_items
from placer.report.printing import table, titled
from placer.report.units import bytes_text, seconds_text


def comparison_view(predicted: Ledger, measured: Ledger) -> RenderableType:
    """A row per cause and category that either ledger has, with measured / predicted."""
    view = table("", "predicted", "measured", "measured/predicted")
    _row(view, "step seconds", predicted.step_seconds, measured.step_seconds, seconds_text)
    theirs = dict(seconds_items(measured.seconds))
    for name, value in seconds_items(predicted.seconds):
        _row(view, f"  {name}", value, theirs[name], seconds_text)
    _row(view, "bytes on the fullest device", predicted.peak_memory, measured.peak_memory, bytes_text)
    for field in fields(MemoryBytes):
        _row(view, f"  {field.name}", _fullest(predicted, field.name), _fullest(measured, field.name), bytes_text)
    _row(view, "bytes sent between stages", predicted.sent_bytes, measured.sent_bytes, bytes_text)
    _row(view, "bytes reduced", predicted.reduced_bytes, measured.reduced_bytes, bytes_text)
    return titled("predicted beside measured", view)


def _fullest(ledger: Ledger, name: str) -> int:
    return max((getattr(memory, name) for memory in ledger.memory), default=0)


def _row(view: Table, name: str, predicted: float, measured: float, text: Callable[[float], str]) -> None:
    if predicted or measured:
        ratio = f"{measured / predicted:.2f}" if predicted and measured else ""
        view.add_row(name, text(predicted) if predicted else "-", text(measured) if measured else "-", ratio)
