"""verify(plan): the plan's steps beside the same steps of the model itself on one device, the whole batch at once.

By default they run in float64, where errors of 1e-9 cannot be rounding, and, if the plan's precision is another, in
that too, where the judge measures what rounding does (`verdict`). Gradients that replicas sum in 16 bits are summed
whole in the first, so that errors of 1e-9 are found, and as planned in a run in the plan's precision (`compressed`).
Compared are, of each step, the loss, the norm of the gradients before clipping where a norm is clipped, every gradient
(also that there is none where one device has none), every weight and every buffer that the model saves; after the last
one the loss in evaluation, where a run may give it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal, TypeVar

import torch
from torch import distributed as dist
from torch import nn

from placer import legality
from placer.errors import PlacerError, UsageError
from placer.plans.plan import Plan
from placer.runtime.data_parallel.given_parameters import OptimizerFactory
from placer.runtime.distributed.world import device_of, join
from placer.runtime.executor.executor import Executor
from placer.runtime.executor.load import load
from placer.runtime.stages.batch_values import Batch
from placer.runtime.stages.captured_model import CapturedModel, captured, run_dtype
from placer.runtime.stages.microbatch import checked as checked_batch
from placer.runtime.verify.accepted import accepted_differences
from placer.runtime.verify.batches import uneven_batch
from placer.runtime.verify.eager.run import StepResult
from placer.runtime.verify.held import Judge
from placer.runtime.verify.judged import Subject, in_precision, judge_of, tried, uncompressed
from placer.runtime.verify.memory import shortage
from placer.runtime.verify.report import Comparison, VerifyReport
from placer.runtime.verify.words import casts_told, compared_told, evaluation_told, handed_told, labels_told
from placer.runtime.weights.meta_model import prepared_model
from placer.tracer.export.state.copies import copied

PrecisionAsked = Literal["both", "float64", "plan"]
T = TypeVar("T")
SILENT: Callable[[str], None] = lambda line: None  # noqa: E731 (a default argument)


@dataclass(frozen=True, kw_only=True)
class _Inputs:
    """What a run of verify was given, on this rank. patient: a group whose ranks wait long for the first."""

    plan: Plan
    rank: int
    steps: int
    model: nn.Module | None
    optimizer: OptimizerFactory | None
    batches: Sequence[Batch] | None
    captures: tuple[CapturedModel, ...]
    compile: str
    progress: Callable[[str], None]
    patient: dist.ProcessGroup | None

    def batches_of(self, plan: Plan) -> list[Batch]:
        """The batches of the steps, in the precision of `plan`."""
        if self.batches is None:
            return [uneven_batch(plan, step) for step in range(self.steps)]
        cast = [{name: t.to(run_dtype(plan, t.dtype)) for name, t in batch.items()} for batch in self.batches]
        return [checked_batch(batch, plan) for batch in cast]

    def shared(self, value: T) -> T:
        """That of rank 0, on every rank."""
        if self.patient is None:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0, group=self.patient)
        return box[0]


@torch.inference_mode(False)  # gradients are on in it, wherever the caller stands
def verify(
    plan: Plan,
    steps: int = 3,
    *,
    model: nn.Module | None = None,
    optimizer: OptimizerFactory | None = None,
    batches: Sequence[Batch] | None = None,
    capture: CapturedModel | Sequence[CapturedModel] | None = None,
    checked: bool = False,
    compile: str = "",
    precision: PrecisionAsked = "both",
    progress: Callable[[str], None] = SILENT,
) -> VerifyReport:
    """Run `steps` steps of the plan and of one device; every rank calls it and gets the same report.

    Without `batches` they are random, with labels left out unevenly and, after the first step, a microbatch without a
    single one that counts. capture: earlier captures of the model, in the precisions they were made for. precision:
    `float64`, the plan's own (`plan`), or `both`, which is the plan's own alone where the model knows no float64.
    `checked`, `compile`: see `load`. `progress` is told of each step.
    """
    rank = join(plan)
    if not checked:
        legality.require(plan)
    # One device does the work of all; the plan's own groups give up after a minute.
    patient = dist.new_group(backend="gloo", timeout=timedelta(hours=12)) if plan.world_size > 1 else None
    known = (capture,) if isinstance(capture, CapturedModel) else tuple(capture or ())
    given = _Inputs(
        plan=plan, rank=rank, steps=steps, model=model, optimizer=optimizer, batches=batches, captures=known,
        compile=compile, progress=progress, patient=patient,
    )  # fmt: skip
    if not known:
        progress("ranks are up, capturing the model")
    subjects, why = _subjects(given, precision)
    parts = [_held(given, subject, subjects) for subject in subjects]
    return given.shared(_merged(plan, parts, why))


def _subjects(given: _Inputs, asked: PrecisionAsked) -> tuple[tuple[Subject, ...], str]:
    """What is run, float64 first, and why that is left out, if it is."""
    if given.plan.settings.precision == "float64" and not given.plan.compresses:
        return (_own(given),), ""
    found, why = list[Subject](), ""
    if asked != "plan":
        wide, why = _wide(given)
        if wide is not None:
            found.append(wide)
        elif asked == "float64":
            raise UsageError(f"{why}; verify in the plan's own precision: --precision plan")
    if asked != "float64":
        found.append(_own(given))
    return tuple(found), why


def _wide(given: _Inputs) -> tuple[Subject | None, str]:
    """The plan in float64, where one device can do its steps so; else why not."""
    plan = uncompressed(in_precision(given.plan, "float64"))
    why = given.shared(shortage(plan, "float64", device_of(plan, 0)) if given.rank == 0 else "")
    if why:
        return None, why
    try:
        subject = _captured(given, plan)
    except PlacerError as error:
        if given.plan.settings.precision == "float64":
            raise
        return None, f"the model cannot be captured in float64: {error}"
    why = _tried(given, subject)
    return (None, why) if why else (subject, "")


def _own(given: _Inputs) -> Subject:
    plan = given.plan
    why = given.shared(shortage(plan, plan.settings.precision, device_of(plan, 0)) if given.rank == 0 else "")
    if why:
        raise UsageError(
            f"{why}: what is compared with is the whole batch at once, so this cannot be verified here; verify the "
            "same layout with fewer rows or layers"
        )
    subject = _captured(given, plan)
    why = _tried(given, subject)
    if why:
        raise UsageError(why)
    return subject


def _captured(given: _Inputs, plan: Plan) -> Subject:
    capture = next((one for one in given.captures if one.precision == plan.settings.precision), None)
    if capture is None:
        source = prepared_model(plan, copied(given.model), device_of(plan, given.rank))
        capture = captured(plan, source)
    if capture.unkeyed:
        raise UsageError(
            f"the model draws random numbers by {', '.join(capture.unkeyed[:3])}, which no model can be given; "
            "turn that off to verify (dropout, normal, uniform and whole numbers are given)"
        )
    return Subject(plan=plan, capture=capture)


def _tried(given: _Inputs, subject: Subject) -> str:
    why = ""
    if given.rank == 0:
        judge = judge_of(subject, copied(given.model), given.optimizer, None)
        why = tried(judge, given.batches_of(subject.plan)[0])
    return given.shared(why)


@dataclass(frozen=True, kw_only=True)
class _Part:
    """What came of one precision, on rank 0; elsewhere only the losses."""

    subject: Subject
    judge: Judge | None
    losses: tuple[float, ...]
    comparisons: tuple[Comparison, ...]


def _held(given: _Inputs, subject: Subject, subjects: tuple[Subject, ...]) -> _Part:
    """The plan's steps, then one device's."""
    plan, batches = subject.plan, given.batches_of(subject.plan)
    executor = load(
        plan, model=copied(given.model), optimizer=given.optimizer, capture=subject.capture, checked=True,
        compile=given.compile,
    )  # fmt: skip
    outcomes = _outcomes(executor, batches, given.progress)
    evaluated = None if plan.graph.evaluation else executor.evaluate(batches[-1])
    losses = tuple(one.loss for one in outcomes)
    if given.rank:
        return _Part(subject=subject, judge=None, losses=losses, comparisons=())
    wide = next((one for one in subjects if one is not subject and one.precision == "float64"), None)
    exact = None if wide is None or subject.precision == "float64" else (wide, copied(given.model))
    judge, found = judge_of(subject, copied(given.model), given.optimizer, exact), list[Comparison]()
    for step, (batch, ours) in enumerate(zip(batches, outcomes, strict=True)):
        given.progress(f"step {step + 1}/{len(batches)} on one device, {subject.label}")
        found += judge.step(step, batch, ours)
    if evaluated is not None:
        found.append(judge.evaluation(len(batches) - 1, batches[-1], evaluated))
    return _Part(subject=subject, judge=judge, losses=losses, comparisons=tuple(found))


def _outcomes(executor: Executor, batches: Sequence[Batch], progress: Callable[[str], None]) -> list[StepResult]:
    """The plan's steps; gradients and state are there on rank 0."""
    executor.keeps_gradients = True
    found = []
    for step, batch in enumerate(batches):
        progress(f"step {step + 1}/{len(batches)} as planned, {executor.plan.settings.precision}")
        loss = executor.step(batch)
        found.append(
            StepResult(
                loss=loss,
                norm=executor.gradient_norm or 0.0,
                gradients=executor.last_gradients,
                state=executor.full_state_dict(rank0_only=True),
            )
        )
    return found


def _merged(plan: Plan, parts: Sequence[_Part], why: str) -> VerifyReport:
    judged = [(part.judge, part) for part in parts if part.judge is not None]
    notes = [note for judge, part in judged for note in casts_told(part.subject, judge.relative)]
    return VerifyReport(
        comparisons=tuple(entry for part in parts for entry in part.comparisons),
        tolerance=judged[0][0].tolerance if judged else 0.0,
        losses=parts[0].losses,
        excepted="".join(judge.summing.excepted for judge, _ in judged),
        compared=tuple(compared_told(judge, plan.graph, len(part.losses)) for judge, part in judged),
        notes=(
            *((f"not in float64: {why}",) if why else ()),
            *notes,
            *(handed_told(judged[0][0]) if judged else ()),
            *labels_told(plan),
            *evaluation_told(plan),
            *accepted_differences(plan),
        ),
    )
