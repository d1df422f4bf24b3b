"""`placer bench predictions`: published runs predicted as a user's plan is, beside what was measured."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from placer.cli.options import Json, print_result
from placer.errors import UsageError


def predictions(
    data: Annotated[Path, typer.Option(help="A CSV file of measured runs, or a folder of them.", show_default=False)],
    only: Annotated[
        list[str] | None, typer.Option("--dataset", help="Only rows of this table; again for more. Default: all.")
    ] = None,
    html: Annotated[Path | None, typer.Option(help="Write the table as a page, too.")] = None,
    json: Json = False,
) -> None:
    """Predict each row of published tables: errors by table, the best constant's beside them, what is missing."""
    from placer.report.bench.predictions_page import write_page
    from placer.report.bench.predictions_table import document, view
    from placer.strategies.predictions.intervals import with_intervals
    from placer.strategies.predictions.prediction import predictions as predicted
    from placer.strategies.predictions.rows import read_rows
    from placer.strategies.predictions.slicing import slices
    from placer.tracer.published.models import model_graph

    rows = read_rows(data)
    known = dict.fromkeys(row.dataset for row in rows)
    unknown = [name for name in only or () if name not in known]
    if unknown:
        raise UsageError(f"--dataset is {unknown[0]}; {data} holds {', '.join(known)}")
    chosen = [row for row in rows if not only or row.dataset in only]
    found = slices(with_intervals(tuple(predicted(chosen, model_graph))))
    if html is not None:
        write_page(html, found)
    print_result(view(found), document(found), json)
