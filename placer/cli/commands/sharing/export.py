"""Write a plan's layout in the words of another framework, or say everything that it has no words for.

placer export plan.json --to megatron -o plan.args
placer export plan.json --to torchtitan --nearest -o plan.py
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from placer.api import problem_again, solve
from placer.cli.options import Json, PlanFile, load_plan, print_result
from placer.errors import InfeasibleError, UsageError
from placer.io.files import require_writable, write_text
from placer.plans.plan import Plan
from placer.report.documents import Document
from placer.report.printing import seconds_text
from placer.search.asked import parse_pins
from placer.targets.frameworks.export import InexpressibleError, export_plan

FrameworkName = Literal["torchtitan", "megatron", "bridge", "automodel", "deepspeed", "accelerate", "transformers"]


def run(
    plan_file: PlanFile,
    to: Annotated[FrameworkName, typer.Option(help="The framework that is to train.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="The file; `-` is standard output.")],
    nearest: Annotated[
        bool,
        typer.Option(
            "--nearest", help="Where it has no words for the plan: plan again for what it has, and say the cost."
        ),
    ] = False,
    base: Annotated[
        str, typer.Option(help="For torchtitan: its configuration of the model, package.module:function.")
    ] = "",
    json: Json = False,
) -> None:
    """Read, export, save, print."""
    require_writable(output)
    plan = load_plan(plan_file, None)
    told, reasons, dropped = plan, tuple[str, ...](), tuple[str, ...]()
    try:
        exported = export_plan(plan, to, base)
    except InexpressibleError as error:
        if not nearest:
            raise
        reasons = error.reasons
        told, dropped = _nearest(plan, to)
        exported = export_plan(told, to, base)
    write_text(output, exported.text)
    if str(output) != "-":
        document: Document = {**_document(plan, told, reasons, output, to), "dropped_pins": list(dropped)}
        lost = f"pins of the plan that were not kept, as nothing was found under them: {', '.join(dropped)}"
        notes = (*exported.notes, lost) if dropped else exported.notes
        print_result(_view(plan, told, reasons, notes, output), document, json)


def _nearest(plan: Plan, to: FrameworkName) -> tuple[Plan, tuple[str, ...]]:
    """The nearest plan under the pins that the plan was asked with, all but one or none of them; and those not kept."""
    free, pins = problem_again(plan), plan.asked.pins
    for dropped in dict.fromkeys(((), *((pin,) for pin in pins), pins)):
        kept = tuple(pin for pin in pins if pin not in dropped)
        try:
            return solve(replace(free, pins=parse_pins(kept, plan.graph)), framework=to), dropped
        except (InfeasibleError, UsageError):
            if dropped == pins:
                raise
    raise AssertionError("the last of them is without pins")


def _view(plan: Plan, told: Plan, reasons: tuple[str, ...], notes: tuple[str, ...], output: Path) -> RenderableType:
    lines = [Text(note) for note in notes]
    if told is not plan:
        lines.insert(0, Text(f"the plan cannot be told: {'; '.join(reasons)}"))
        lines.insert(1, Text(f"the nearest found takes {_step(told)} a step instead of {_step(plan)}"))
    return Group(*lines, Text(f"written to {output}"))


def _document(plan: Plan, told: Plan, reasons: tuple[str, ...], output: Path, to: str) -> Document:
    return {
        "framework": to,
        "file": str(output),
        "lacked": list(reasons),
        "step_time_seconds": plan.ledger.step_seconds if plan.ledger else None,
        "exported_step_time_seconds": told.ledger.step_seconds if told.ledger else None,
    }


def _step(plan: Plan) -> str:
    return seconds_text(plan.ledger.step_seconds) if plan.ledger else "unknown"
