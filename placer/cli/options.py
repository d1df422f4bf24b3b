"""Arguments and flags that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from placer.errors import UsageError
from placer.io.files import read_text

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document whose keys carry units.")]
PlanFile = Annotated[Path, typer.Argument(metavar="PLAN", help="A plan.json made by `placer plan`.")]
Model = Annotated[
    str,
    typer.Argument(metavar="MODEL", help="package.module:factory, or a Hugging Face config.json.", show_default=False),
]
ClusterSpec = Annotated[
    str,
    typer.Option(
        "--cluster",
        metavar="CLUSTER",
        help="A YAML file, a catalogue name with counts (h100x8*4), local, or localx4 for this machine as 4 devices.",
    ),
]
Batch = Annotated[
    str | None,
    typer.Option(
        metavar="SHAPE",
        help="The global batch: 256x1024 (rows x length), or by name, input_ids=8x128,labels=8x128; with a type, "
        "x=8x3x32x32,y=8:int64. "
        "Default: what the model's own configuration implies.",
    ),
]


def parsed_loads(text: str) -> tuple[float, ...]:
    """`8,1,1,1`, or the numbers of a file of that name, apart by commas or white space. Raises UsageError."""
    listed = text if set(text) <= set(NUMBERS) else read_text(text, "the loads of experts")
    try:
        return tuple(float(word) for word in listed.replace(",", " ").split())
    except ValueError as error:
        raise UsageError(f"--expert-loads: {error}; give a number for each expert, as in 8,1,1,1") from None


# What a list of numbers is written with.
NUMBERS = "0123456789.eE+-, "


def _seconds(value: float) -> float:
    if not (0 < value < MOST_SECONDS):
        raise UsageError(f"--timeout is {value}; give a number of seconds above 0 and below {MOST_SECONDS:.0f}")
    return value


MOST_SECONDS = 1e8  # three years: what a person means is less, and torch's timeouts end at some hundred years
Timeout = typer.Option(callback=_seconds, help="Seconds after which ranks that do not answer are given up.")
Compile = Annotated[bool, typer.Option("--compile", help="Run blocks by torch.compile.")]
CompileBackend = Annotated[
    Literal["inductor", "aot_eager"], typer.Option(help="With --compile: what compiles; aot_eager needs no compiler.")
]
Steps = Annotated[int, typer.Option(min=1, help="Training steps.")]
