"""A picture of a sweep: rows a second over devices, a panel for each model; points are published rows."""

from __future__ import annotations

import io
from collections.abc import Sequence

from matplotlib import colormaps
from matplotlib.figure import Figure

from placer.search.sweep import Predicted

COLOURS = colormaps["tab20"]


def drawn(found: Sequence[Predicted], format: str) -> bytes:
    """The picture in a format of matplotlib's (svg, png, pdf); both axes are logarithmic."""
    models = list(dict.fromkeys(one.cell.model for one in found))
    kinds = list(dict.fromkeys((one.cell.machine, one.cell.network) for one in found))
    columns = min(3, len(models))
    lines = -(-len(models) // columns)
    figure = Figure(figsize=(4.5 * columns, 3.8 * lines + 0.4 * len(kinds)), layout="constrained")
    panels = figure.subplots(lines, columns, squeeze=False).flat
    for axes, model in zip(panels, models, strict=False):
        for number, kind in enumerate(kinds):
            own = sorted(
                (one for one in found if one.cell.model == model and (one.cell.machine, one.cell.network) == kind),
                key=lambda one: one.cell.count,
            )
            colour = COLOURS(number % COLOURS.N)
            made = [(one.cell.count, one.rows_per_second) for one in own if one.rows_per_second is not None]
            axes.plot(*zip(*made, strict=True) if made else ([], []), "-", color=colour, label=", ".join(kind))
            said = [(one.cell.count, one.published.rows_per_second) for one in own if one.published is not None]
            axes.plot(*zip(*said, strict=True) if said else ([], []), "o", color=colour, markersize=4)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_title(model)
        axes.set_xlabel("devices")
        axes.set_ylabel("rows/s (lines: predicted, points: published)")
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", fontsize="small")
    file = io.BytesIO()
    figure.savefig(file, format=format)
    return file.getvalue()
