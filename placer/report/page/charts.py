"""What all charts of the page have in common. Bokeh draws them on a canvas; its tooltips show foreign text as text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from bokeh.embed import components
from bokeh.models.annotations import Span
from bokeh.models.ranges import FactorRange
from bokeh.models.tools import WheelZoomTool
from bokeh.palettes import Category20_20
from bokeh.plotting import figure
from bokeh.resources import Resources
from numpy.typing import NDArray

from placer.report.page.markup import Markup, shortened, swatch, text

Chart: TypeAlias = figure
Tooltips: TypeAlias = Sequence[tuple[str, str]]

# Bytes and seconds by what they are for; told apart by order and name too, not by colour alone.
CAUSE_COLORS = {
    "forward": "#4e9bd1", "backward": "#2f6690", "recompute": "#9ac7e6", "communication": "#f2a541",
    "reduction": "#d9672b", "bubble": "#9a9a9a", "optimizer": "#5fa777", "data": "#b07aa1", "other": "#79706e",
    "parameters": "#2f6690", "gradients": "#d9672b", "activations": "#4e9bd1", "buffers": "#79706e",
    "workspace": "#f2a541", "overhead": "#9a9a9a", "backward pass": "#e3c567",
}  # fmt: skip
TOOLS = "xpan,xwheel_zoom,box_zoom,reset,save"
# On light and on dark alike until the page's script knows which it is.
BETWEEN = "#808080"


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the page: `parts` are HTML and charts, in order."""

    title: str
    parts: tuple[Markup | Chart, ...]


def chart(
    *, across: str, up: str, height: int = 320, log: bool = False, tooltips: Tooltips = (),
    rows: Sequence[str] = (), tools: str = TOOLS, left_right: tuple[float, float] | None = None,
    bottom_top: tuple[float, float] | None = None,
) -> Chart:  # fmt: skip
    """An empty chart as wide as the page.

    log: both axes logarithmic. rows: what the axis upwards names, from above. left_right, bottom_top: what the axes
    show at first, where it is not all there is.
    """
    given: dict[str, Any] = {"x_axis_type": "log", "y_axis_type": "log"} if log else {}
    if rows:
        given["y_range"] = FactorRange(factors=list(reversed(list(rows))))
    if left_right:
        given["x_range"] = left_right
    if bottom_top:
        given["y_range"] = bottom_top
    drawn = figure(
        height=height, sizing_mode="stretch_width", x_axis_label=across, y_axis_label=up,
        tooltips=list(tooltips) or None, tools=tools, background_fill_alpha=0.0,
        border_fill_alpha=0.0, toolbar_location="above", **given,
    )  # fmt: skip
    drawn.toolbar.logo = None
    for axis in drawn.axis:
        axis.axis_label_text_color = axis.major_label_text_color = BETWEEN
    drawn.grid.grid_line_color, drawn.grid.grid_line_alpha = BETWEEN, 0.25
    for tool in drawn.tools:
        if isinstance(tool, WheelZoomTool):
            tool.modifiers = {"ctrl": True}  # without it the wheel scrolls the page
    return drawn


def bare(drawn: Chart) -> None:
    """Take the axes away: a drawing, not a plot."""
    drawn.axis.visible = False
    drawn.grid.visible = False


def level(drawn: Chart, at: float) -> None:
    """A dashed line at a value of the axis upwards."""
    drawn.add_layout(Span(location=at, dimension="width", line_dash="dashed", line_color="#c33"))


def legend(colors: Mapping[str, str]) -> Markup:
    """What the colours of a chart stand for, above it: HTML, which wraps on a narrow screen."""
    shown = "".join(f"<li>{swatch(color)}{text(name)}</li>" for name, color in colors.items())
    return f'<ul class="legend">{shown}</ul>'


def cause_legend(names: Iterable[str]) -> Markup:
    """The legend of causes of seconds, or of categories of bytes."""
    return legend({name: CAUSE_COLORS[name] for name in names})


def packed(values: Iterable[float]) -> NDArray[np.float32]:
    """Numbers for a chart in four bytes each: what a screen can show, and a fraction of their text."""
    return np.fromiter(values, dtype=np.float32)


def stage_color(stage: int) -> str:
    """Of twenty, in turn."""
    found: str = Category20_20[stage % len(Category20_20)]
    return found


def label(value: object, longest: int = 40) -> str:
    """Foreign text for a canvas: short, and nothing that Bokeh takes for mathematics."""
    return shortened(value, longest).replace("$", "S").replace("\\", "/")


def library() -> Markup:
    """Bokeh's own script, once."""
    found: str = Resources(mode="inline", components=["bokeh"]).render_js()
    return found


def embedded(charts: Sequence[Chart]) -> tuple[Markup, tuple[Markup, ...]]:
    """The script that draws the charts, and of each the place where it goes."""
    if not charts:
        return "", ()
    script, places = components(tuple(charts))
    return script, tuple(places)
