"""Predict a grid of models, machines, networks, precisions and counts, and hold it against published rows.

Example: placer sweep examples/sweep/azure.yaml --published azure.csv --plot azure.svg
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Annotated

import typer

from placer.api import problem, solve
from placer.cli.commands.planning.plan import loss_function
from placer.cli.options import Json, print_result, require_picture
from placer.errors import UsageError
from placer.io.files import require_writable, write_bytes, write_text
from placer.plans.settings import Precision, RunSettings
from placer.report.sweep import sweep_csv, sweep_document, sweep_view
from placer.search.problem import Problem
from placer.search.sweep import Cell, Predicted, Sweep, predicted, read_published, read_sweep


def run(
    file: Annotated[str, typer.Argument(metavar="FILE", help="The grid, a YAML file.", show_default=False)],
    published: Annotated[
        list[str] | None, typer.Option(metavar="CSV", help="Measured rows: predict these, not the grid; several times.")
    ] = None,
    only: Annotated[str | None, typer.Option(help="Models of the grid, separated by commas; default: all.")] = None,
    output: Annotated[str | None, typer.Option("-o", "--output", help="Write all cells as CSV.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw rows/s over devices: .svg, .png or .pdf.")] = None,
    json: Json = False,
) -> None:
    """Read, predict, print."""
    if plot is not None:
        require_picture(plot)
    if output is not None:
        require_writable(output)
    sweep = _chosen(read_sweep(file), only)
    found, left = _predicted(sweep, published or ())
    if output is not None:
        write_text(output, sweep_csv(found))
    if plot is not None:
        from placer.report.sweep_plot import drawn  # an extra

        write_bytes(plot, drawn(found, plot.suffix.lower()[1:]))
    if output != "-":
        print_result(sweep_view(found, left), sweep_document(found, left), json)


def _chosen(sweep: Sweep, only: str | None) -> Sweep:
    names = list(sweep.models) if only is None else [name.strip() for name in only.split(",")]
    unknown = [name for name in names if name not in sweep.models]
    if unknown:
        raise UsageError(f"--only names {unknown[0]!r}; the file has {', '.join(sweep.models)}")
    return sweep.model_copy(update={"models": {name: sweep.models[name] for name in names}})


def _predicted(sweep: Sweep, published: Sequence[str]) -> tuple[list[Predicted], int]:
    @cache
    def captured(name: str, precision: Precision) -> Problem:
        entry = sweep.models[name]
        return problem(
            entry.model, f"{next(iter(sweep.machines.values()))}x1", batch=entry.batch,
            loss_fn=loss_function(entry.loss),
            settings=RunSettings(precision=precision, optimizer=sweep.optimizer, batch_norm=sweep.batch_norm),
        )  # fmt: skip

    def of(cell: Cell) -> Problem:
        return captured(cell.model, cell.precision)

    if not published:
        return [predicted(sweep, cell, of(cell), solve) for cell in sweep.cells], 0
    read = [read_published(path, sweep) for path in published]
    rows = [row for some, _ in read for row in some]
    if not rows:
        raise UsageError("no published row lies in the grid; give its models, machines and networks the rows' names")
    found = [predicted(sweep, row.cell, of(row.cell), solve, row) for row in rows]
    return found, sum(left for _, left in read)
