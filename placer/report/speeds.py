"""Plans beside hand-written torch: a row for each contestant, with ratios of step times and their intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import JsonValue
from rich.console import Group, RenderableType
from rich.text import Text

from placer.report.documents import Document
from placer.report.printing import table
from placer.report.ratios import Ratio

# How many times as long as hand-written code a plan may take, and how near to torch's own wrapper that code must come.
MOST = 1.03
LEAST = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedRow:
    """One contestant at one size: seconds of a step by the clock, and of all ranks' processors.

    ratio, processor_ratio: placer's seconds over these; None in placer's own row. share: of the speed of torch's
    wrapper, in the row of what was written by hand.
    """

    kind: str
    hidden: int
    name: str
    seconds: float
    processor_seconds: float
    ratio: Ratio | None = None
    processor_ratio: Ratio | None = None
    wrapper: str = ""
    share: Ratio | None = None


def reached(row: SpeedRow) -> str:
    """Whether placer takes at most `MOST` of these seconds: yes and no where the whole interval says so, else open."""
    if row.ratio is None:
        return "-"
    return "yes" if row.ratio.high <= MOST else "no" if row.ratio.low > MOST else "open"


def speeds_document(rows: Sequence[SpeedRow]) -> Document:
    """Every row for machines."""
    return {"rows": [_document(row) for row in rows], "most": MOST, "least": LEAST}


def speeds_view(rows: Sequence[SpeedRow]) -> RenderableType:
    """Every row for people."""
    view = table(
        "plan", "hidden", "who", "ms a step", "processor ms", "placer / this", "by processors", f"<= {MOST}", left=1
    )
    for row in rows:
        view.add_row(
            row.kind, str(row.hidden), row.name, f"{row.seconds * 1e3:.2f}", f"{row.processor_seconds * 1e3:.2f}",
            str(row.ratio or "-"), str(row.processor_ratio or "-"), reached(row),
        )  # fmt: skip
    shares = [
        Text(f"{row.kind}, hidden {row.hidden}: {row.name} reaches {row.share} of the speed of {row.wrapper}")
        for row in rows
        if row.share is not None
    ]
    return Group(view, *shares)


def _document(row: SpeedRow) -> JsonValue:
    return {
        "plan": row.kind,
        "hidden": row.hidden,
        "contestant": row.name,
        "step_time_seconds": row.seconds,
        "processor_time_seconds": row.processor_seconds,
        "ratio": _interval(row.ratio),
        "processor_ratio": _interval(row.processor_ratio),
        "reached": reached(row),
        "wrapper": row.wrapper,
        "share_of_wrapper": _interval(row.share),
    }


def _interval(found: Ratio | None) -> JsonValue:
    return None if found is None else {"value": found.value, "low": found.low, "high": found.high}
