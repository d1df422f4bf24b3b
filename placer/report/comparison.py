"""Predicted beside measured: two ledgers of one type, subtracted."""

from __future__ import annotations

from collections.abc import Callable

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from placer.plans.ledger import Ledger, MemoryBytes
from placer.report.plan_table import seconds_items
from placer.report.printing import bytes_text, seconds_text, table, titled


def comparison_view(predicted: Ledger, measured: Ledger) -> RenderableType:
    """A row per cause and category that either ledger has, with measured / predicted; totals of what both have."""
    view = table("", "predicted", "measured", "measured/predicted")
    _row(view, "step seconds", predicted.step_seconds, measured.step_seconds, seconds_text)
    theirs = dict(seconds_items(measured.seconds))
    for name, value in seconds_items(predicted.seconds):
        # What is left of a difference may be nothing but rounding.
        own = value if value > ROUNDING * predicted.step_seconds else 0.0
        _row(view, f"  {name}", own, theirs[name], seconds_text)
    exposed = [ledger.seconds.communication + ledger.seconds.reduction for ledger in (predicted, measured)]
    _row(view, "exposed communication", exposed[0], exposed[1], seconds_text)
    missing, apart = _unmeasured(predicted, measured)
    _row(view, "bytes on the fullest device", _total(predicted, apart), _total(measured, apart), bytes_text)
    for name in MemoryBytes().categories:
        _row(view, f"  {name}", _fullest(predicted, name), _fullest(measured, name), bytes_text)
    _row(view, "bytes sent between stages", predicted.sent_bytes, measured.sent_bytes, bytes_text)
    _row(view, "bytes reduced", predicted.reduced_bytes, measured.reduced_bytes, bytes_text)
    parts: list[RenderableType] = [titled("predicted beside measured", view)]
    if missing:
        told = f"not told apart on processors: {', '.join(missing)}"
        left_out = predicted.peak_memory - _total(predicted, apart)
        if left_out:
            told += (
                f"; left out of the bytes on the fullest device: {', '.join(apart)} ({bytes_text(left_out)} predicted)"
            )
        parts.append(Text(told))
    return Group(*parts)


# Sums of some hundred floats agree to so much.
ROUNDING = 1e-12
# What only the allocator of a GPU can tell.
_OF_ALLOCATOR = ("workspace", "communication", "overhead")


def _unmeasured(predicted: Ledger, measured: Ledger) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The categories that were predicted and not measured; those of them that what was alive at once leaves out too."""
    missing = tuple(name for name in _OF_ALLOCATOR if _fullest(predicted, name) and not _fullest(measured, name))
    known = any(memory.at_once for memory in measured.memory)
    return missing, tuple(name for name in missing if name == "overhead" or not known)


def _total(ledger: Ledger, missing: tuple[str, ...]) -> int:
    """Bytes on the fullest device without the categories that are missing."""
    sums = (memory.total - sum(getattr(memory, name) for name in missing) for memory in ledger.memory)
    return max(sums, default=0)


def _fullest(ledger: Ledger, name: str) -> int:
    return max((getattr(memory, name) for memory in ledger.memory), default=0)


def _row(view: Table, name: str, predicted: float, measured: float, text: Callable[[float], str]) -> None:
    if predicted or measured:
        ratio = f"{measured / predicted:.2f}" if predicted and measured else ""
        view.add_row(name, text(predicted) if predicted else "-", text(measured) if measured else "-", ratio)
