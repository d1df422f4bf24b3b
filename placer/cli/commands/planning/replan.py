"""Plan again for a changed cluster, with the same model, batch, settings, seed and pins.

Example: placer replan plan.json --cluster new.yaml --checkpoint ckpt/ -o new.json
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from placer.api import replan
from placer.cli.options import ClusterSpec, Json, PlanFile, load_plan, print_result, warn
from placer.io.files import require_writable
from placer.report.documents import Document
from placer.report.replan import replan_document, replan_view, state_moved


def run(
    plan_file: PlanFile,
    cluster: ClusterSpec,
    checkpoint: Annotated[Path | None, typer.Option(help="The checkpoints that the new plan is to go on from.")] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="The new plan; beside the old one, NAME.new.json, by default.")
    ] = None,
    pin: Annotated[
        list[str] | None, typer.Option(help="Pins instead of those of the plan, as for placer plan; none drops them.")
    ] = None,
    strategy: Annotated[str, typer.Option(help="Another strategy than the one asked for then.")] = "",
    json: Json = False,
) -> None:
    """Check the checkpoint, plan, print, save."""
    target = output or plan_file.with_name(f"{plan_file.stem}.new.json")
    require_writable(target)
    old = load_plan(plan_file, None)
    found: Document = {}
    lines: list[RenderableType] = []
    if checkpoint is not None:
        from placer.runtime.checkpoint.compatibility import last_fitting  # reading a checkpoint needs torch

        fitting = last_fitting(checkpoint, old)
        warn(fitting.notes)
        found = {"checkpoint": str(fitting.path), "step": fitting.step, "checkpoint_bytes": fitting.bytes}
        lines = [Text(f"{fitting.path} fits the model: the run goes on after step {fitting.step}")]
    new = replan(old, cluster, strategy=strategy, pins=None if not pin else [one for one in pin if one != "none"])
    new.save(target)
    where = f" --checkpoint {checkpoint}" if checkpoint is not None else ""
    run_it = f"torchrun --nproc-per-node {new.world_size} --no-python placer execute {target}{where}"
    moving = state_moved(new)
    view = Group(replan_view(old, new, moving), *lines, Text(f"written to {target}; go on with: {run_it}"))
    print_result(view, {**replan_document(old, new, moving), **found, "plan": str(target)}, json)
