"""Strategies side by side as one HTML page that needs no network: Bokeh's script is written into it once.

    best so far   of each strategy the median over cases of its step time over the best one known, by seconds of search
    gaps          of each strategy, on equal and on unequal machines, the median gap and the worst one
    table         every outcome, sortable

Names of cases and strategies come from outside: in tables they are Bokeh's data, and nothing is made HTML of but what
is escaped here.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from math import nan
from statistics import median

from bokeh.embed import file_html
from bokeh.layouts import column
from bokeh.models.ranges import FactorRange
from bokeh.models.sources import ColumnDataSource
from bokeh.models.ui import UIElement
from bokeh.models.widgets.markups import Div
from bokeh.models.widgets.tables import DataTable, StringFormatter, TableColumn
from bokeh.palettes import Category20_20
from bokeh.plotting import figure
from bokeh.resources import INLINE
from bokeh.transform import dodge

from placer.report.printing import share_text
from placer.report.strategies.curves import by_strategy, median_gap, times
from placer.search.comparison import Outcome
from placer.search.standings import best_seconds, gaps_to, standings

# Gaps are drawn on a logarithmic axis from here on.
LEAST = 1e-4
COLUMNS = (
    "case", "kind", "strategy", "seed", "budget", "step_time_seconds", "gap", "bound_seconds", "evaluations",
    "search_time_seconds", "reason",
)  # fmt: skip
TITLE = "Strategies side by side"


def strategies_page(outcomes: Sequence[Outcome]) -> str:
    """The page of these outcomes."""

    named = f"<h1>{TITLE}</h1><p>{escape(_told(outcomes))}</p>"
    parts: list[UIElement] = [Div(text=named), _curves(outcomes), _gaps(outcomes), _table(outcomes)]
    return file_html(column(*parts, sizing_mode="stretch_width"), INLINE, title=TITLE)


def _told(outcomes: Sequence[Outcome]) -> str:
    best = best_seconds(outcomes)
    cases, budgets = {one.case for one in outcomes}, sorted({one.budget or "none" for one in outcomes})
    return (
        f"{len(outcomes)} searches of {len(cases)} problems ({len(best)} of which somebody has a plan of), budgets "
        f"{', '.join(budgets)}. A gap is to the best plan of any strategy, seed and budget."
    )


def _curves(outcomes: Sequence[Outcome]) -> UIElement:
    """Median of best so far over best known; cases without a plan yet count as infinitely far."""

    best = best_seconds(outcomes)
    after_seconds = times(outcomes)
    plot = figure(
        title="best so far: median over problems of its step time over the best known (gap, log)", height=420,
        x_axis_type="log", y_axis_type="log", x_axis_label="seconds of search", y_axis_label="gap to the best known",
        sizing_mode="stretch_width", tooltips=[("strategy", "$name"), ("seconds", "@x"), ("gap", "@told")],
    )  # fmt: skip
    for number, (name, own) in enumerate(by_strategy(outcomes, best).items()):
        gaps = [median_gap(own, best, after) for after in after_seconds]
        data = {"x": after_seconds, "y": [max(gap, LEAST) for gap in gaps], "told": [f"{gap:.2%}" for gap in gaps]}
        plot.line("x", "y", source=data, name=name, legend_label=name, color=_color(number), line_width=2)
    if plot.legend:  # somebody has a plan
        plot.legend.click_policy = "hide"
        plot.add_layout(plot.legend[0], "right")
    return plot


def _gaps(outcomes: Sequence[Outcome]) -> UIElement:
    """Bars of the median gap by strategy and kind of machines, with the worst one as a point."""

    best = best_seconds(outcomes)
    names = [own.strategy for own in standings(outcomes)]
    kinds = sorted({one.kind for one in outcomes})
    plot = figure(
        title="gap to the best known: median (bar) and worst (point)", x_range=FactorRange(factors=names), height=380,
        sizing_mode="stretch_width", y_axis_type="log", y_axis_label="gap to the best known",
        tooltips=[("strategy", "@x"), ("kind", "$name"), ("gap", "@told")],
    )  # fmt: skip
    for number, kind in enumerate(kinds):
        each = [gaps_to([one for one in outcomes if one.kind == kind and one.strategy == name], best) for name in names]
        place = dodge("x", 0.8 * ((number + 0.5) / len(kinds) - 0.5), range=plot.x_range)
        label = kind or "all"
        middle = _points(names, [median(gaps) if gaps else nan for gaps in each])
        worst = _points(names, [max(gaps, default=nan) for gaps in each])
        color, width = _color(number), 0.7 / len(kinds)
        plot.vbar(place, top="y", bottom=LEAST, width=width, source=middle, color=color, name=label, legend_label=label)
        plot.scatter(place, "y", size=7, source=worst, color=color, line_color="black", name=f"{label}, worst")
    if plot.legend:
        plot.add_layout(plot.legend[0], "right")
    return plot


def _points(names: list[str], gaps: list[float]) -> dict[str, list[object]]:
    return {"x": [*names], "y": [max(gap, LEAST) for gap in gaps], "told": [f"{gap:.2%}" for gap in gaps]}


def _table(outcomes: Sequence[Outcome]) -> UIElement:

    best = best_seconds(outcomes)
    rows = [
        {**{name: getattr(one, name, "") for name in COLUMNS if name != "gap"}, "gap": _gap(one, best)}
        for one in outcomes
    ]
    data = {name: [_cell(row[name]) for row in rows] for name in COLUMNS}
    columns = [TableColumn(field=name, title=name.replace("_", " "), formatter=StringFormatter()) for name in COLUMNS]
    return DataTable(
        source=ColumnDataSource(data), columns=columns, height=600, reorderable=False, sizing_mode="stretch_width"
    )


def _gap(outcome: Outcome, best: dict[str, float]) -> str:
    seconds = outcome.step_time_seconds
    return "" if seconds is None else share_text(seconds / best[outcome.case] - 1)


def _cell(value: object) -> str:
    """What stands in a cell."""
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _color(number: int) -> str:

    found: str = Category20_20[number % len(Category20_20)]
    return found
