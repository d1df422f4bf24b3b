"""load(plan): the model captured, cut into this rank's stages, held as the plan says, with its optimizer: an
Executor."""

from __future__ import annotations

import sys
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn

from placer import legality
from placer.errors import UsageError
from placer.plans.plan import Plan
from placer.plans.provenance import import_model
from placer.plans.schedule import SPLIT_BACKWARD
from placer.program.lowering import lower
from placer.program.ranks import connected_with, position_of_rank
from placer.program.told import told_weights
from placer.runtime.data_parallel.elementwise import require_elementwise
from placer.runtime.data_parallel.given_parameters import OptimizerFactory, require_maker
from placer.runtime.data_parallel.gradients import Gradients
from placer.runtime.data_parallel.optimizer import rank_updater
from placer.runtime.data_parallel.relaxed_sync import (
    Column,
    LocalSgd,
    RelaxedSync,
    StaleGradients,
    columns,
    replica_ranks,
)
from placer.runtime.data_parallel.synchrony import SYNCHRONOUS, Synchrony, require_replicas, rows_of
from placer.runtime.distributed.world import TIMEOUT_SECONDS, Groups, device_of, join
from placer.runtime.executor.compile import Compiler, patience, require_compilable, require_ready
from placer.runtime.executor.executor import Executor
from placer.runtime.executor.interpreter import Interpreter
from placer.runtime.executor.messages import Mailbox, MessageParts, makers, value_shapes
from placer.runtime.executor.rank_builder import RankModel, RankState, rank_groups, rank_state
from placer.runtime.stages.block_code import CutModel
from placer.runtime.stages.captured_model import CapturedModel, captured
from placer.runtime.stages.microbatch import BatchSplit
from placer.runtime.stages.stage import OP_BY_OP, StageModule
from placer.runtime.weights.given_model import GivenModel
from placer.runtime.weights.meta_model import MetaModel, meta_model, named_tensors
from placer.runtime.weights.model_state import model_state
from placer.runtime.weights.rank_weights import ModelInMemory
from placer.runtime.weights.same_weights import require_same_weights


@torch.inference_mode(False)  # gradients are on in it, wherever the caller stands
def load(
    plan: Plan,
    model: nn.Module | None = None,
    optimizer: OptimizerFactory | None = None,
    *,
    weights: str = "",
    capture: CapturedModel | None = None,
    checked: bool = False,
    timeout_seconds: float = TIMEOUT_SECONDS,
    synchrony: Synchrony = SYNCHRONOUS,
    compile: str = "",
) -> Executor:
    """The executor of this process's rank.

    model: the model itself where the plan cannot rebuild it, or to start from its weights (the same on every rank; it
    is converted to the plan's precision, and trained in place only as far as this rank holds whole tensors of it: take
    weights from `full_state_dict`; steps refuse what was frozen or written in it since where they would not follow);
    otherwise it is built with weights from the plan's seed.
    weights: a Hugging Face folder (safetensors) to start from; each rank reads the slices it holds.
    optimizer: makes one from parameters instead of the settings' own; where the plan cuts parameters (ops over devices,
    ZeRO) or gives ranks some of them (stages), it must work element by element, as AdamW and SGD do, which is tried:
    Adafactor, LAMB and Muon do not, nor does what clips by the norm of all.
    capture: an earlier capture of the same model in the same precision, to save its time.
    checked: the caller has found the plan legal already, which takes long for each rank of its own.
    timeout_seconds: no communication waits longer.
    synchrony: how replicas keep together; all but the default change the mathematics.
    compile: the backend of torch.compile that runs the blocks (`inductor`, `aot_eager`); "" runs them op by op.
    Raises UsageError without torchrun or with another number of ranks, IllegalPlanError, StalePlanError for another
    model.
    """
    if not isinstance(plan, Plan):
        raise UsageError(f"the plan is a {type(plan).__name__}; give a Plan, as Plan.load(path) reads it")
    if model is None:
        import_model(plan)
    if not checked:
        legality.require(plan)
    require_replicas(plan, synchrony)
    require_compilable(plan, compile)
    if optimizer is not None:
        require_maker(optimizer)
        require_elementwise(plan, optimizer)
    timeout_seconds, met = patience(timeout_seconds, compile), dist.is_initialized()
    rank = join(plan, timeout_seconds)
    device = device_of(plan, rank)
    source = meta_model(plan, model, device, weights)
    if source.note and rank == 0:
        print(f"placer: {source.note}", file=sys.stderr)
    cut = (capture or captured(plan, source.model)).cut(plan, source.model)
    if compile:
        require_ready(compile, device, cut.rewrites.unkeyed)
    require_loss(plan, cut)
    rank_model = RankModel.of(plan, source, cut, rank=rank, device=device)
    programs, relaxed = lower(plan), synchrony.relaxed
    groups = Groups(programs, (*rank_groups(plan), *(columns(plan) if relaxed else ())), timeout_seconds)
    run = Compiler(compile, device, tells=bool(told_weights(plan.graph))).run if compile else OP_BY_OP
    state = rank_state(rank_model, programs[rank], groups, fill=rank_model.weights.fill, run=run, relaxed=relaxed)
    require_same_weights(state.stages, state.ranks)
    executor = _executor(rank_model, state, groups, optimizer, synchrony)
    executor.joined = not met
    if model is not None:
        executor.given = GivenModel(source.model, rank_model.chunks, freezes=_freezes(plan))
    return executor


