"""Run some steps as planned and on one device; compare loss, gradients and updated parameters.

Starts its own ranks on this machine when not under torchrun; exit 1 where something differs. Errors are relative to a
tensor's largest element; a gradient that is zero but for rounding (a bias before batch norm) is held to the sum of the
magnitudes it was summed from.

Example: placer verify plan.json --steps 3
"""

from __future__ import annotations

import json as json_module
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from pydantic import TypeAdapter
from rich.text import Text

from placer import legality
from placer.cli.options import (
    Compile,
    CompileBackend,
    ForCluster,
    Json,
    PlanFile,
    Steps,
    Timeout,
    first_rank,
    load_plan,
    print_result,
)
from placer.io.files import write_text
from placer.plans.plan import Plan
from placer.report.documents import Document

if TYPE_CHECKING:
    from placer.runtime import VerifyReport


PROGRESS = "placer: "


def run(
    plan_file: PlanFile,
    steps: Steps = 3,
    cluster: ForCluster = None,
    compile: Compile = False,
    compile_backend: CompileBackend = "inductor",
    timeout: Annotated[float, Timeout] = 600.0,
    report: Annotated[
        str, typer.Option(hidden=True, help="Where ranks started by this command leave the result.")
    ] = "",
    json: Json = False,
) -> None:
    """Compare, print."""
    from placer.runtime.distributed.world import under_torchrun
    from placer.runtime.executor.compile import require_compilable
    from placer.runtime.training.trust import require_runnable

    plan = load_plan(plan_file, cluster, runs=True)
    legality.require(plan)
    backend = compile_backend if compile else ""
    require_compilable(plan, backend)
    for warning in require_runnable(plan, compiled=compile) if first_rank() else ():
        print(f"placer: {warning}", file=sys.stderr)
    if under_torchrun():
        found = _compared(plan, str(plan_file), steps, backend)
    else:
        found = _launched(plan, plan_file, steps, timeout, backend)
    if not first_rank():
        return
    if report:
        write_text(report, _adapter().dump_json(found).decode())
        return
    print_result(Text(str(found)), report_document(found), json)
    if not found.passed:
        raise typer.Exit(1)


def _compared(plan: Plan, path: str, steps: int, compile: str) -> VerifyReport:
    """The comparison, by this rank among all."""
    from placer.runtime import verify
    from placer.runtime.distributed.world import TIMEOUT_SECONDS, joined
    from placer.runtime.executor.compile import patience
    from placer.runtime.verify.parity import SILENT

    with joined(plan, plan_path=path, timeout_seconds=patience(TIMEOUT_SECONDS, compile)):
        return verify(plan, steps, compile=compile, progress=_say if first_rank() else SILENT)


def _launched(plan: Plan, path: Path, steps: int, timeout: float, compile: str) -> VerifyReport:
    """The comparison, by ranks started for it."""
    from placer.runtime.distributed.launch import launch
    from placer.runtime.distributed.world import present_device

    present_device(plan, plan.world_size - 1)  # a clear error here rather than one from every rank
    _say(f"starting {plan.world_size} rank{'s' * (plan.world_size > 1)}")
    with tempfile.TemporaryDirectory(prefix="placer-verify-") as folder:
        result = Path(folder, "report.json")
        compiled = ("--compile", "--compile-backend", compile) if compile else ()
        arguments = ("--steps", str(steps), "--report", str(result), *compiled)
        launch(str(path), arguments, plan.world_size, timeout, command="verify", echo=_pass_on)
        return _adapter().validate_json(result.read_text())


def _say(line: str) -> None:
    print(f"{PROGRESS}{line}", file=sys.stderr, flush=True)


def _pass_on(line: str) -> None:
    """Show what a rank says of its progress; what else it writes is shown where it fails."""
    if line.startswith((f"{PROGRESS}step ", f"{PROGRESS}ranks ")):
        print(line, file=sys.stderr, flush=True)


def _adapter() -> TypeAdapter[VerifyReport]:
    from placer.runtime import VerifyReport

    return TypeAdapter(VerifyReport)


def report_document(found: VerifyReport) -> Document:
    """The comparison for machines."""
    document: Document = {"passed": found.passed, **json_module.loads(_adapter().dump_json(found))}
    return document
