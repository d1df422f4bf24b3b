"""ratio(ours, theirs): how many times as long ours takes, with an interval.

    value = median(ours) / median(theirs)

Turns of one round are resampled together (rounds with replacement, 2,000 times): the interval holds 95% of the values
so found. A machine that is slow for a while is slow for both.

Plans beside hand-written torch: a row for each contestant, with ratios of step times and their intervals.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from statistics import median

from pydantic import JsonValue
from rich.console import Group, RenderableType
from rich.text import Text

from placer.report.documents import Document
from placer.report.printing import table

SAMPLES = 2000
SHARE = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """A ratio of medians and where 95% of its resampled values lie."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> Ratio:
    """Of the turns of the same rounds; deterministic."""
    draw, rounds = Random(0), range(len(ours))
    found = []
    for _ in range(SAMPLES):
        chosen = draw.choices(rounds, k=len(ours))
        found.append(median([ours[i] for i in chosen]) / median([theirs[i] for i in chosen]))
    found.sort()
    edge = round((1 - SHARE) / 2 * SAMPLES)
    return Ratio(value=median(ours) / median(theirs), low=found[edge], high=found[-1 - edge])


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
