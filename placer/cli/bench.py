"""`placer bench`: published problems, our results beside the published ones."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from placer.cli.options import Json
from placer.cli.output import print_result
from placer.errors import UsageError
from placer.placement.bench_row import FAMILIES, BenchRow, family
from placer.report.placement import bench_document, bench_view

NAME = "bench"
app = typer.Typer(
    name=NAME, help="Published problems: our results beside the published ones.", no_args_is_help=True,
    rich_markup_mode=None,
)  # fmt: skip


@app.callback()
def commands() -> None:
    """Keeps `placement` a subcommand while it is the only one."""


@app.command("placement")
def placement(
    data: Annotated[Path, typer.Option(help="The folder that holds the families' folders.", show_default=False)],
    only: Annotated[str | None, typer.Option("--family", help=f"One of {', '.join(FAMILIES)}; default: all.")] = None,
    json: Json = False,
) -> None:
    """Place every published problem; value, optimum or best known, gap, proven bound, seconds, published values."""
    if not data.is_dir():
        raise UsageError(
            f"the folder {data} does not exist; name the folder that holds dnn-partitioning and the others"
        )
    rows: list[BenchRow] = []
    for name in FAMILIES if only is None else (only,):
        rows.extend(family(name)(data))
    if not rows:
        raise UsageError(f"{data} holds none of the families {', '.join(FAMILIES)}; name the folder that does")
    print_result(bench_view(rows), bench_document(rows), json)
