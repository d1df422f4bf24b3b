"""The demo, step by step: each step says what it does before it does it, and prints what came out.

capture -> this machine -> every strategy -> a plan -> torchrun -> one device -> DemoOutcome

What one device computes is plain PyTorch, no graph, no plan, no placer executor in the way: the loss of a step is the
sum over microbatches of (mean loss of the microbatch x its share of the rows), since every row counts as many tokens.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

import torch
from rich.console import Console, Group, RenderableType
from rich.text import Text
from torch import nn

from placer import tracer
from placer.api import simulate
from placer.cli.commands.demo.model import BATCH, REFERENCE
from placer.cli.commands.demo.strategy_table import chosen, contest, contest_view
from placer.cluster.cluster import Cluster
from placer.graph import Graph
from placer.io.files import make_folder, write_text
from placer.plans.ledger import Ledger
from placer.plans.plan import Plan
from placer.plans.settings import RunSettings
from placer.report.comparison import comparison_view
from placer.report.documents import Document, ledger_document
from placer.report.plan_table import plan_view
from placer.report.printing import bytes_text, flops_text, seconds_text
from placer.runtime.data import Batch, Data, open_data
from placer.runtime.distributed.launch import launch
from placer.runtime.training.run_report import RunReport
from placer.search.problem import Problem

CLUSTER = "localx2"
DATA = "stdlib"
# Two float32 runs sum in different orders: 1e-7 of a loss in one step, growing with the steps between.
TOLERANCE = 1e-5
# A net for a hang, not an expectation: the steps take seconds, but a busy machine may take minutes to start two ranks.
RUN_SECONDS = 900.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOutcome:
    """What the demo ends with: the run, the losses of one device, the simulated step."""

    plan: Plan
    report: RunReport
    one_device_losses: tuple[float, ...]
    simulated: Ledger

    @property
    def differences(self) -> tuple[float, ...]:
        """Each step's relative difference of the loss from one device's."""
        pairs = zip(self.report.losses, self.one_device_losses, strict=True)
        return tuple(abs(ours - theirs) / abs(theirs) for ours, theirs in pairs)

    @property
    def matches(self) -> bool:
        """Whether every loss equals one device's (one that is no number equals none)."""
        return all(difference <= TOLERANCE for difference in self.differences)


