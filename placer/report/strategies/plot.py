"""Strategies side by side as a picture: how near to the best known they come, and how soon."""

from __future__ import annotations

import io
from collections.abc import Sequence

from matplotlib import colormaps, rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from placer.report.strategies.curves import by_strategy, median_gap, times
from placer.search.comparison import Outcome
from placer.search.standings import best_seconds, gaps_to

COLOURS = colormaps["tab20"]
# Gaps on logarithmic axes, from a thousandth to ten times.
LEAST, MOST = 1e-3, 10.0


def strategies_plot(outcomes: Sequence[Outcome], format: str) -> bytes:
    """The picture in a format of matplotlib's (svg, png, pdf)."""
    best = best_seconds(outcomes)
    searches = by_strategy(outcomes, best)
    figure = Figure(figsize=(11, 4.6), layout="constrained")
    near, soon = figure.subplots(1, 2)
    moments = times(outcomes)
    for number, (name, own) in enumerate(searches.items()):
        style = {"color": COLOURS(number % COLOURS.N), "label": name, "linewidth": 1.6}
        gaps = sorted(max(gap, LEAST) for gap in gaps_to(own, best))
        near.step([LEAST, *gaps, MOST], [0, *_shares(len(gaps), len(own))], where="post", **style)
        soon.plot(moments, [max(median_gap(own, best, after), LEAST) for after in moments], **style)
    _titled(near, "problems solved within a gap to the best known", "gap", "share of problems")
    near.yaxis.set_major_formatter(PercentFormatter(1.0))
    near.set_xlim(LEAST, MOST)
    _titled(soon, "median gap of the best so far", "seconds of search", "gap")
    soon.set_yscale("log")
    soon.set_ylim(LEAST, MOST)
    figure.legend(*near.get_legend_handles_labels(), loc="outside right center", fontsize="small")
    file = io.BytesIO()
    # Without a date and drawn names the same outcomes give the same file.
    with rc_context({"svg.hashsalt": "strategies"}):
        figure.savefig(file, format=format, metadata={"Date": None} if format == "svg" else None)
    return file.getvalue()


def _shares(solved: int, runs: int) -> list[float]:
    """Of the runs, after each that is solved, and at the end."""
    return [(number + 1) / runs for number in range(solved)] + [solved / runs]


def _titled(axes: Axes, title: str, across: str, up: str) -> None:
    axes.set_title(title, fontsize="medium")
    axes.set_xlabel(across)
    axes.set_ylabel(up)
    axes.set_xscale("log")
    axes.grid(alpha=0.3)
