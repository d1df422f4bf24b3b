"""Capture a small GPT-2, compare every strategy, plan, train on two processes, compare with one device.

Example: placer demo --keep demo/
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from placer.cli.options import Json, Steps, print_result


def run(
    steps: Steps = 8,
    keep: Annotated[Path | None, typer.Option(help="A folder for plan.json, trace.json and the log.")] = None,
    json: Json = False,
) -> None:
    """Run, narrating on standard output (standard error under --json); exit 1 where the losses differ."""
    stream = sys.stderr if json else sys.stdout
    print("placer demo: loading torch and transformers", file=stream, flush=True)
    from placer.cli.commands.demo.story import outcome_document, outcome_view, tell  # the demo needs torch

    outcome = tell(steps=steps, keep=keep, stream=stream)
    print_result(outcome_view(outcome), outcome_document(outcome), json)
    if not outcome.matches:
        raise typer.Exit(1)
