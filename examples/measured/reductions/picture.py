"""draw(outcomes, file): bars of the measured seconds of every way of a case, with the predicted ones as marks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from examples.measured.reductions.outcome import WAYS, Outcome
from placer.errors import require_extra

WIDTH = 0.27


def draw(found: Sequence[Outcome], path: Path) -> None:
    """Raises UsageError where matplotlib is missing."""
    require_extra("plot", "matplotlib")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 0.6 * len(found) + 1), layout="constrained")
    axes = figure.subplots()
    for index, way in enumerate(WAYS):
        own = [(place, one) for place, one in enumerate(found) if way in one.measured]
        at = [place + (index - 1) * WIDTH for place, _ in own]
        axes.barh(at, [one.measured[way] * 1e3 for _, one in own], WIDTH, label=f"{way}, measured")
        axes.plot([one.predicted[way] * 1e3 for _, one in own], at, "k|", label="predicted" if not index else None)
    for place, one in enumerate(found):
        where = place + (WAYS.index(one.chosen) - 1) * WIDTH
        axes.annotate("chosen", (one.measured[one.chosen] * 1e3, where), (4, -3), textcoords="offset points", size=7)
    axes.set_yticks(range(len(found)), [one.name for one in found])
    axes.set_ylim(len(found) - 0.5, -0.5)
    axes.set_xscale("log")
    axes.set_xlabel("milliseconds of a sum")
    axes.legend()
    figure.savefig(path)
