"""execute(plan, options): train under torchrun as the plan says. Every rank calls it and gets the same RunReport.

    plan + options -> checks -> process group -> executor + data -> [resume] -> steps -> RunReport

A step is: a batch by its position, the learning rate of the step, `executor.step`, the log. The global batch is
the same on every rank; so are the losses, and with them every decision (to stop, to evaluate, to save). Nothing is
saved of weights that are not finite: a loss may be a number where its gradient is none.

Whether a run will be able to write what it is asked for: known before the first rank joins, not after the last.
"""

from __future__ import annotations

import math
import sys
import time
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import distributed as dist

from placer.errors import ExecutionError, UsageError, require_extra
from placer.io.files import require_folder, require_writable
from placer.plans.plan import Plan
from placer.rules.expert_loads import expert_counts
from placer.runtime.checkpoint.checkpoint import Checkpoints
from placer.runtime.checkpoint.final_weights import save_weights
from placer.runtime.checkpoint.folder import Progress
from placer.runtime.checkpoint.training_state import TrainingState
from placer.runtime.data import Batch, Data, open_data
from placer.runtime.data.batches import without_numbers
from placer.runtime.distributed.threads import apply_threads
from placer.runtime.distributed.world import World, joined
from placer.runtime.executor.compile import patience
from placer.runtime.executor.load import load
from placer.runtime.measuring.expert_tokens import ExpertLayer, Tally, expert_layers, save_loads, tallies
from placer.runtime.measuring.measurement import Measurement, plan_flops, plan_peak_flops, tokens_per_row
from placer.runtime.stages.captured_model import CapturedModel, run_dtype
from placer.runtime.training.logs import Logs, open_logs
from placer.runtime.training.one_device import one_device_losses
from placer.runtime.training.possible import require_possible
from placer.runtime.training.run_report import Evaluation, ExecuteOptions, LearningRate, RunReport
from placer.runtime.training.trust import require_runnable
from placer.runtime.weights.hf_export import require_new


class Engine(Protocol):
    """One rank of a running plan; every rank calls it alike. `steps` done so far key the dropout masks."""

    steps: int

    @property
    def gradient_norm(self) -> float | None:
        """Of the gradients of the last step, before clipping; None where it was not taken. Reading may wait."""
        ...

    def step(self, batch: Batch) -> float:
        """Train on a global batch; its loss."""
        ...

    def evaluate(self, batch: Batch) -> float:
        """The loss of a global batch, without training."""
        ...

    def set_learning_rate(self, rate: float) -> None:
        """Use `rate` from the next step on."""
        ...


@torch.inference_mode(False)  # gradients are on in it, wherever the caller stands
def execute(plan: Plan, options: ExecuteOptions, *, capture: CapturedModel | None = None) -> RunReport:
    """Run `options.steps` steps of `plan`, going on from the last complete checkpoint where there is one.

    capture: see `load`.
    Raises UsageError outside torchrun, with the wrong number of ranks or for evaluations that no run can give,
    StalePlanError for another model or version, ExecutionError where a rank dies, hangs, or the loss, the gradients'
    norm or a weight that is to be saved is not a number.
    """
    require_possible(plan, options)
    require_outputs(options)
    patient = patience(options.timeout_seconds, options.compile)
    with joined(plan, plan_path=options.plan_path, timeout_seconds=patient, backend=options.backend) as world:
        applied = apply_threads() if all(device.backend == "cpu" for device in plan.cluster.devices) else None
        if applied is not None and world.first:
            print(f"placer: on this host {applied}", file=sys.stderr)
        for warning in require_runnable(plan, compiled=bool(options.compile)):
            if world.first:
                print(f"placer: {warning}", file=sys.stderr)
        if world.first and options.kept_together.relaxed:
            print(f"placer: {options.kept_together}", file=sys.stderr)
        report = _prepared(plan, options, world, capture).run()
        if options.report and world.first:
            report.save(options.report)
        return report


