"""Play one step of a plan event by event; write it as a trace for Perfetto or chrome://tracing.

Example: placer simulate plan.json --trace trace.json
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Group
from rich.text import Text

from placer import legality
from placer.api import simulate
from placer.cli.options import ForCluster, Json, PlanFile, load_plan, print_result
from placer.io.files import require_writable, write_text
from placer.plans.ledger import Ledger
from placer.plans.plan import Plan
from placer.report.documents import ledger_document
from placer.report.plan_table import doubts, memory_view, seconds_view
from placer.report.printing import seconds_text


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
    legality.require(plan)
    timeline = simulate(plan)
    if trace is not None:
        write_text(trace, timeline.to_chrome_json())
    if str(trace) == "-":
        return
    ledger = timeline.ledger
    view = Group(
        Text(headline(plan, ledger), style="bold"),
        seconds_view(ledger),
        memory_view(plan, ledger),
        *doubts(plan),
    )
    print_result(view, ledger_document(ledger), json)


def headline(plan: Plan, played: Ledger) -> str:
    """The step as it was played, and what the plan says of it, which is the closed form that searches compare."""
    text = f"simulated step {seconds_text(played.step_seconds)}, played event by event"
    if plan.ledger is None:
        return text
    return f"{text}; the plan's closed form, which explain shows, says {seconds_text(plan.ledger.step_seconds)}"
