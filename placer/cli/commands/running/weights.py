"""Write the weights of the last checkpoint to a Hugging Face folder.

Example: placer weights plan.json --checkpoint ckpt/ --to trained/
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from placer.cli.options import Json, PlanFile, load_plan, print_result, warn
from placer.report.printing import bytes_text


def run(
    plan_file: PlanFile,
    checkpoint: Annotated[Path, typer.Option(help="The checkpoints of the run, or one of them.")],
    to: Annotated[Path, typer.Option(help="The new folder.")],
    json: Json = False,
) -> None:
    """Export, print."""
    from placer.runtime.checkpoint.compatibility import last_fitting, planned_model
    from placer.runtime.weights.hf_export import export_weights  # the runtime needs torch

    plan = load_plan(plan_file, None)
    found = last_fitting(checkpoint, plan)
    warn(found.notes)
    done = export_weights(found.reader, planned_model(plan), to)
    print_result(
        Text(
            f"{done.tensors} tensors, {bytes_text(done.bytes)}, of step {found.step} in {done.files} "
            f"{'file' if done.files == 1 else 'files'} in {done.folder}"
        ),
        {
            "folder": done.folder,
            "step": found.step,
            "files": done.files,
            "tensors": done.tensors,
            "bytes": done.bytes,
        },
        json,
    )
