"""Ways to train data-parallel as one HTML page that needs no network: a picture each of seconds of a step, speed-ups,
exposed communication and accuracy behind each epoch for every model, the analysis, the table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from math import nan

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

from placer.report.bench.parallel_rows import Row, Spread
from placer.report.bench.parallel_table import COLUMNS, cells, not_run

TITLE = "Ways to train data-parallel, side by side"


def parallel_page(rows: Sequence[Row], told: Sequence[str]) -> str:
    """The page."""
    lines = "".join(f"<li>{escape(line)}</li>" for line in (*told, *not_run(rows)))
    parts: list[UIElement] = [Div(text=f"<h1>{TITLE}</h1><ul>{lines}</ul>")]
    for model in dict.fromkeys(row.model for row in rows):
        own = [row for row in rows if row.model == model and row.step is not None]
        if own:
            parts += [
                _bars(own, f"{model}: ms a step, with the interval of rounds", lambda row: row.step, 1e3),
                _bars(own, f"{model}: exposed communication, ms a step", lambda row: row.exposed, 1e3),
                _bars(own, f"{model}: rows a second over one process of the same way", lambda row: row.speed_up, 1),
                *_epochs(own, model),
            ]
    return file_html(column(*parts, _table(rows), sizing_mode="stretch_width"), INLINE, title=TITLE)


def _bars(rows: Sequence[Row], title: str, of: Callable[[Row], Spread | None], scale: float) -> UIElement:
    """A group for each way, a bar for each number of processes."""
    names = list(dict.fromkeys(row.way for row in rows))
    counts = sorted({row.ranks for row in rows})
    plot = figure(
        title=title, x_range=FactorRange(factors=names), height=340, sizing_mode="stretch_width",
        tooltips=[("way", "@x"), ("processes", "$name"), ("value", "@y"), ("from", "@low"), ("to", "@high")],
    )  # fmt: skip
    plot.xaxis.major_label_orientation = 0.5
    for number, ranks in enumerate(counts):
        found = {row.way: of(row) for row in rows if row.ranks == ranks}
        each = [found.get(name) for name in names]
        data = {
            "x": names,
            **{key: [nan if one is None else getattr(one, part) * scale for one in each]
               for key, part in (("y", "value"), ("low", "low"), ("high", "high"))},
        }  # fmt: skip
        place = dodge("x", 0.8 * ((number + 0.5) / len(counts) - 0.5), range=plot.x_range)
        source, width = ColumnDataSource(data), 0.7 / len(counts)
        label = f"{ranks} process{'es' * (ranks > 1)}"
        plot.vbar(place, width, "y", source=source, color=_color(number), name=str(ranks), legend_label=label)
        plot.segment(place, "low", place, "high", source=source, color="black")
    plot.add_layout(plot.legend[0], "right")
    return plot


def _epochs(rows: Sequence[Row], model: str) -> list[UIElement]:
    """Lines of accuracy, for each way and number of processes; none where nothing was trained for epochs."""
    trained = [row for row in rows if row.accuracies]
    if not trained:
        return []
    plot = figure(
        title=f"{model}: accuracy on held-out pictures behind each epoch", height=340, sizing_mode="stretch_width",
        x_axis_label="epoch", tooltips=[("way", "$name"), ("epoch", "@x"), ("accuracy", "@y")],
    )  # fmt: skip
    ways = list(dict.fromkeys(row.way for row in trained))
    for row in trained:
        label, epochs = f"{row.way}, {row.ranks}", list(range(1, len(row.accuracies) + 1))
        source = ColumnDataSource({"x": epochs, "y": list(row.accuracies)})
        color, dash = _color(ways.index(row.way)), ("solid", "dashed", "dotted", "dotdash")[min(row.ranks, 4) - 1]
        plot.line("x", "y", source=source, name=label, legend_label=label, color=color, line_dash=dash, line_width=2)
        plot.scatter("x", "y", source=source, name=label, color=color)
    plot.legend.click_policy = "hide"
    plot.add_layout(plot.legend[0], "right")
    return [plot]


def _table(rows: Sequence[Row]) -> UIElement:
    made = [cells(row) for row in rows]
    data = {name: [row[number] for row in made] for number, name in enumerate(COLUMNS)}
    columns = [TableColumn(field=name, title=name, formatter=StringFormatter()) for name in COLUMNS]
    return DataTable(
        source=ColumnDataSource(data), columns=columns, height=600, reorderable=False, sizing_mode="stretch_width"
    )


def _color(number: int) -> str:
    found: str = Category20_20[number % len(Category20_20)]
    return found
