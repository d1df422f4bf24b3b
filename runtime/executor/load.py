"""load(plan): the model captured, cut into this rank's stages, held as the plan says, with its optimizer: an
Executor."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch import nn

from placer import legality
from placer.errors import IllegalPlanError, UsageError
from placer.plans.plan import Plan
from placer.program.buckets import divided_buckets, gradient_buckets, part_buckets, shared_parameters
from placer.program.collectives import tied_by_inner, tied_by_shard
from placer.program.ranks import position_of, position_of_rank
from placer.runtime.data_parallel.gradients import Gradients, Tie
from placer.runtime.data_parallel.local_sgd import LocalSgd
from placer.runtime.data_parallel.optimizer import OptimizerFactory, Updater, optimizer_factory
from placer.runtime.data_parallel.relaxed_sync import Column, RelaxedSync, column_of_rank, columns
from placer.runtime.data_parallel.stale_gradients import StaleGradients
from placer.runtime.data_parallel.synchrony import SYNCHRONOUS, Synchrony, require_replicas
from placer.runtime.data_parallel.zero1 import Zero1
from placer.runtime.distributed.groups import TIMEOUT_SECONDS, Groups, by_host, device_of, join
from placer.runtime.executor.compile import Compiler, patience, require_compilable, require_ready
from placer.runtime.executor.executor import Executor, Parts
from placer.runtime.executor.interpreter import Interpreter, Wiring
from placer.runtime.executor.message_slices import MessageParts
from placer.runtime.executor.messages import Deliveries
from placer.runtime.executor.rank_builder import Assembly, Held
from placer.runtime.spmd import Axis, LocalBlocks, Pieces
from placer.runtime.stages.batch_split import BatchSplit
from placer.runtime.stages.block_code import CutModel
from placer.runtime.stages.captured_model import CapturedModel, captured
from placer.runtime.stages.stage import OP_BY_OP, StageModule
from placer.runtime.weights.meta_model import MetaModel, meta_model, named_tensors, shapes
from placer.runtime.weights.meta_model import prepared_model as prepared_model
from placer.runtime.weights.model_state import model_state
from placer.runtime.weights.rank_weights import RankWeights
from placer.runtime.weights.sources import ModelInMemory
from placer.runtime.weights.tensor_chunks import ChunkMap
from placer.spmd.parameter_layouts import parameter_states


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

    model: the model itself where the plan cannot rebuild it, or to start from its weights (the same on every rank;
    it is
    converted to the plan's precision and trained in place); otherwise it is built with weights from the plan's seed.
    weights: a Hugging Face folder (safetensors) to start from; each rank reads the slices it holds.
    optimizer: makes one from parameters instead of the settings' own; it must work element by element, as AdamW and
    SGD do.
    capture: an earlier capture of the same model in the same precision, to save its time.
    checked: the caller has found the plan legal already, which takes long for each rank of its own.
    timeout_seconds: no communication waits longer.
    synchrony: how replicas keep together; all but the default change the mathematics.
    compile: the backend of torch.compile that runs the blocks (`inductor`, `aot_eager`); "" runs them op by op.
    Raises UsageError without torchrun or with another number of ranks, IllegalPlanError, StalePlanError for another
    model.
    """
    if not checked:
        legality.require(plan)
    require_replicas(plan, synchrony)
    require_compilable(plan, compile)
    timeout_seconds = patience(timeout_seconds, compile)
    rank = join(plan, timeout_seconds)
    device = device_of(plan, rank)
    source = meta_model(plan, model, device, weights)
    if source.note and rank == 0:
        print(f"placer: {source.note}", file=sys.stderr)
    cut = (capture or captured(plan, source.model)).cut(plan, source.model)
    if compile:
        require_ready(compile, device, cut.rewrites.unkeyed)
    made = assembly(plan, source, cut, rank=rank, device=device, timeout_seconds=timeout_seconds)
    run = Compiler(compile, device).run if compile else OP_BY_OP
    return _executor(replace(made, relaxed=synchrony.kind != "synchronous", run=run), optimizer, synchrony)


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
    whose stages `fill` gives tensors."""
    cut = capture.cut(plan, source)
    bare = MetaModel(model=source, source=ModelInMemory(named_tensors(source)))
    made = assembly(plan, bare, cut, rank=rank, device=device, timeout_seconds=TIMEOUT_SECONDS)
    return _executor(replace(made, alone=True, fill=fill), None)


def assembly(
    plan: Plan, source: MetaModel, cut: CutModel, *, rank: int, device: torch.device, timeout_seconds: float
) -> Assembly:
    """What `rank` is made from: the model cut into blocks and, where replicas have several devices, these lowered."""
    require_linear(plan, cut)
    axis = axis_of(plan, rank)
    if plan.layouts:
        cut = replace(cut, lowering=LocalBlocks.of(plan, axis))
    pieces = Pieces(parameter_states(plan), axis)
    chunks = ChunkMap(shapes(source.model), pieces, _read_only(plan, rank))
    weights = RankWeights(source.model, source.source, chunks, device)
    return Assembly(
        plan=plan, rank=rank, device=device, weights=weights, pieces=pieces, chunks=chunks, cut=cut, axis=axis,
        timeout_seconds=timeout_seconds, fill=weights.fill,
    )  # fmt: skip


def _read_only(plan: Plan, rank: int) -> Iterator[str]:
    """Tied parameters that this rank's stages cut in other places than the first stage that has them."""
    own = position_of_rank(plan, rank)
    for name, stages in shared_parameters(plan).items():
        held = [plan.stages[stage] for stage in stages if plan.graph.parameters[name].shape]
        kinds = {(stage.by_fsdp, stage.replicas if stage.sharding != "none" else 1) for stage in held}
        if position_of(plan)[stages[0]] != own and not (len(kinds) < 2 and tied_by_inner(plan, stages)):
            yield name


