"""Place a graph with given costs on devices, and say how far that can be from the best.

FILE is a dnn-partitioning JSON file, a PipeDream graph.txt, a DOPPLER graph, or another format that `--format` lists.

Example: placer place bert24_training.json --json
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from placer.cli.options import Json, print_result
from placer.errors import UsageError
from placer.io.units import quantity
from placer.placement.formats import EXACT, OBJECTIVES, READERS, PlaceRequest, read_problem
from placer.placement.solvers import place
from placer.report.placement import answer_document, answer_view


def run(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The graph with its costs.", show_default=False)],
    objective: Annotated[
        str | None, typer.Option(help=f"What to minimise: {', '.join(OBJECTIVES)}; default: the format's.")
    ] = None,
    free_form: Annotated[bool, typer.Option("--free-form", help="A device's nodes need not be contiguous.")] = False,
    strategy: Annotated[
        str,
        typer.Option(
            help=f"{EXACT} or min_cut (with a proof), local, genetic, policy, heft, etf, sct, critical_path, greedy, "
            "metis or single."
        ),
    ] = EXACT,
    devices: Annotated[int | None, typer.Option(help="Accelerators; default: what the file says.")] = None,
    memory: Annotated[str | None, typer.Option(help="Of each accelerator, as in '16 GiB'.")] = None,
    bandwidth: Annotated[
        str | None, typer.Option(help="Between devices, of profiles and Piper's files, as in '1 GB/s'.")
    ] = None,
    microbatches: Annotated[int | None, typer.Option(help="In a batch, of Piper's files.")] = None,
    budget: Annotated[int | None, typer.Option(help="Stop after so many evaluated loads with what is there.")] = None,
    seconds: Annotated[float | None, typer.Option(help="Stop solving after that time with what is there.")] = None,
    seed: Annotated[int, typer.Option(help="Of local, genetic and policy.")] = 0,
    format: Annotated[str | None, typer.Option(help=f"The file's format: {', '.join(READERS)}.")] = None,
    json: Json = False,
) -> None:
    """Read, place, print."""
    request = PlaceRequest(
        objective=objective, free_form=free_form, devices=devices, microbatches=microbatches, budget=budget,
        seconds=seconds, strategy=strategy, seed=seed,
        memory=None if memory is None else quantity(memory, "bytes"),
        bandwidth=None if bandwidth is None else quantity(bandwidth, "bandwidth"),
    )  # fmt: skip
    if file.is_dir():
        raise UsageError(f"the placement problem {file} is a folder; name a file in it")
    answer = place(read_problem(file, request, format=format), request)
    print_result(answer_view(answer), answer_document(answer), json)
