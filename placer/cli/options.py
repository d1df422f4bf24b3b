"""What several commands share: arguments and flags, the plan they are given, a result for people or for machines."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import RenderableType

from placer import legality
from placer.cluster.cluster import Cluster
from placer.costs.step_estimate import estimate
from placer.errors import UsageError, require_extra
from placer.io.bounds import MOST
from placer.io.files import read_text, require_writable
from placer.plans.plan import Plan, is_edited
from placer.plans.provenance import import_model, require_fresh
from placer.report.documents import Document
from placer.report.printing import show

PICTURES = (".svg", ".png", ".pdf")

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document whose keys carry units.")]
PlanFile = Annotated[Path, typer.Argument(metavar="PLAN", help="A plan.json made by `placer plan`.")]
Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="package.module:factory, a Hugging Face config.json or name (meta-llama/Llama-3.1-8B), timm:NAME, "
        "torchvision:NAME.",
        show_default=False,
    ),
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
        "x=8x3x32x32,y=8:int64; one number without dims is its type alone, weight=:float32; what is the "
        "same in every step, and read by forward, by its numbers, grid=[[1,4,4],[1,4,4]]. "
        "Default: what the model's own configuration implies.",
    ),
]


def parsed_loads(text: str) -> tuple[float, ...]:
    """`8,1,1,1`, or the numbers of a file of that name, apart by commas or white space. Raises UsageError."""
    listed = text if set(text) <= set(NUMBERS) or "," in text else read_text(text, "the loads of experts")
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
Timeout = typer.Option(
    callback=_seconds,
    help="Seconds after which ranks that do not answer are given up, once all have started: for that each has 300.",
)
Compile = Annotated[bool, typer.Option("--compile", help="Run blocks by torch.compile.")]
CompileBackend = Annotated[
    Literal["inductor", "aot_eager"], typer.Option(help="With --compile: what compiles; aot_eager needs no compiler.")
]
Backend = Annotated[
    Literal["auto", "gloo", "mpi", "nccl"],
    typer.Option(help="What ranks communicate by: auto is gloo on CPUs, NCCL on GPUs; mpi where mpirun starts them."),
]
Steps = Annotated[int, typer.Option(min=1, help="Training steps.")]


def compiler(compile: bool, backend: str) -> str:
    """The backend that compiles, "" for op by op. Raises UsageError where one is named and nothing is compiled."""
    if backend != "inductor" and not compile:
        raise UsageError(f"--compile-backend {backend} was given without --compile; add that, or leave it out")
    return backend if compile else ""


def print_result(view: RenderableType, document: Document, as_json: bool) -> None:
    """Print one of the two on standard output."""
    if as_json:
        print(json.dumps(document, indent=1))
    else:
        show(view)


def first_rank() -> bool:
    """Whether this process speaks for all: rank 0 under torchrun, any process without it, and one of no such run."""
    rank, size = os.environ.get("RANK", "0"), os.environ.get("WORLD_SIZE", "")
    return not rank.isdecimal() or int(rank) == 0 or (size.isdecimal() and int(rank) >= int(size))


def warn(notes: Iterable[str]) -> None:
    """Tell what is worth knowing beside the result, on standard error, once."""
    for note in notes if first_rank() else ():
        print(f"placer: {note}", file=sys.stderr)


ForCluster = Annotated[
    str | None, typer.Option("--cluster", metavar="CLUSTER", help="Refuse a plan that was made for other machines.")
]


def load_plan(path: Path, cluster: str | None, *, illegal: bool = False, runs: bool = False) -> Plan:
    """The plan of a file; StalePlanError where it was made for another cluster than the one described.

    `runs`: the command will run the plan's model; its module is imported, as it may register rules of its own.

    What was predicted for a plan that somebody has changed since is predicted anew, and said so; one that breaks rules
    now is refused, unless `illegal` asks for it as it is, without a prediction.
    """
    text = read_text(path, "the plan")
    plan = Plan.from_json(text, str(path))
    if cluster is not None:
        require_fresh(plan, cluster=Cluster.load(cluster))
    if runs:
        import_model(plan)
    return _predicted_anew(plan, path, illegal) if is_edited(text) else plan


def _predicted_anew(plan: Plan, path: Path, illegal: bool) -> Plan:
    """The plan with a prediction of what it says now; without any where it breaks rules."""
    if not illegal:
        legality.require(plan)
    if plan.rows != plan.graph.rows:
        raise UsageError(
            f"{path} was changed: its microbatches add up to {plan.rows} rows, its batch has {plan.graph.rows}; "
            "make them add up, or plan again with another --batch"
        )
    if first_rank():
        print(
            f"placer: {path} was changed since placer wrote it (or an older placer wrote it): seconds and bytes are "
            "predicted anew, its bound and runners-up may not hold any more and are left out",
            file=sys.stderr,
        )
    ledger = None if legality.check(plan) else estimate(plan)
    if ledger is not None and not ledger.step_seconds <= MOST:
        raise UsageError(f"{path} was changed: its step would take {ledger.step_seconds:.3g} s; correct its numbers")
    return replace(plan, ledger=ledger, bound=None, alternatives=())


def require_picture(path: Path) -> None:
    """Raise UsageError where `--plot` names no picture that can be drawn and written."""
    require_extra("plot", "matplotlib")
    if path.suffix.lower() not in PICTURES:
        raise UsageError(f"--plot {path} is no {', '.join(PICTURES)} file; give it such a name")
    require_writable(path)