def axis_of(plan: Plan, rank: int) -> Axis:
    """The devices of a rank's replica, and the rank among them."""
    position = position_of_rank(plan, rank)
    degree = plan.meshes[position].degree
    return Axis(degree, (rank - plan.first_ranks[position]) % degree)


def require_linear(plan: Plan, cut: CutModel) -> None:
    """Raise UsageError for a model without a loss, IllegalPlanError where its loss does not add up over pieces."""
    pieces = len(plan.microbatches) * max(mesh.replicas for mesh in plan.meshes)
    if cut.loss_node is None:
        raise UsageError(
            f"{plan.graph.name} gives no loss ({plan.graph.loss.why}); plan with a batch that has labels, or a loss_fn"
        )
    if pieces > 1 and cut.rewrites.nonlinear:
        raise IllegalPlanError(
            f"the batch is divided into {pieces} pieces, but {cut.rewrites.nonlinear}; use one piece"
        )


def _executor(made: Assembly, optimizer: OptimizerFactory | None, synchrony: Synchrony = SYNCHRONOUS) -> Executor:
    """The parts of one rank wired together."""
    held = made.held()
    groups = Groups((), columns(made.plan) if made.relaxed else (), made.timeout_seconds)
    gradients = _gradients(made, held, groups)
    parts = _parts(made, held, gradients, optimizer)
    column = _column(made, held, parts) if made.relaxed else None
    interpreter = Interpreter(
        _wiring(made, held),
        reduce=gradients.reduce if column is None else column.reduce,
        sum_over=gradients.sum_over,
        update=lambda: executor.finish_step(),
        observer=held.relay,
    )
    executor = Executor(replace(parts, ending=_ending(column, synchrony)), held.replicas, interpreter)
    return executor


def _column(made: Assembly, held: Held, parts: Parts) -> Column:
    assert held.group is not None  # `require_replicas`
    return Column(
        plan=made.plan,
        replica=held.program.replica,
        ranks=held.ranks,
        group=held.group,
        column=column_of_rank(made.plan, held.program),
        gradients=parts.gradients,
        updater=parts.updater,
        observer=held.relay,
    )


