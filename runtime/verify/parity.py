"""verify(plan): the plan's steps beside the reference run's, compared by loss, gradients, updated parameters and
buffers.

    error of a tensor = max |a - b| / (max |b| + share of the largest b of all tensors)

An element's updated value is compared only where its gradients agreed to a few digits: where a gradient is nothing but
rounding (a key's bias), AdamW turns that rounding into a full step. The reference then goes on from the plan's value of
that element, so that the next step compares the same computation. Such gradients themselves are compared like all
others, with one exception: a parameter's gradient that is a plain sum of many terms (a bias) and is zero but for
rounding in every element,

    max |b| <= tolerance * max over its elements of (sum of |terms|)      (`TermMagnitudes` adds them up)

as of a bias before batch norm. Its error is taken relative to that sum of |terms|, which is what float sums are exact
to: a gradient that should be zero and is not is still found.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

import torch
from torch import distributed as dist
from torch import nn

from placer import tracer
from placer.errors import UsageError
from placer.plans.plan import Plan
from placer.runtime.data_parallel.optimizer import OptimizerFactory
from placer.runtime.distributed.world import device_of, join
from placer.runtime.executor.executor import Executor
from placer.runtime.executor.load import load
from placer.runtime.stages.batch_values import Batch
from placer.runtime.stages.captured_model import CapturedModel, captured, run_dtype
from placer.runtime.verify.reference import Reference, StepResult
from placer.runtime.weights.meta_model import prepared_model

# float64 and float32: the project's own promise. 1e-6 where the model casts to float32: sums in another order differ by
# up to 4e-8 after such a cast. bfloat16 has 8 significant bits: 4 units of the last place; float16 has 11.
TOLERANCES = {
    "float64": 1e-9,
    "float32": 1e-5,
    "bfloat16-autocast": 4 * 2**-7,
    "bfloat16": 4 * 2**-7,
    "float16": 4 * 2**-10,
}
CAST_TOLERANCE = 1e-6

SILENT: Callable[[str], None] = lambda line: None  # noqa: E731 (a default argument)

# The part of the model's largest value that counts as scale for every tensor.
_COMMON_SCALE = 1e-3
# Gradients that agree to less than this many tolerances leave their element's update out. AdamW's update moves by up to
# the learning rate times the gradient's relative error where that is near epsilon, and a bias that began at zero is no
# larger than the learning rate: with 100 such an update was off by 3.6 tolerances.
_UPDATE_AGREEMENT = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One quantity of one step: largest absolute and relative error, and the tensor they are from."""

    step: int
    quantity: str
    absolute: float
    relative: float
    where: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyReport:
    """What verify found. `tolerance` bounds every relative error; `notes` say what was compared and why so."""

    comparisons: tuple[Comparison, ...]
    tolerance: float
    losses: tuple[float, ...]
    notes: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """Whether every error is within the tolerance; an error that is not a number is not."""
        return all(entry.relative <= self.tolerance for entry in self.comparisons)

    @property
    def worst(self) -> Comparison:
        """The largest relative error."""
        return max(
            self.comparisons, key=lambda entry: entry.relative if entry.relative == entry.relative else float("inf")
        )

    def __str__(self) -> str:
        lines = [f"{'step':>4}  {'quantity':12}  {'absolute':>10}  {'relative':>10}  where"]
        lines += [
            f"{c.step:>4}  {c.quantity:12}  {c.absolute:10.2e}  {c.relative:10.2e}  {c.where}" for c in self.comparisons
        ]
        verdict = "equal to the reference run" if self.passed else "DIFFERENT from the reference run"
        return "\n".join([*lines, f"{verdict}: tolerance {self.tolerance:.0e}", *(f"- {note}" for note in self.notes)])


