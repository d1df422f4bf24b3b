"""Make a layout that was written by hand for another framework a plan, and say what would be done instead.

placer import --from megatron train.sh meta-llama/Llama-3.1-8B --cluster h100x8*4 -o today.json
placer import --from torchtitan train.toml config.json --cluster h100x8 -o today.json
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from placer.api import completed, problem, solve
from placer.cli.commands.planning.plan import Budget, Loss, loss_function
from placer.cli.commands.planning.plan import Precision as PrecisionFlag
from placer.cli.options import Batch, ClusterSpec, Json, Model, print_result, warn
from placer.cluster.cluster import Cluster
from placer.errors import UsageError
from placer.io.files import read_text, require_writable
from placer.plans.plan import Plan
from placer.plans.settings import RunSettings
from placer.report.documents import Document, plan_document
from placer.report.plan_table import plan_view
from placer.report.printing import seconds_text
from placer.search.asked import parse_pins
from placer.search.judge import solve_with
from placer.search.progress_line import progress_line
from placer.targets.frameworks.asked_layout import AskedLayout
from placer.targets.frameworks.even_rows import with_even_rows
from placer.targets.frameworks.megatron_file import read_megatron
from placer.targets.frameworks.torchtitan_file import read_torchtitan


def run(
    file: Annotated[Path, typer.Argument(help="A configuration of torchtitan (.toml, .py), or Megatron's flags.")],
    model: Model,
    source: Annotated[Literal["torchtitan", "megatron"], typer.Option("--from", help="Whose file it is.")],
    cluster: ClusterSpec = "local",
    output: Annotated[Path | None, typer.Option("-o", "--output", help="The plan of the layout.")] = None,
    batch: Batch = None,
    loss: Loss = None,
    precision: PrecisionFlag = "bfloat16",
    budget: Budget = None,
    json: Json = False,
) -> None:
    """Read, plan under what the file says, plan freely, save, print both."""
    if output is not None:
        require_writable(output)
    asked = _read(file, source)
    asked.replicas(Cluster.load(cluster).size)  # before the model is built
    given = problem(
        model, cluster, batch=_batch(asked, batch), loss_fn=loss_function(loss),
        settings=RunSettings(precision=asked.precision or precision), budget=budget,
    )  # fmt: skip
    pins = parse_pins(asked.pins(given.graph, given.cluster.size), given.graph)
    warn(f"{asked.framework}'s {word}" for word in asked.unread)
    free = solve(given)
    as_written = replace(given, pins=pins)
    with progress_line(given.until):
        today = completed(as_written, with_even_rows(as_written, solve_with(as_written, "auto")))
    if output is not None:
        today.save(output)
    print_result(_view(today, free, output), _document(today, free, output), json)


def _read(file: Path, source: str) -> AskedLayout:
    text = read_text(file, "the layout")
    return read_megatron(text, str(file)) if source == "megatron" else read_torchtitan(text, str(file))


def _batch(asked: AskedLayout, batch: str | None) -> str:
    """The batch that was asked for, or the file's own. Raises UsageError where neither says one."""
    if batch:
        return batch
    if asked.rows and asked.length:
        return f"{asked.rows}x{asked.length}"
    raise UsageError("the file says no global batch; give it, as in --batch 256x4096")


def _view(today: Plan, free: Plan, output: Path | None) -> RenderableType:
    saved = [Text(f"written to {output}")] if output is not None else []
    return Group(plan_view(today), Text(_beside(today, free)), *saved)


def _beside(today: Plan, free: Plan) -> str:
    assert today.ledger is not None and free.ledger is not None  # the judge put them there
    ours, theirs = free.ledger.step_seconds, today.ledger.step_seconds
    if ours >= theirs:
        return f"no plan that was searched is faster than the {seconds_text(theirs)} of this layout"
    return (
        f"this layout takes {seconds_text(theirs)} a step; the best plan found takes {seconds_text(ours)} "
        f"({theirs / ours:.2f} times as fast): placer plan without pins"
    )


def _document(today: Plan, free: Plan, output: Path | None) -> Document:
    return {
        "layout": plan_document(today),
        "best_found": plan_document(free),
        "plan": None if output is None else str(output),
    }
