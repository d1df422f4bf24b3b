"""Run a plan under torchrun, one process per rank.

Example: torchrun --nproc-per-node 2 --no-python placer execute plan.json --steps 20 --data texts/ --log-file log.jsonl
Before launch, of a plan of any size, without torchrun: placer execute --dry-run --rank 3 plan.json
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from placer.cli.commands.running import dry_run as dry
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
from placer.errors import UsageError
from placer.report.comparison import comparison_view
from placer.report.documents import Document, ledger_document
from placer.report.plan_table import doubts
from placer.report.printing import seconds_text, share_text, table, titled

if TYPE_CHECKING:
    from placer.plans.plan import Plan
    from placer.runtime.training.run_report import ExecuteOptions, RunReport


Data = Annotated[
    str, typer.Option(help="A folder of text, tensors or shards, the URL of shards, stdlib, or synthetic.")
]
Tokenizer = Annotated[str, typer.Option(help="A tokenizer's folder; without one text is read as bytes.")]
Engine = Annotated[Literal["placer", "deepspeed"], typer.Option(help="What runs the plan; deepspeed where it can.")]
Seed = Annotated[int, typer.Option(help="The order of the data.")]
LrSchedule = Annotated[
    Literal["constant", "linear", "cosine"], typer.Option(help="How the learning rate falls after the warmup.")
]
WarmupSteps = Annotated[int, typer.Option(min=0, help="Steps in which the learning rate rises.")]
FinalRate = Annotated[float, typer.Option(help="Where it ends, as a share of the plan's rate.")]
EvalEvery = Annotated[int, typer.Option(min=0, help="Evaluate each so many steps; 0 is never.")]
EvalBatches = Annotated[int, typer.Option(min=1, help="Batches of one evaluation.")]
Checkpoint = Annotated[str, typer.Option(help="Save here, and go on from here if it holds a checkpoint.")]
CheckpointEvery = Annotated[int, typer.Option(min=0, help="Save each so many steps; 0 is at the end.")]
CheckpointAsync = Annotated[bool, typer.Option("--checkpoint-async", help="Write them beside the next steps.")]
Weights = Annotated[str, typer.Option(help="Start from the weights of this Hugging Face folder.")]
SaveWeights = Annotated[str, typer.Option(help="Write the final weights to this new Hugging Face folder.")]
Keep = Annotated[int, typer.Option(min=1, help="How many checkpoints stay.")]
Synchrony = Annotated[
    Literal["synchronous", "local", "stale"],
    typer.Option(
        help="How replicas keep together: by every step; local SGD, averaged every so many steps; stale, with "
        "gradients some steps late. The last two change the mathematics: losses are not those of one device."
    ),
]
AverageEvery = Annotated[
    int | None, typer.Option(help="With --synchrony local: steps between two averages of the replicas.")
]
Staleness = Annotated[
    int | None, typer.Option(help="With --synchrony stale: how many steps late gradients are; 0 is synchronous.")
]
OwnLoss = Annotated[
    bool,
    typer.Option(
        "--own-loss",
        help="With local or stale: each replica tells the loss of its own rows, so that none waits to sum that of all.",
    ),
]
# torchrun takes a bare --log for an abbreviation of its own options, even after the program's name.
Log = Annotated[str, typer.Option("--log-file", "--log", help="Append a JSON line per step here.")]
Tensorboard = Annotated[str, typer.Option(help="A folder for TensorBoard.")]
SaveExpertLoads = Annotated[
    str, typer.Option(help="Write the tokens that each expert got to this file, as --expert-loads takes it.")
]
Report = Annotated[str, typer.Option(help="Write losses, seconds and both ledgers here as JSON.")]
DryRun = Annotated[
    bool,
    typer.Option(
        "--dry-run", help="Run ranks on fake tensors in this process; exit 1 where they disagree or overflow."
    ),
]
Rank = Annotated[int | None, typer.Option(min=0, help="With --dry-run: this rank; else one of each class.")]
Program = Annotated[
    list[Path] | None,
    typer.Option(metavar="FILE", help="With --dry-run: a program that stands for the plan's own of that rank."),
]
Summary = Annotated[
    bool, typer.Option(hidden=True, help="Whether the result is printed; who reads the report shows it.")
]


def run(
    plan_file: PlanFile,
    steps: Steps = 10,
    cluster: ForCluster = None,
    data: Data = "synthetic",
    tokenizer: Tokenizer = "",
    engine: Engine = "placer",
    backend: Backend = "auto",
    compile: Compile = False,
    compile_backend: CompileBackend = "inductor",
    seed: Seed = 0,
    lr_schedule: LrSchedule = "constant",
    warmup_steps: WarmupSteps = 0,
    final_rate: FinalRate = 0.0,
    eval_every: EvalEvery = 0,
    eval_batches: EvalBatches = 1,
    checkpoint: Checkpoint = "",
    checkpoint_every: CheckpointEvery = 0,
    checkpoint_async: CheckpointAsync = False,
    weights: Weights = "",
    save_weights: SaveWeights = "",
    keep: Keep = 2,
    synchrony: Synchrony = "synchronous",
    average_every: AverageEvery = None,
    staleness: Staleness = None,
    own_loss: OwnLoss = False,
    log: Log = "",
    tensorboard: Tensorboard = "",
    save_expert_loads: SaveExpertLoads = "",
    report: Report = "",
    timeout: Annotated[float, Timeout] = 60.0,
    dry_run: DryRun = False,
    rank: Rank = None,
    program: Program = None,
    summary: Summary = True,
    json: Json = False,
) -> None:
    """Train; rank 0 prints predicted beside measured."""
    given = dict(locals())
    if dry_run:
        raise typer.Exit(_dry_run(plan_file, cluster, rank, tuple(program or ()), compile=compile, json=json))
    if rank is not None or program:
        raise UsageError("--rank and --program are for --dry-run; a run has all ranks and its own programs")
    _train(load_plan(plan_file, cluster, runs=True), options_of(given), summary=summary, json=json)


def options_of(given: Mapping[str, Any]) -> ExecuteOptions:
    """What flags ask for that are given by the names of `run`'s parameters. Raises UsageError where they contradict."""
    from placer.runtime.training.run_report import ExecuteOptions  # the runtime needs torch; reading a plan does not

    alike = {field.name: given[field.name] for field in fields(ExecuteOptions) if field.name in given}
    named_otherwise = {
        "plan_path": str(given["plan_file"]),
        "compile": compiler(given["compile"], given["compile_backend"]),
        "decay": given["lr_schedule"],
        "timeout_seconds": given["timeout"],
    }
    return ExecuteOptions(**(alike | named_otherwise))


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
    if report.backend == "mpi":
        lines.append(Text("over MPI; predictions are of gloo"))
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
        told = report.predicted and seconds_text(report.predicted.step_seconds)
        own = f"; placer's own runtime is predicted {told} a step, this engine is not" if told else ""
        return f"the engine {report.engine} was not measured by category{own}"
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
        "backend": report.backend,
        "compile": report.compile or None,
        "checkpoint": report.checkpoint or None,
        "weights": report.weights or None,
        "experts": [
            {"layer": layer.name, "tokens": list(layer.tokens), "dropped": layer.dropped} for layer in report.experts
        ],
        "predicted": ledger_document(report.predicted) if report.predicted else None,
        "measured": ledger_document(report.measured) if report.measured else None,
    }