def _prepared(plan: Plan, options: ExecuteOptions, world: World, capture: CapturedModel | None) -> _Run:
    """Everything a run needs, its state restored from the last complete checkpoint."""
    data = open_data(options.data, plan.graph, rows=plan.rows, seed=options.seed, tokenizer=options.tokenizer)
    quiet = not world.first
    logs = open_logs(
        jsonl="" if quiet else options.log,
        tensorboard="" if quiet else options.tensorboard,
        steps=options.steps,
        progress=options.progress and not quiet,
    )
    engine = _loaded(plan, options, world, capture)
    checkpoints = _checkpoints(plan, options, world)
    start = _resumed(plan, options, world, engine, data, checkpoints)
    engine.runs.steps = start.step
    return _Run(
        plan=plan,
        options=options,
        world=world,
        engine=engine,
        data=data,
        logs=logs,
        rates=options.rates(plan.settings.learning_rate),
        checkpoints=checkpoints,
        start=start,
    )


def _resumed(
    plan: Plan, options: ExecuteOptions, world: World, engine: _Loaded, data: Data, checkpoints: Checkpoints | None
) -> Progress:
    """Where the run begins: from the last complete checkpoint, whose state the engine then has."""
    found = checkpoints.resume(engine.state) if checkpoints and engine.state else None
    notes = list(checkpoints.notes) if checkpoints else []
    if found:
        notes += found.in_another_order(seed=options.seed, samples=data.samples)
        notes += found.at_another_rate(options.rates(plan.settings.learning_rate).at(found.step))
    for note in notes if world.first else ():
        print(f"placer: {note}", file=sys.stderr)
    start = (found or Progress(step=0, position=0)).at(plan.rows)
    if options.one_device and start.step:
        raise UsageError(
            f"the run goes on from step {start.step}, where one device cannot begin; "
            "give another folder with --checkpoint"
        )
    return start