def _ending(column: Column | None, synchrony: Synchrony) -> RelaxedSync | None:
    if column is None:
        return None
    if synchrony.average_every is not None:
        return LocalSgd(column, synchrony.average_every)
    return StaleGradients(column, synchrony.staleness or 0)


def _wiring(made: Assembly, held: Held) -> Wiring:
    return Wiring(
        program=held.program,
        replicas=held.replicas,
        home=made.home(),
        shapes=made.shapes(),
        parts=MessageParts(made.plan, held.program.inner),
        deliveries=Deliveries(made.plan),
        loss=made.cut.loss,
        autocast=made.plan.settings.precision == "bfloat16-autocast",
        device=made.device,
        counts_loss=held.program.inner == 0,
        eager_attention=made.plan.settings.attention == "eager",
        by_host=by_host(made.plan, made.rank),
    )


def _gradients(made: Assembly, held: Held, own: Groups) -> Gradients:
    """own: the groups of a replica that steps for itself."""
    plan, inner = made.plan, held.program.inner
    buckets = {
        (stage, f"{unit} {index}"): bucket.names
        for stage in held.program.stages
        for unit, found in (
            ("bucket", gradient_buckets(plan, stage, inner)),
            ("parts", [bucket for _, bucket in part_buckets(plan, stage, inner)]),
            ("rows", divided_buckets(plan, stage, inner)),
        )
        for index, bucket in enumerate(found)
    }
    return Gradients(
        held.parameters,
        buckets=buckets,
        shared=shared_parameters(plan),
        ties=_ties(made, held),
        zero1=held.zero1,
        counts_own=held.program.replica == 0 or made.relaxed,
        pieces=made.pieces,
        group_of=lambda ranks: own.of(ranks) if made.relaxed and own.has(ranks) else held.groups.of(ranks),
        observer=held.relay,
    )


def _ties(made: Assembly, held: Held) -> dict[str, Tie]:
    plan, program = made.plan, held.program
    return {
        name: Tie(
            by_shard=tied_by_shard(plan, name, stages),
            counts=program.inner == 0 or tied_by_inner(plan, stages),
            shard=program.replica,
            shards=len(held.ranks),
        )
        for name, stages in shared_parameters(plan).items()
    }


def _parts(made: Assembly, held: Held, gradients: Gradients, optimizer: OptimizerFactory | None) -> Parts:
    state = model_state(
        made.cut, held.stages, made.weights.whole, rank=made.rank, first_rank=held.ranks[0], group=held.group,
        unlike=made.plan.cluster.unlike(made.plan.ranks[rank] for rank in held.ranks), pieces=made.pieces,
    )  # fmt: skip
    feeder = BatchSplit.of(
        made.plan, made.cut, made.weights.whole, position=position_of_rank(made.plan, made.rank),
        replica=held.program.replica, device=made.device,
    )  # fmt: skip
    return Parts(
        plan=made.plan,
        rank=made.rank,
        feeder=feeder,
        relay=held.relay,
        stages=held.stages,
        gradients=gradients,
        updater=_updater(made, held, optimizer),
        state=state,
        pieces=made.pieces,
        chunks=made.chunks,
        draws=bool(made.cut.rewrites.batched),
    )


def _updater(made: Assembly, held: Held, optimizer: OptimizerFactory | None) -> Updater:
    """What updates all parameters of a rank, by name; a second copy of a tied one is numbered."""
    found: dict[str, nn.Parameter] = {}
    zero1: dict[str, Zero1] = {}
    for stage, named in held.parameters.items():
        for name, parameter in named.items():
            own = name if name not in found else f"{name}@{stage}"
            found[own] = parameter
            if stage in held.zero1:
                zero1[own] = held.zero1[stage]
    make = optimizer or optimizer_factory(made.plan.settings, fused=True)
    return Updater(found, make, zero1, host=host_of(made.plan, made.device))


def host_of(plan: Plan, device: torch.device) -> torch.device | None:
    """Where a rank on `device` keeps its optimizer's state, if not there; a process of a CPU has it on the host."""
    return torch.device("cpu") if plan.settings.offload == "optimizer" and device.type != "cpu" else None
