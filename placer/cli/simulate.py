"""`placer simulate`: play a plan event by event."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Group
from rich.text import Text

from placer.api import simulate
from placer.cli.options import Json, PlanFile
from placer.cli.output import print_result
from placer.cli.plan_file import ForCluster, load_plan
from placer.files import require_writable, write_text
from placer.report import ledger_document
from placer.report.plan_view import memory_view, seconds_view
from placer.report.units import seconds_text

NAME = "simulate"
HELP = """Play one step of a plan event by event; write it as a trace for Perfetto or chrome://tracing.

Example: placer simulate plan.json --trace trace.json
"""


def run(
    plan_file: PlanFile,
    cluster: ForCluster = None,
    trace: Annotated[Path | None, typer.Option(help="Write a Chrome trace here; - is stdout.")] = None,
    json: Json = False,
) -> None:
    """Simulate, print, export."""
    if trace is not None:
        require_writable(trace)
    plan = load_plan(plan_file, cluster)
    timeline = simulate(plan)
    if trace is not None:
        write_text(trace, timeline.to_chrome_json())
    if str(trace) == "-":
        return
    ledger = timeline.ledger
    view = Group(
        Text(f"simulated step {seconds_text(ledger.step_seconds)}", style="bold"),
        seconds_view(ledger),
        memory_view(plan, ledger),
    )
    print_result(view, ledger_document(ledger), json)
