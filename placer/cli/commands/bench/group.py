"""`placer bench`: published problems beside published results, plans beside what a person writes with torch, and how
many plans a search evaluates a second."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from placer.cli.commands.bench.evaluate import evaluate
from placer.cli.commands.bench.parallel import parallel
from placer.cli.commands.bench.predictions import predictions
from placer.cli.commands.bench.strategies import strategies
from placer.cli.options import Json, print_result
from placer.errors import UsageError
from placer.placement.benchmark import FAMILIES, BenchRow, family
from placer.report.bench.runtime import SpeedRow, ratio, speeds_document, speeds_view
from placer.report.placement import bench_document, bench_view

if TYPE_CHECKING:
    from placer.runtime.bench import Compared


app = typer.Typer(
    name="bench", help="Published problems and hand-written code: our results beside theirs.", no_args_is_help=True,
    rich_markup_mode=None,
)  # fmt: skip


app.command("evaluate")(evaluate)
app.command("predictions")(predictions)
app.command("parallel")(parallel)
app.command("strategies")(strategies)


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


@app.command("runtime")
def runtime(
    only: Annotated[str | None, typer.Option("--plan", help="data, pipeline or tensor; default: all.")] = None,
    hidden: Annotated[str, typer.Option(help="Widths of the model, separated by commas.")] = "64,256",
    layers: Annotated[int, typer.Option(min=2, help="Layers of the model.")] = 4,
    length: Annotated[int, typer.Option(min=2, help="Length of its sequences.")] = 64,
    rounds: Annotated[int, typer.Option(min=2, help="Rounds in which all take turns.")] = 15,
    steps: Annotated[int, typer.Option(min=1, help="Steps of a turn.")] = 5,
    json: Json = False,
) -> None:
    """The same plan by placer, by hand and by torch's wrappers, taking turns on two processes of this machine."""
    from placer.runtime.bench import KINDS, Size, compared

    if only is not None and only not in KINDS:
        raise UsageError(f"--plan is {only}; give one of {', '.join(KINDS)}")
    rows: list[SpeedRow] = []
    for width in _widths(hidden):
        size = Size(hidden=width, layers=layers, length=length)
        for kind in KINDS if only is None else (only,):
            rows.extend(_speed_rows(compared(kind, size, rounds=rounds, steps=steps)))
    print_result(speeds_view(rows), speeds_document(rows), json)


def _widths(text: str) -> tuple[int, ...]:
    try:
        found = tuple(int(word) for word in text.split(","))
    except ValueError:
        found = ()
    if not found or any(width < 16 or width % 16 for width in found):
        raise UsageError(f"--hidden is {text!r}; give multiples of 16, such as 64,256")
    return found


def _speed_rows(found: Compared) -> list[SpeedRow]:
    ours, by_hand, wrapper = found.times
    return [
        SpeedRow(
            kind=found.kind,
            hidden=found.size.hidden,
            name=one.name,
            seconds=one.step_seconds,
            processor_seconds=one.step_processor_seconds,
            ratio=None if one is ours else ratio(ours.seconds, one.seconds),
            processor_ratio=None if one is ours else ratio(ours.processor_seconds, one.processor_seconds),
            wrapper=wrapper.name if one is by_hand else "",
            share=ratio(wrapper.seconds, by_hand.seconds) if one is by_hand else None,
        )
        for one in found.times
    ]
