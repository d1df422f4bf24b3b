"""`placer execute`: run a plan; one process per rank, under torchrun."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from placer.cli.commands import dry_run as dry
from placer.cli.commands import execute_options as flags
from placer.cli.options import Compile, CompileBackend, Json, PlanFile, Steps, Timeout
from placer.cli.output import first_rank, print_result
from placer.cli.plan_file import ForCluster, load_plan
from placer.errors import UsageError
from placer.report.comparison import comparison_view
from placer.report.documents import Document, ledger_document
from placer.report.numbers import seconds_text, share_text
from placer.report.plan_table import doubts
from placer.report.printing import table, titled

if TYPE_CHECKING:
    from placer.plans.plan import Plan
    from placer.runtime.training.run_report import ExecuteOptions, RunReport


NAME = "execute"
HELP = """Run a plan under torchrun, one process per rank.

Example: torchrun --nproc-per-node 2 --no-python placer execute plan.json --steps 20 --data texts/ --log-file log.jsonl
Before launch, of a plan of any size, without torchrun: placer execute --dry-run --rank 3 plan.json
"""


def run(
    plan_file: PlanFile,
    steps: Steps = 10,
    cluster: ForCluster = None,
    data: flags.Data = "synthetic",
    tokenizer: flags.Tokenizer = "",
    engine: flags.Engine = "placer",
    compile: Compile = False,
    compile_backend: CompileBackend = "inductor",
    seed: flags.Seed = 0,
    lr_schedule: flags.LrSchedule = "constant",
    warmup_steps: flags.WarmupSteps = 0,
    final_rate: flags.FinalRate = 0.0,
    eval_every: flags.EvalEvery = 0,
    eval_batches: flags.EvalBatches = 1,
    checkpoint: flags.Checkpoint = "",
    checkpoint_every: flags.CheckpointEvery = 0,
    checkpoint_async: flags.CheckpointAsync = False,
    weights: flags.Weights = "",
    save_weights: flags.SaveWeights = "",
    keep: flags.Keep = 2,
    synchrony: flags.Synchrony = "synchronous",
    average_every: flags.AverageEvery = None,
    staleness: flags.Staleness = None,
    log: flags.Log = "",
    tensorboard: flags.Tensorboard = "",
    save_expert_loads: flags.SaveExpertLoads = "",
    report: flags.Report = "",
    timeout: Annotated[float, Timeout] = 60.0,
    dry_run: flags.DryRun = False,
    rank: flags.Rank = None,
    program: flags.Program = None,
    summary: flags.Summary = True,
    json: Json = False,
) -> None:
    """Train; rank 0 prints predicted beside measured."""
    if dry_run:
        raise typer.Exit(_dry_run(plan_file, cluster, rank, tuple(program or ()), compile=compile, json=json))
    if rank is not None or program:
        raise UsageError("--rank and --program are for --dry-run; a run has all ranks and its own programs")
    from placer.runtime.training.run_report import ExecuteOptions  # the runtime needs torch; reading a plan does not

    options = ExecuteOptions(
        plan_path=str(plan_file), engine=engine, compile=compile_backend if compile else "", steps=steps, data=data,
        tokenizer=tokenizer, seed=seed, decay=lr_schedule, warmup_steps=warmup_steps, final_rate=final_rate,
        eval_every=eval_every, eval_batches=eval_batches, log=log, tensorboard=tensorboard, checkpoint=checkpoint,
        checkpoint_every=checkpoint_every, checkpoint_async=checkpoint_async, weights=weights,
        save_weights=save_weights, keep=keep, save_expert_loads=save_expert_loads, report=report, synchrony=synchrony,
        average_every=average_every, staleness=staleness, timeout_seconds=timeout,
    )  # fmt: skip
    _train(load_plan(plan_file, cluster), options, summary=summary, json=json)


def _dry_run(
    plan_file: Path, cluster: str | None, rank: int | None, programs: tuple[Path, ...], *, compile: bool, json: bool
) -> int:
    """The exit code of a dry run, which compiles nothing."""
    if compile:
        raise UsageError("--dry-run runs ops one by one, on no real tensors; leave --compile out")
    return dry.run(plan_file, cluster, rank, programs, json)


def _train(plan: Plan, options: ExecuteOptions, *, summary: bool, json: bool) -> None:
    """Run the plan; rank 0 prints what the run gave."""
    from placer.runtime.training.execute import execute

    done = execute(plan, options)
    if first_rank() and summary:
        print_result(run_view(done, plan), run_document(done), json)


def run_view(report: RunReport, plan: Plan | None = None) -> RenderableType:
    """Losses, speed, and predicted beside measured, or why nothing was measured or done."""
    lines: list[RenderableType] = [Text(f"{len(report.losses)} steps on {report.ranks} ranks, data {report.data}")]
    if report.synchrony.kind != "synchronous":
        lines.append(Text(f"{report.synchrony}; predictions are of the synchronous run"))
    if report.compile:
        lines.append(Text(f"compiled by {report.compile}; the first steps hold the compilation"))
    if report.losses:
        lines.append(Text(_speed(report)))
    else:
        lines.append(
            Text(f"nothing was left to do: the checkpoint is of step {report.first_step}; ask for more with --steps")
        )
    lines += [Text(f"held-out loss {entry.loss:.4f} after {entry.step} steps") for entry in report.evaluations]
    if report.predicted and report.measured:
        lines.append(comparison_view(report.predicted, report.measured))
        lines += doubts(plan) if plan else []
    elif report.losses and not report.measured:
        lines.append(Text(_unmeasured(report)))
    if report.experts:
        lines.append(_experts(report))
    if report.checkpoint:
        lines.append(Text(f"saved in {report.checkpoint}"))
    if report.weights:
        lines.append(Text(f"weights in {report.weights}"))
    return Group(*lines)


def _experts(report: RunReport) -> RenderableType:
    view = table("layer", "experts", "min", "mean", "max", "max/mean", "dropped", left=1)
    for layer in report.experts:
        most = max(layer.tokens)
        view.add_row(
            layer.name, str(len(layer.tokens)), str(min(layer.tokens)), f"{layer.mean:.1f}", str(most),
            f"{most / layer.mean:.2f}" if layer.mean else "", str(layer.dropped),
        )  # fmt: skip
    return titled("tokens of an expert in this run", view)


def _speed(report: RunReport) -> str:
    speeds = {"rows/s": report.rows_per_second, "tokens/s": report.tokens_per_second}
    texts = [f"{value:.3g} {name}" for name, value in speeds.items() if value is not None]
    texts += [f"MFU {share_text(report.mfu)}"] if report.mfu is not None else []
    last = report.first_step + len(report.losses)
    steps = f" (of steps {report.first_step + 3} to {last})" if len(report.losses) > 2 else ""
    return (
        f"loss {report.losses[0]:.4f} -> {report.losses[-1]:.4f}, median step "
        f"{seconds_text(report.median_step_seconds)}{steps}, {', '.join(texts)}"
    )


def _unmeasured(report: RunReport) -> str:
    from placer.runtime.measuring.measurement import FEWEST_STEPS

    if report.engine != "placer":
        predicted = f" (predicted {seconds_text(report.predicted.step_seconds)} a step)" if report.predicted else ""
        return f"the engine {report.engine} was not measured by category{predicted}"
    return (
        f"predicted is not put beside measured: seconds and bytes are measured from step {FEWEST_STEPS} of a run on, "
        f"and this one did {len(report.losses)}; give --steps {report.first_step + FEWEST_STEPS} or more"
    )


def run_document(report: RunReport) -> Document:
    """The same for machines."""
    return {
        "ranks": report.ranks,
        "data": report.data,
        "losses": list(report.losses),
        "step_seconds": list(report.step_seconds),
        "median_step_seconds": report.median_step_seconds,
        "rows_per_second": report.rows_per_second,
        "tokens_per_second": report.tokens_per_second,
        "mfu": report.mfu,
        "evaluations": [{"step": entry.step, "loss": entry.loss} for entry in report.evaluations],
        "synchrony": str(report.synchrony),
        "compile": report.compile or None,
        "checkpoint": report.checkpoint or None,
        "weights": report.weights or None,
        "experts": [
            {"layer": layer.name, "tokens": list(layer.tokens), "dropped": layer.dropped} for layer in report.experts
        ],
        "predicted": ledger_document(report.predicted) if report.predicted else None,
        "measured": ledger_document(report.measured) if report.measured else None,
    }