class Narrator:
    """Numbered headlines and what came out, with the seconds since the start."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream
        self._console = Console(file=stream, highlight=False, width=None if stream.isatty() else 120)
        self._start = time.perf_counter()
        self._steps = 0

    def step(self, text: str) -> None:
        """A headline."""
        self._steps += 1
        passed = time.perf_counter() - self._start
        self._console.print(f"\n{self._steps}. {text}", style="bold", end="")
        self._console.print(f"  ({passed:.0f} s so far)", style="dim")
        self._stream.flush()

    def show(self, view: RenderableType) -> None:
        """Something that came out; flushed, as a pipe would hold it back until the end."""
        self._console.print(view, soft_wrap=isinstance(view, str | Text))
        self._stream.flush()


def tell(*, steps: int, keep: Path | None, stream: IO[str]) -> DemoOutcome:
    """Run the demo; files go to `keep`, or to a folder that is gone afterwards. Raises PlacerError if a step fails."""
    say = Narrator(stream)
    with nullcontext(keep) if keep else tempfile.TemporaryDirectory(prefix="placer-demo-") as name:
        folder = make_folder(name)
        plan = _plan(say, _problem(say))
        plan.save(folder / "plan.json")
        timeline = simulate(plan)
        write_text(folder / "trace.json", timeline.to_chrome_json())
        report = _execute(say, plan, folder, steps)
        losses = _one_device(say, plan, steps)
    return DemoOutcome(plan=plan, report=report, one_device_losses=losses, simulated=timeline.ledger)


def _problem(say: Narrator) -> Problem:
    say.step(f"Capture a GPT-2 from transformers ({REFERENCE}), without weights")
    start = time.perf_counter()
    resolved = tracer.resolve(REFERENCE)
    graph = tracer.capture(resolved, batch=BATCH)
    say.show(_graph_text(graph, time.perf_counter() - start))
    say.step(f"Describe this machine as 2 devices ({CLUSTER}): measured once, up to a minute, then remembered")
    cluster = Cluster.load(CLUSTER)
    say.show(_cluster_text(cluster))
    return Problem(graph=graph, cluster=cluster, settings=RunSettings(), model=resolved.ref, rows=graph.rows)


def _plan(say: Narrator, problem: Problem) -> Plan:
    say.step("Ask every strategy for its best plan")
    entries = []
    for entry in contest(problem):
        say.show(f"   {entry.strategy} has answered after {seconds_text(entry.seconds)}")
        entries.append(entry)
    say.show(contest_view(tuple(entries)))
    plan, why = chosen(tuple(entries), problem)
    say.step(f"The plan that is run: {why}")
    say.show(plan_view(replace(plan, alternatives=())))  # the table above has shown them
    return plan


def _execute(say: Narrator, plan: Plan, folder: Path, steps: int) -> RunReport:
    say.step(f"Train {steps} steps on {plan.world_size} processes under torchrun; the text is Python's own library")
    path, report, log = (str(folder / name) for name in ("plan.json", "report.json", "log.jsonl"))
    arguments = ("--steps", str(steps), "--data", DATA, "--report", report, "--log-file", log, "--no-summary")
    launch(path, arguments, plan.world_size, RUN_SECONDS, echo=lambda line: say.show(Text(f"   {line}")))
    return RunReport.load(report)


def _one_device(say: Narrator, plan: Plan, steps: int) -> tuple[float, ...]:
    say.step(f"The same {steps} steps on one device, in plain PyTorch")
    model = tracer.resolve(plan.model).build("cpu", seed=plan.seed)
    data = open_data(DATA, plan.graph, rows=plan.rows, seed=0)
    losses = []
    for loss in reference_losses(plan, model, data, steps):
        losses.append(loss)
        say.show(f"   step {len(losses)}/{steps}  loss {loss:.4f}")
    return tuple(losses)


def _graph_text(graph: Graph, seconds: float) -> str:
    flops, parameters = flops_text(graph.forward_flops + graph.backward_flops), bytes_text(graph.parameter_bytes)
    return (
        f"   {len(list(graph.ops))} ops in {len(graph.blocks)} blocks, {parameters} of parameters, "
        f"{flops} a step of {graph.rows} rows, {bytes_text(graph.saved_bytes)} kept for backward; "
        f"took {seconds_text(seconds)}"
    )


def _cluster_text(cluster: Cluster) -> str:
    device, link = cluster.devices[0], cluster.nodes[0].link
    return (
        f"   {cluster.size} x {device.name}: {flops_text(device.rate('float32'))}/s, "
        f"{bytes_text(device.memory_bandwidth)}/s of memory; a message takes {seconds_text(link.latency_seconds)} "
        f"and {seconds_text(link.seconds(2**20) - link.latency_seconds)} more for each MiB"
    )


def outcome_view(outcome: DemoOutcome) -> RenderableType:
    """Predicted beside measured, and whether the losses are one device's."""
    parts: list[RenderableType] = [Text("")]
    if outcome.plan.ledger and outcome.report.measured:
        parts.append(comparison_view(outcome.plan.ledger, outcome.report.measured))
    parts.append(
        Text(
            f"played event by event, as placer simulate does, the step takes "
            f"{seconds_text(outcome.simulated.step_seconds)}; predicted above is the closed form that searches compare"
        )
    )
    verdict = "equal" if outcome.matches else "DIFFER FROM"
    parts.append(
        Text(
            f"losses {outcome.report.losses[0]:.4f} -> {outcome.report.losses[-1]:.4f}; they {verdict} one device's: "
            f"largest relative difference {max(outcome.differences):.1e} over {len(outcome.report.losses)} steps "
            f"(float32, allowed {TOLERANCE:.0e})",
            style="bold",
        )
    )
    return Group(*parts)


def outcome_document(outcome: DemoOutcome) -> Document:
    """The same for machines."""
    predicted, measured = outcome.plan.ledger, outcome.report.measured
    return {
        "losses": list(outcome.report.losses),
        "one_device_losses": list(outcome.one_device_losses),
        "largest_relative_loss_difference": max(outcome.differences),
        "losses_match": outcome.matches,
        "simulated_step_seconds": outcome.simulated.step_seconds,
        "predicted": ledger_document(predicted) if predicted else None,
        "measured": ledger_document(measured) if measured else None,
    }


def reference_losses(plan: Plan, model: nn.Module, data: Data, steps: int) -> Iterator[float]:
    """The loss of each step of training `model` on `data` with the plan's microbatches and optimizer settings."""
    optimizer = _optimizer(plan, model)
    for step in range(steps):
        optimizer.zero_grad()
        loss = sum(_backward(model, part, share) for part, share in _microbatches(plan, data.batch(step)))
        if plan.settings.clip_norm is not None:
            nn.utils.clip_grad_norm_(model.parameters(), plan.settings.clip_norm)
        optimizer.step()
        yield loss


def _optimizer(plan: Plan, model: nn.Module) -> torch.optim.Optimizer:
    settings = plan.settings
    return torch.optim.AdamW(
        model.parameters(),
        lr=settings.learning_rate,
        betas=settings.betas,
        eps=settings.epsilon,
        weight_decay=settings.weight_decay,
    )


def _microbatches(plan: Plan, batch: Batch) -> Iterator[tuple[Batch, float]]:
    first = 0
    for rows in plan.microbatches:
        yield {name: value[first : first + rows] for name, value in batch.items()}, rows / plan.rows
        first += rows


def _backward(model: nn.Module, part: Batch, share: float) -> float:
    loss: torch.Tensor = model(**part).loss * share
    torch.autograd.backward(loss)
    return loss.item()