def verify(
    plan: Plan,
    steps: int = 3,
    *,
    model: nn.Module | None = None,
    optimizer: OptimizerFactory | None = None,
    batches: Sequence[Batch] | None = None,
    capture: CapturedModel | None = None,
    checked: bool = False,
    compile: str = "",
    progress: Callable[[str], None] = SILENT,
) -> VerifyReport:
    """Run `steps` steps of the plan and of the reference; every rank calls it and gets the same report.

    Without `batches` they are random, with labels left out unevenly and a last microbatch without a single one that
    counts. `checked`, `compile`: see `load`. `progress` is told of each step.
    """
    rank = join(plan)
    given = copy.deepcopy(model) if rank == 0 else None
    if capture is None:
        progress("ranks are up, capturing the model")
        capture = captured(plan, prepared_model(plan, copy.deepcopy(model), device_of(plan, rank)))
    if capture.unkeyed:
        raise UsageError(
            f"the model draws random numbers by {', '.join(capture.unkeyed[:3])}, which no layout can repeat; "
            "turn that off to verify (dropout and attention dropout are repeatable)"
        )
    batches = batches or [uneven_batch(plan, step) for step in range(steps)]
    executor = load(plan, model=model, optimizer=optimizer, capture=capture, checked=checked, compile=compile)
    outcomes = _outcomes(executor, batches, progress)
    evaluated = executor.evaluate(batches[-1])
    found = None
    if rank == 0:
        found = _compared(plan, given, optimizer, capture, batches, outcomes, evaluated, progress)
    return _shared(plan, found)


def _outcomes(executor: Executor, batches: Sequence[Batch], progress: Callable[[str], None]) -> list[StepResult]:
    """The plan's steps; gradients and state are there on rank 0."""
    executor.keeps_gradients = True
    found = []
    for step, batch in enumerate(batches):
        progress(f"step {step + 1}/{len(batches)} as planned")
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