def _checkpoints(plan: Plan, options: ExecuteOptions, world: World) -> Checkpoints | None:
    if not options.checkpoint:
        return None
    return Checkpoints(
        options.checkpoint, world, fingerprint=plan.model.fingerprint, keep=options.keep,
        patience_seconds=options.timeout_seconds,
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class _Loaded:
    """An engine with what watches it; state and measurement are None where it keeps its own."""

    runs: Engine
    state: TrainingState | None = None
    measurement: Measurement | None = None
    tallies: dict[str, Tally] = field(default_factory=dict)


def _loaded(plan: Plan, options: ExecuteOptions, world: World, capture: CapturedModel | None) -> _Loaded:
    """The engine that `options` ask for, with the weights of the plan's seed or of the folder they name."""
    if options.engine == "deepspeed":
        from placer.runtime.deepspeed import load as deepspeed  # an extra

        timeout = options.timeout_seconds
        return _Loaded(runs=deepspeed.load(plan, weights=options.weights, capture=capture, timeout_seconds=timeout))
    executor = load(
        plan, weights=options.weights, timeout_seconds=options.timeout_seconds, synchrony=options.kept_together,
        compile=options.compile, capture=capture,
    )  # fmt: skip
    measurement = Measurement(plan, world.device, world.rank, hidden=options.compile == "inductor")
    executor.relay.target = measurement
    counted = tallies(executor.stages.values()) if expert_counts(plan.graph) else {}
    return _Loaded(runs=executor, state=TrainingState(executor), measurement=measurement, tallies=counted)


@dataclass(kw_only=True)
class _Run:
    """The loop and what it has gathered so far."""

    plan: Plan
    options: ExecuteOptions
    world: World
    engine: _Loaded
    data: Data
    logs: Logs
    rates: LearningRate
    checkpoints: Checkpoints | None
    start: Progress
    losses: list[float] = field(default_factory=list)
    step_seconds: list[float] = field(default_factory=list)
    evaluations: list[Evaluation] = field(default_factory=list)
    saved: str = ""

    def run(self) -> RunReport:
        """All steps that are left."""
        try:
            if self.options.kept_together.relaxed:
                self.logs.write("synchrony", self.start.step, {"synchrony": str(self.options.kept_together)})
            if self.start.step:
                self.logs.write("resumed", self.start.step, {"position": self.start.position})
            for done in range(self.start.step, self.options.steps):
                self._step(done)
                self._after(done + 1)
            if self.engine.state:
                self.engine.state.consolidate()
            if self.checkpoints:
                self.checkpoints.finish()
            if self.options.save_weights and self.engine.state:
                self._require_finite(self.engine.state, max(self.options.steps, self.start.step))
                save_weights(self.plan, self.world, self.engine.state, self.options.save_weights)
            return self._report(self._experts())
        finally:
            self.logs.close()

    def _position(self, step: int) -> int:
        """Batches trained on before `step`; one per step since the checkpoint."""
        return self.start.position + step - self.start.step

    def _converted(self, batch: Batch) -> Batch:
        """Floating inputs in the precision of the run."""
        return {name: tensor.to(run_dtype(self.plan, tensor.dtype)) for name, tensor in batch.items()}

    def _step(self, step: int) -> None:
        began = time.perf_counter()
        rate = self.rates.at(step)
        self.engine.runs.set_learning_rate(rate)
        state, watch = self.engine.state, self.engine.measurement
        with watch.step(step - self.start.step, state) if watch and state else nullcontext():
            with watch.during("data") if watch else nullcontext():
                batch = self._converted(self.data.batch(self._position(step)))
            loss, norm = self.engine.runs.step(batch), self.engine.runs.gradient_norm
        seconds = time.perf_counter() - began
        if not math.isfinite(loss):
            raise ExecutionError(f"the loss of step {step + 1} is {loss}; {self._loss_advice(step, rate, batch)}")
        if norm is not None and not math.isfinite(norm):
            raise ExecutionError(
                f"the gradients' norm of step {step + 1} is {norm}, though its loss is {loss:g}; the weights are "
                "spoilt. Start again from the last checkpoint with other data or a precision of wider range"
                f"{_overflow(self.plan)}"
            )
        self.losses.append(loss)
        self.step_seconds.append(seconds)
        self.logs.write("step", step + 1, {"loss": loss, "learning_rate": rate, **self._speed(seconds)})

    def _loss_advice(self, step: int, rate: float, batch: Batch) -> str:
        """What may make the loss of `step` no number, and what to do."""
        inputs = without_numbers(batch)
        if inputs:
            return f"its batch holds NaN in {inputs}; mend the data ({self.options.data}) and start again"
        if step > self.start.step:
            return (
                f"the weights are spoilt. Lower the learning rate ({rate:g}), or start again from the last checkpoint "
                f"with other data{_overflow(self.plan)}"
            )
        options = self.options
        begun = f"--weights {options.weights}" if options.weights else f"those of seed {self.plan.seed}"
        return (
            f"nothing was updated yet in this run, so it comes of the weights that it began with "
            f"({'those of the checkpoint' if step else begun}) or of that batch (data {self.data.name}): look for what "
            f"is no number there{_narrow(self.plan)}"
        )

    def _speed(self, seconds: float) -> dict[str, float]:
        """Step seconds, rows and tokens per second, MFU where the devices' rate is known."""
        shown = {"step_seconds": seconds, "rows_per_second": self.plan.rows / seconds}
        tokens, peak = tokens_per_row(self.plan), plan_peak_flops(self.plan)
        if tokens:
            shown["tokens_per_second"] = self.plan.rows * tokens / seconds
        if peak:
            shown["mfu"] = plan_flops(self.plan) / seconds / peak
        return shown

    def _after(self, done: int) -> None:
        """Evaluation and checkpoint due after `done` steps."""
        options = self.options
        if options.eval_every and done % options.eval_every == 0:
            self._evaluate(done)
        last = done == options.steps
        due = options.checkpoint_every and done % options.checkpoint_every == 0
        if self.checkpoints:
            self.checkpoints.require_no_failure()
        if self.checkpoints and self.engine.state and (due or last):
            self._require_finite(self.engine.state, done)
            began = time.perf_counter()
            progress = Progress(
                step=done, position=self._position(done), rows=self.plan.rows, seed=options.seed,
                samples=self.data.samples, rate=self.rates.at(done),
            )  # fmt: skip
            write = self.checkpoints.save_beside if options.checkpoint_async else self.checkpoints.save
            self.saved = str(write(self.engine.state, progress))
            self.logs.write("checkpoint", done, {"path": self.saved, "seconds": time.perf_counter() - began})

    def _require_finite(self, state: TrainingState, done: int) -> None:
        """Raise ExecutionError on every rank where a weight of one is no number, before it takes a sound one's place.

        The norm does not tell what an update made, nor anything where none is taken (no clipping, stale gradients).
        """
        spoilt = torch.tensor(float(not state.finite()))
        dist.all_reduce(spoilt)
        if spoilt:
            raise ExecutionError(
                f"weights are not finite after step {done}, though its loss is; they are spoilt, and not saved. Lower "
                f"the learning rate ({self.plan.settings.learning_rate:g}), clip gradients (--clip-norm), or start "
                f"again from the last checkpoint with other data{_overflow(self.plan)}"
            )

    def _evaluate(self, done: int) -> None:
        batches = range(self.options.eval_batches)
        loss = sum(self.engine.runs.evaluate(self._converted(self.data.held_out(k))) for k in batches) / len(batches)
        self.evaluations.append(Evaluation(step=done, loss=loss))
        self.logs.write("evaluation", done, {"loss": loss})

    def _one_device(self) -> tuple[float, ...]:
        steps = ((self.rates.at(step), self._converted(self.data.batch(step))) for step in range(len(self.losses)))
        return one_device_losses(self.plan, self.world, steps, self.options.weights)

    def _experts(self) -> tuple[ExpertLayer, ...]:
        """The tokens of every layer's experts, written where asked; all ranks call it."""
        if not expert_counts(self.plan.graph) or not self.engine.measurement:
            return ()
        found = expert_layers(self.plan, len(self.losses), self.engine.tallies)
        for layer in found:
            tokens = ",".join(map(str, layer.tokens))
            self.logs.write(
                "experts", self.options.steps,
                {
                    "layer": layer.name, "tokens": tokens, "min": min(layer.tokens), "mean": layer.mean,
                    "max": max(layer.tokens), "dropped": layer.dropped,
                },
            )  # fmt: skip
        if found and self.options.save_expert_loads and self.world.first:
            save_loads(found, self.options.save_expert_loads)
        return found

    def _report(self, experts: tuple[ExpertLayer, ...]) -> RunReport:
        return RunReport(
            ranks=self.plan.world_size,
            data=self.data.name,
            first_step=self.start.step,
            losses=tuple(self.losses),
            step_seconds=tuple(self.step_seconds),
            rows=self.plan.rows,
            tokens_per_row=tokens_per_row(self.plan),
            evaluations=tuple(self.evaluations),
            predicted=self.plan.ledger,
            measured=self.engine.measurement.ledger() if self.engine.measurement else None,
            one_device_losses=self._one_device() if self.options.one_device else (),
            checkpoint=self.saved,
            weights=self.options.save_weights,
            engine=self.options.engine,
            compile=self.options.compile,
            synchrony=self.options.kept_together,
            backend=self.options.backend,
            experts=experts,
        )


def require_outputs(options: ExecuteOptions) -> None:
    """Raise UsageError for files and folders that cannot be written, and for TensorBoard where it is not installed."""
    for path in filter(None, (options.report, options.log, options.save_expert_loads)):
        require_writable(path)
    for folder in filter(None, (options.checkpoint, options.tensorboard)):
        require_folder(folder)
    if options.save_weights:
        require_folder(options.save_weights)
        require_new(options.save_weights)
    if options.tensorboard:
        require_extra("report", "tensorboard")


def _narrow(plan: Plan) -> str:
    """What else makes a loss no number under a plan whose weights are sound."""
    if plan.settings.precision != "float16":
        return ""
    return ", or plan with --precision bfloat16: float16 ends at 65504"


def _overflow(plan: Plan) -> str:
    """What else may have spoilt the weights of a plan."""
    if plan.settings.gradient_compression != "float16":
        return ""
    return "; gradients beyond 65504 become infinite in float16, not in bfloat16 (gradient_compression)"
