"""load(plan): the model captured, cut into this rank's stages, held as the plan says, with its optimizer: an
Executor."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import torch
from torch import nn

from placer import legality, tracer
from placer.errors import IllegalPlanError, StalePlanError, UsageError
from placer.plans import Plan
from placer.program import degree, gradient_buckets, part_buckets, shared_parameters
from placer.runtime.actions import Interpreter, Wiring
from placer.runtime.assembly import Assembly, Held
from placer.runtime.captured import PRECISIONS, Captured, captured
from placer.runtime.cut import Cut
from placer.runtime.executor import Executor, Parts
from placer.runtime.gradients import Gradients
from placer.runtime.groups import TIMEOUT_SECONDS, device_of, join
from placer.runtime.labels import class_weights, labels_of
from placer.runtime.lowering import Axis, LocalBlocks
from placer.runtime.optimizers import OptimizerFactory, Updater, optimizer_factory
from placer.runtime.stages import Stage
from placer.runtime.state import model_state


def load(
    plan: Plan,
    model: nn.Module | None = None,
    optimizer: OptimizerFactory | None = None,
    *,
    capture: Captured | None = None,
    timeout_seconds: float = TIMEOUT_SECONDS,
) -> Executor:
    """The executor of this process's rank.

    model: the model itself where the plan cannot rebuild it, or to start from its weights (the same on every rank;
    it is
    converted to the plan's precision and trained in place); otherwise it is built with weights from the plan's seed.
    optimizer: makes one from parameters instead of the settings' own; it must work element by element, as AdamW and
    SGD do.
    capture: an earlier capture of the same model in the same precision, to save its time.
    timeout_seconds: no communication waits longer.
    Raises UsageError without torchrun or with another number of ranks, IllegalPlanError, StalePlanError for another
    model.
    """
    legality.require(plan)
    rank = join(plan, timeout_seconds)
    device = device_of(plan, rank)
    source = prepared_model(plan, model, device)
    cut = (capture or captured(plan, source)).cut(plan, source)
    return _executor(assembly(plan, source, cut, rank=rank, device=device, timeout_seconds=timeout_seconds), optimizer)


def loaded_alone(
    plan: Plan, source: nn.Module, capture: Captured, *, rank: int, device: torch.device, fill: Callable[[Stage], None]
) -> Executor:
    """The executor of `rank` in a process that has a world to itself (`placer.runtime.dry`), of a model without memory,
    whose stages `fill` gives tensors."""
    cut = capture.cut(plan, source)
    made = assembly(plan, source, cut, rank=rank, device=device, timeout_seconds=TIMEOUT_SECONDS)
    return _executor(replace(made, alone=True, fill=fill), None)


def assembly(
    plan: Plan, source: nn.Module, cut: Cut, *, rank: int, device: torch.device, timeout_seconds: float
) -> Assembly:
    """What `rank` is made from: the model cut into blocks and, where replicas have several devices, these lowered."""
    require_linear(plan, cut)
    axis = Axis(degree(plan), rank % degree(plan))
    if plan.layouts:
        cut = replace(cut, lowering=LocalBlocks.of(plan, axis))
    return Assembly(
        plan=plan, rank=rank, device=device, model=source, cut=cut, axis=axis, timeout_seconds=timeout_seconds
    )


def prepared_model(plan: Plan, model: nn.Module | None, device: torch.device) -> nn.Module:
    """The model with real weights, in the plan's precision, in training mode. Raises UsageError, StalePlanError."""
    if model is None:
        if plan.model.kind == "module":
            raise UsageError(
                "the plan was made from a module of another process; give it: placer.runtime.load(plan, model)"
            )
        model = tracer.resolve(plan.model).build(device, seed=plan.seed)
    else:
        found = tracer.fingerprint(model)
        if plan.model.fingerprint and found != plan.model.fingerprint:
            raise StalePlanError("the plan was made for another model: its structure or shapes differ; plan again")
    return model.to(device=device, dtype=PRECISIONS[plan.settings.precision]).train()


def require_linear(plan: Plan, cut: Cut) -> None:
    """Raise UsageError for a model without a loss, IllegalPlanError where its loss does not add up over pieces."""
    pieces = len(plan.microbatches) * plan.stages[0].replicas
    if cut.loss_node is None:
        raise UsageError(
            f"{plan.graph.name} gives no loss ({plan.graph.loss.why}); plan with a batch that has labels, or a loss_fn"
        )
    if pieces > 1 and cut.rewrites.nonlinear:
        raise IllegalPlanError(
            f"the batch is divided into {pieces} pieces, but {cut.rewrites.nonlinear}; use one piece"
        )


def _executor(made: Assembly, optimizer: OptimizerFactory | None) -> Executor:
    """The parts of one rank wired together."""
    held = made.held()
    gradients = _gradients(made, held)
    interpreter = Interpreter(
        _wiring(made, held),
        reduce=gradients.reduce,
        sum_over=gradients.sum_over,
        update=lambda: executor.finish_step(),
        observer=held.relay,
    )
    executor = Executor(_parts(made, held, gradients, optimizer), held.replicas, interpreter)
    return executor


def _wiring(made: Assembly, held: Held) -> Wiring:
    return Wiring(
        program=held.program,
        replicas=held.replicas,
        home=made.home(),
        shapes=made.shapes(),
        loss=made.cut.loss,
        autocast=made.plan.settings.precision == "bfloat16-autocast",
        device=made.device,
        counts_loss=held.program.inner == 0,
        eager_attention=made.plan.settings.attention == "eager",
    )


def _gradients(made: Assembly, held: Held) -> Gradients:
    plan, inner = made.plan, held.program.inner
    buckets = {
        (stage, f"{unit} {index}"): bucket.names
        for stage in held.program.stages
        for unit, found in (("bucket", gradient_buckets), ("parts", part_buckets))
        for index, bucket in enumerate(found(plan, stage, inner))
    }
    return Gradients(
        held.parameters,
        buckets=buckets,
        shared=shared_parameters(plan),
        counts_own=held.program.replica == 0,
        pieces=made.pieces,
        group_of=held.groups.of,
        observer=held.relay,
    )


def _parts(made: Assembly, held: Held, gradients: Gradients, optimizer: OptimizerFactory | None) -> Parts:
    state = model_state(
        made.model, made.cut, held.stages, rank=made.rank, first_rank=held.ranks[0], group=held.group,
        pieces=made.pieces,
    )  # fmt: skip
    return Parts(
        plan=made.plan,
        rank=made.rank,
        replica=held.program.replica,
        relay=held.relay,
        device=made.device,
        stages=held.stages,
        gradients=gradients,
        updater=Updater(_named_once(held.parameters), optimizer or optimizer_factory(made.plan.settings, fused=True)),
        state=state,
        pieces=made.pieces,
        counts=made.cut.rewrites.counts,
        weights=class_weights(made.cut),
        labels=labels_of(made.cut),
        draws=bool(made.cut.rewrites.batched),
    )


def _named_once(parameters: Mapping[int, Mapping[str, nn.Parameter]]) -> dict[str, nn.Parameter]:
    """All parameters of a rank by name; a second copy of a tied one is numbered."""
    found: dict[str, nn.Parameter] = {}
    for stage, named in parameters.items():
        for name, parameter in named.items():
            found[name if name not in found else f"{name}@{stage}"] = parameter
    return found