def uneven_batch(plan: Plan, seed: int) -> Batch:
    """A random batch of the plan's rows; where labels can be left out, row r leaves out a part that depends on r, and
    the last of several microbatches all of them."""
    batch = tracer.random_batch(plan.graph, plan.rows, seed)
    batch = {name: t.to(run_dtype(plan, t.dtype)) for name, t in batch.items()}
    loss = plan.graph.loss
    if loss.ignore_index is None or loss.labels not in batch:
        return batch
    labels = batch[loss.labels].clone()
    for row in range(plan.rows):
        if labels.dim() > 1:
            labels[row].view(-1)[: row % 3 * labels[row].numel() // 4] = loss.ignore_index
    if len(plan.microbatches) > 1:
        labels[plan.rows - plan.microbatches[-1] :] = loss.ignore_index
    return {**batch, loss.labels: labels}


def _compared(
    plan: Plan,
    model: nn.Module | None,
    optimizer: OptimizerFactory | None,
    capture: CapturedModel,
    batches: Sequence[Batch],
    outcomes: Sequence[StepResult],
    evaluated: float,
    progress: Callable[[str], None],
) -> VerifyReport:
    source = prepared_model(plan, model, device_of(plan, 0))
    reference = Reference.of(plan, source, capture.cut(plan, source), optimizer)
    tolerance, notes = _tolerance(plan, capture)
    comparisons: list[Comparison] = []
    agreed: dict[str, torch.Tensor] = {}
    buffers, tied = frozenset(name for name, _ in source.named_buffers()), _first_names(source)
    for step, (batch, ours) in enumerate(zip(batches, outcomes, strict=True)):
        progress(f"step {step + 1}/{len(batches)} on one device")
        theirs = reference.step(batch)
        comparisons += _step_comparisons(step, ours, theirs, agreed, buffers=buffers, tied=tied, tolerance=tolerance)
        reference.adopt(ours.state, agreed)
    last = len(batches) - 1
    comparisons.append(_scalar(last, "evaluation", evaluated, reference.evaluate(batches[-1])))
    left_out = sum(int((~mask).sum()) for mask in agreed.values())
    if left_out:
        notes += (f"{left_out} elements have gradients that are rounding only; their updates are not compared",)
    return VerifyReport(
        comparisons=tuple(comparisons),
        tolerance=tolerance,
        losses=tuple(entry.loss for entry in outcomes),
        notes=(*notes, *_buffer_notes(plan, source)),
    )


def _step_comparisons(
    step: int,
    ours: StepResult,
    theirs: StepResult,
    agreed: dict[str, torch.Tensor],
    *,
    buffers: frozenset[str],
    tied: Mapping[str, str],
    tolerance: float,
) -> list[Comparison]:
    needed = min(_UPDATE_AGREEMENT * tolerance, 0.1)
    for name, gradient in theirs.gradients.items():
        if name in ours.gradients:
            mask = (ours.gradients[name] - gradient).abs() <= needed * gradient.abs()
            agreed[name] = agreed.get(name, torch.ones_like(mask)) & mask
    kept = {name: tensor for name, tensor in theirs.state.items() if name in buffers}
    weights = {name: tensor for name, tensor in theirs.state.items() if name not in buffers}
    masks = {name: agreed[first] for name, first in tied.items() if first in agreed}
    return [
        _scalar(step, "loss", ours.loss, theirs.loss),
        *([_scalar(step, "norm", ours.norm, theirs.norm)] if ours.norm else []),
        _tensors(step, "gradients", ours.gradients, theirs.gradients, {}, _vanishing(theirs, tolerance)),
        _tensors(step, "parameters", ours.state, weights, masks),
        *([_tensors(step, "buffers", ours.state, kept, {})] if kept else []),
    ]


def _first_names(model: nn.Module) -> dict[str, str]:
    """For every name of a parameter the one its gradient has: a tied parameter has several."""
    first: dict[nn.Parameter, str] = {}
    return {name: first.setdefault(one, name) for name, one in model.named_parameters(remove_duplicate=False)}


def _vanishing(theirs: StepResult, tolerance: float) -> dict[str, float]:
    """What the gradients that are zero but for rounding were summed from, at its largest element."""
    found = {name: float(magnitude.max()) for name, magnitude in theirs.magnitudes.items() if name in theirs.gradients}
    return {
        name: scale
        for name, scale in found.items()
        if float(theirs.gradients[name].double().abs().max()) <= tolerance * scale
    }


def _scalar(step: int, quantity: str, ours: float, theirs: float) -> Comparison:
    error = abs(ours - theirs)
    return Comparison(step=step, quantity=quantity, absolute=error, relative=error / max(abs(theirs), 1e-12))


def _tensors(
    step: int,
    quantity: str,
    ours: Mapping[str, torch.Tensor],
    theirs: Mapping[str, torch.Tensor],
    masks: Mapping[str, torch.Tensor],
    scales: Mapping[str, float] | None = None,
) -> Comparison:
    """The tensor with the largest relative error; one that is missing has an infinite one.

    scales: what counts as the size of some tensors instead of their largest element.
    """
    largest = max((float(t.double().abs().max()) for t in theirs.values() if t.numel()), default=0.0)
    worst = Comparison(step=step, quantity=quantity, absolute=0.0, relative=0.0)
    for name, right in theirs.items():
        if name not in ours or ours[name].shape != right.shape:
            return replace(worst, absolute=float("inf"), relative=float("inf"), where=f"{name} is missing")
        if right.numel() == 0:
            continue
        difference = (ours[name].double() - right.double()).abs()
        if name in masks:
            difference = torch.where(masks[name], difference, 0.0)
        error = float(difference.max())
        scale = (scales or {}).get(name, float(right.double().abs().max()))
        relative = error / (scale + _COMMON_SCALE * largest + 1e-300)
        if not relative <= worst.relative:
            worst = replace(worst, absolute=error, relative=relative, where=name)
    return worst


def _tolerance(plan: Plan, capture: CapturedModel) -> tuple[float, tuple[str, ...]]:
    precision = plan.settings.precision
    tolerance = TOLERANCES[precision]
    if precision != "float64":
        return tolerance, ()
    casts = capture.casts_to(torch.float32)
    if not casts:
        return tolerance, ("the model computes in float64 throughout",)
    return CAST_TOLERANCE, (
        f"the model casts to float32 inside ({', '.join(casts[:4])}): tolerance {CAST_TOLERANCE:.0e}",
    )


def _buffer_notes(plan: Plan, model: nn.Module) -> tuple[str, ...]:
    if not any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in model.modules()):
        return ()
    counts = tuple(mesh.replicas for mesh in plan.meshes)
    replicas = f"{counts[0]} replicas" if len(set(counts)) == 1 else f"the replicas of its stage ({counts})"
    return (
        f"batch norm normalises each of {len(plan.microbatches)} microbatches x {replicas} by its own rows, in both "
        "runs; running statistics are those of replica 0",
    )


def _shared(plan: Plan, report: VerifyReport | None) -> VerifyReport:
    """Rank 0's report on every rank."""
    if plan.world_size > 1:
        # The reference may take long; the plan's own groups give up after a minute.
        patient = dist.new_group(backend="gloo", timeout=timedelta(hours=12))
        box = [report]
        dist.broadcast_object_list(box, src=0, group=patient)
        report = box[0]
    assert report is not None
    return report