def loaded_alone(
    plan: Plan,
    source: nn.Module,
    capture: CapturedModel,
    *,
    rank: int,
    device: torch.device,
    fill: Callable[[StageModule], None],
) -> Executor:
    """The executor of `rank` in a process that has a world to itself (`placer.runtime.dry`), of a model without memory,
    whose stages `fill` gives tensors.

    Nothing is made for ranks that do not stand like this one in the replicas it communicates with.
    """
    cut, bare = capture.cut(plan, source), MetaModel(model=source, source=ModelInMemory(named_tensors(source)))
    require_loss(plan, cut)
    model = RankModel.of(plan, bare, cut, rank=rank, device=device)
    position = position_of_rank(plan, rank)
    replica = (rank - plan.first_ranks[position]) // model.axis.degree
    programs = lower(plan, (connected_with(plan, position, replica),), (model.axis.rank,))
    program = next(program for program in programs if program.rank == rank)
    groups = Groups(programs, rank_groups(plan), TIMEOUT_SECONDS, rank)
    return _executor(model, rank_state(model, program, groups, fill=fill, run=OP_BY_OP, relaxed=False), groups)


def require_loss(plan: Plan, cut: CutModel) -> None:
    """Raise UsageError for a model without a loss."""
    if cut.loss_node is None:
        raise UsageError(
            f"{plan.graph.name} gives no loss ({plan.graph.loss.why}); plan with a batch that has labels, or a loss_fn"
        )


def _freezes(plan: Plan) -> bool:
    """Whether every rank trains whole parameters by themselves, so that one without a gradient stays as it is."""
    alone = all(stage.replicas == 1 and stage.degree == 1 for stage in plan.stages)
    return alone and plan.settings.precision in ("float32", "float64") and plan.schedule not in SPLIT_BACKWARD


def _executor(
    model: RankModel, held: RankState, groups: Groups, optimizer: OptimizerFactory | None = None,
    synchrony: Synchrony = SYNCHRONOUS,
) -> Executor:  # fmt: skip
    """What runs the steps of one rank, made from what it holds."""
    plan, program, device, whole = model.plan, held.program, model.device, model.weights.whole
    gradients = Gradients.of(
        plan, program, held.parameters, shards=len(held.ranks), zero1=held.zero1,
        counts_own=program.replica == 0 or synchrony.relaxed, pieces=model.pieces, groups=groups, observer=held.relay,
        heard={stage: one.heard for stage, one in held.replicas.items() if one.grouped},
    )  # fmt: skip
    updater = rank_updater(plan, held.parameters, held.zero1, optimizer, device)
    state = model_state(
        model.cut, held.stages, whole, rank=model.rank, first_rank=held.ranks[0], group=held.group,
        unlike=plan.cluster.unlike(plan.ranks[rank] for rank in held.ranks), pieces=model.pieces,
    )  # fmt: skip
    feeder = BatchSplit.of(
        plan, model.cut, whole, position=position_of_rank(plan, model.rank), replica=program.replica, device=device
    )
    own = replica_ranks(plan, program.replica) if synchrony.own_loss else ()
    column: Column | None = None
    if synchrony.relaxed and held.group is not None:
        column = Column(
            plan=plan, program=program, ranks=held.ranks, group=held.group, gradients=gradients, updater=updater,
            observer=held.relay,
        )  # fmt: skip
    interpreter = Interpreter(
        plan=plan, program=program, device=device, replicas=held.replicas, home=makers(plan, model.cut),
        shapes=value_shapes(plan, model.cut, model.axis),
        parts=MessageParts(plan, program.inner), mail=Mailbox(plan, model.rank, device, held.relay),
        loss=model.cut.loss, reached=model.cut.reached_values, reduce=(column or gradients).reduce,
        sum_over=gradients.sum_over, observer=held.relay, own_ranks=own, tells=bool(told_weights(plan.graph)),
    )  # fmt: skip
    return Executor(
        plan=plan, rank=model.rank, device=device, relay=held.relay, stages=held.stages, replicas=held.replicas,
        chunks=model.chunks, feeder=feeder, gradients=gradients, updater=updater, state=state, interpreter=interpreter,
        relaxed=None if column is None else _relaxed(column, synchrony), draws=model.cut.rewrites.random,
        own_rows=rows_of(plan, program.replica) / plan.rows if own else 1.0,
    )  # fmt: skip


def _relaxed(column: Column, synchrony: Synchrony) -> RelaxedSync:
    if synchrony.average_every is not None:
        return LocalSgd(column, synchrony.average_every)
    return StaleGradients(column, synchrony.staleness or 0)
