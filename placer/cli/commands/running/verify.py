"""Run some steps as planned and on one device; compare loss, gradients, weights and buffers.

What is promised: a plan that runs gives what your model gives by itself, eager, uncut, the whole batch at once on one
device, updated by torch's own optimizer and clipping. What is compared with is just that: code that shares nothing with
the runtime but the model's weights and, where the model drops, the masks of dropout.

Compared are, of each step, the loss, the norm of the gradients (where it clips), every gradient, also that there is
none where one device has none, every weight and every saved buffer; after the last step the loss in evaluation, unless
the model computes otherwise there than in training, whose evaluation a run refuses.

In float64 they must agree to 1e-9 of each tensor's size, to 1e-6 where the model itself casts to float32. In a lower
precision of the plan they are held to the exact values: the error may be as large as that of one device, which is
measured on reorderings of the same sums, times 4, and 8 units of the last place. Gradients that replicas sum in 16 bits
(placer plan --gradient-compression) are summed whole in float64, and in the plan's precision held to what that rounds.

Batches are random; labels are left out unevenly where only the loss reads them. What a setting of the plan changes in
the mathematics is said in the report. Starts its own ranks on this machine when not under torchrun; exit 1 where
something differs, 2 where one device cannot do the whole batch, or the model draws numbers that no layout can repeat.

Example: placer verify plan.json --steps 3
"""

from __future__ import annotations

import json as json_module
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from pydantic import TypeAdapter
from rich.text import Text

from placer import legality
from placer.cli.options import (
    Backend,
    Compile,
    CompileBackend,
    ForCluster,
    Json,
    PlanFile,
    Steps,
    Timeout,
    compiler,
    first_rank,
    load_plan,
    print_result,
)
from placer.io.files import write_text
from placer.plans.plan import Plan
from placer.report.documents import Document

if TYPE_CHECKING:
    from placer.runtime import VerifyReport
    from placer.runtime.distributed.backends import BackendName
    from placer.runtime.verify.parity import PrecisionAsked


PROGRESS = "placer: "


def run(
    plan_file: PlanFile,
    steps: Steps = 3,
    cluster: ForCluster = None,
    compile: Compile = False,
    compile_backend: CompileBackend = "inductor",
    precision: Annotated[
        Literal["both", "float64", "plan"],
        typer.Option(help="Steps in float64, in the plan's own precision, or both (the plan's where float64 fails)."),
    ] = "both",
    backend: Backend = "auto",
    timeout: Annotated[float, Timeout] = 600.0,
    report: Annotated[
        str, typer.Option(hidden=True, help="Where ranks started by this command leave the result.")
    ] = "",
    json: Json = False,
) -> None:
    """Compare, print."""
    from placer.runtime.distributed.backends import require_backend
    from placer.runtime.distributed.mpi.started import told_as_torchrun_tells
    from placer.runtime.distributed.world import under_torchrun
    from placer.runtime.executor.compile import require_compilable
    from placer.runtime.training.trust import require_runnable

    plan = load_plan(plan_file, cluster, runs=True)
    legality.require(plan)
    compiled_by = compiler(compile, compile_backend)
    require_compilable(plan, compiled_by)
    require_backend(plan, backend, str(plan_file), "verify")
    told_as_torchrun_tells()
    for warning in require_runnable(plan, compiled=compile) if first_rank() else ():
        print(f"placer: {warning}", file=sys.stderr)
    if under_torchrun():
        found = _compared(plan, str(plan_file), steps, (compiled_by, precision, backend))
    else:
        found = _launched(plan, plan_file, steps, timeout, (compiled_by, precision))
    if not first_rank():
        return
    if report:
        # With the words NaN and Infinity, which pydantic reads and would write as null.
        write_text(report, json_module.dumps(_adapter().dump_python(found)))
        return
    print_result(Text(str(found)), report_document(found), json)
    if not found.passed:
        raise typer.Exit(1)


def _compared(plan: Plan, path: str, steps: int, how: tuple[str, PrecisionAsked, BackendName]) -> VerifyReport:
    """The comparison, by this rank among all."""
    from placer.runtime import verify
    from placer.runtime.distributed.world import TIMEOUT_SECONDS, joined
    from placer.runtime.executor.compile import patience
    from placer.runtime.verify.parity import SILENT

    compile, precision, backend = how
    with joined(plan, plan_path=path, timeout_seconds=patience(TIMEOUT_SECONDS, compile), backend=backend):
        progress = _say if first_rank() else SILENT
        return verify(plan, steps, compile=compile, precision=precision, progress=progress)


def _launched(plan: Plan, path: Path, steps: int, timeout: float, how: tuple[str, str]) -> VerifyReport:
    """The comparison, by ranks started for it."""
    from placer.runtime.distributed.launch import launch
    from placer.runtime.distributed.world import present_device

    present_device(plan, plan.world_size - 1)  # a clear error here rather than one from every rank
    _say(f"starting {plan.world_size} rank{'s' * (plan.world_size > 1)}")
    with tempfile.TemporaryDirectory(prefix="placer-verify-") as folder:
        result = Path(folder, "report.json")
        compile, precision = how
        compiled = ("--compile", "--compile-backend", compile) if compile else ()
        arguments = ("--steps", str(steps), "--precision", precision, "--report", str(result), *compiled)
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
