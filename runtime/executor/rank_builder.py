"""What one rank holds: first its part of the model (`RankModel`), then its stages, held as the plan says
(`RankState`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import distributed as dist
from torch import fx, nn

from placer.costs.kept_results import kept_results
from placer.plans.plan import Plan
from placer.plans.schedule import SPLIT_BACKWARD
from placer.plans.transfers import position_of
from placer.program.buckets import shared_parameters
from placer.program.collectives import tied_by_inner
from placer.program.instructions import Program
from placer.program.ranks import inner_axes, like_ranks, line_ranks, position_of_rank, replica_ranks
from placer.program.reductions import planned_route
from placer.program.told import told_weights
from placer.runtime.data_parallel.replicas import DdpReplica, Replica, add_up_wide, replica
from placer.runtime.data_parallel.zero1 import Zero1
from placer.runtime.distributed.world import Groups
from placer.runtime.observer import Relay
from placer.runtime.spmd import Axis, LocalBlocks, Pieces
from placer.runtime.spmd.traced_nodes import require_same
from placer.runtime.stages.block_code import CutModel
from placer.runtime.stages.kept_results import kept_contexts
from placer.runtime.stages.piece_nodes import op_nodes
from placer.runtime.stages.recompute import Rerun, runs_again, runs_once, runs_once_together, runs_together
from placer.runtime.stages.stage import Runner, StageModule, stage_code
from placer.runtime.weights.meta_model import MetaModel, shapes
from placer.runtime.weights.model_state import unread
from placer.runtime.weights.rank_weights import ChunkMap, RankWeights
from placer.spmd.parameter_layouts import parameter_states


@dataclass(frozen=True, kw_only=True)
class RankModel:
    """The model of `plan` as `rank` has it: cut into blocks and, where replicas have several devices, these lowered
    for its place among them (`axis`), with the part it has of each tensor."""

    plan: Plan
    rank: int
    device: torch.device
    cut: CutModel
    axis: Axis
    pieces: Pieces
    chunks: ChunkMap
    weights: RankWeights

    @staticmethod
    def of(plan: Plan, source: MetaModel, cut: CutModel, *, rank: int, device: torch.device) -> RankModel:
        """That of `source`, which was cut for a whole device."""
        axis = axis_of(plan, rank)
        if plan.layouts:
            cut = replace(cut, lowering=LocalBlocks.of(plan, axis))
        cut = replace(cut, kept=frozenset(_kept_results(plan, cut, rank)))
        whole = unread(source.model, cut)
        pieces = Pieces({name: state for name, state in parameter_states(plan).items() if name not in whole}, axis)
        chunks = ChunkMap(shapes(source.model), pieces, _read_only(plan, rank))
        weights = RankWeights(source.model, source.source, chunks, device)
        return RankModel(
            plan=plan, rank=rank, device=device, cut=cut, axis=axis, pieces=pieces, chunks=chunks, weights=weights
        )

    def stages(self, indices: tuple[int, ...], *, sharded: bool = False) -> dict[int, StageModule]:
        """This rank's stages; `sharded`: those that their replicas will shard have no values yet.

        A parameter tied between stages is copied for each: their gradients are summed.
        """
        found: dict[int, StageModule] = {}
        taken: set[str] = set()
        for index in indices:
            plan = self.plan.stages[index]
            code = stage_code(self.cut, plan.first, plan.last, self._produces(index))
            names = {n[2:] for block in (code.prologue, *code.blocks) for n in block.inputs if n.startswith("p:")}
            made = self.weights.shape_of_piece if sharded and plan.by_fsdp else self.weights.piece
            state = {
                name: self._held(_copied(made(name)) if name in taken else made(name), name) for name in sorted(names)
            }
            taken |= names
            found[index] = StageModule(code, state, self._rerun(index), plan.recomputed)
        return found

    def _rerun(self, index: int) -> Rerun | None:
        """How the blocks of stage `index` run again in backward; None where they do not."""
        stage = self.plan.stages[index]
        if not stage.recompute:
            return None
        # The first stage has no inputs whose gradients could come first: its backward has one part.
        if self.plan.schedule in SPLIT_BACKWARD and index > 0:
            rerun: Rerun = runs_once_together if stage.degree > 1 else runs_once
        else:
            rerun = runs_together if stage.degree > 1 else runs_again
        return partial(rerun, contexts=kept_contexts) if stage.recompute == "selective" else rerun

    def _held(self, tensor: torch.Tensor, name: str) -> torch.Tensor:
        """A tensor as its stage has it: a weight that no gradient reaches asks for none, so that no engine waits for it
        and no optimizer touches it, as on one device."""
        if not isinstance(tensor, nn.Parameter) or name in self.cut.trained or not tensor.requires_grad:
            return tensor
        return nn.Parameter(tensor.detach(), requires_grad=False)

    def _produces(self, index: int) -> tuple[str, ...]:
        """What later stages read of stage `index`, and the loss."""
        plan, graph = self.plan, self.plan.graph
        read = dict.fromkeys(name for block in graph.blocks[plan.stages[index].last :] for name in block.inputs)
        return (*read, self.cut.loss)


@dataclass(frozen=True, kw_only=True)
class RankState:
    """What a rank holds. ranks: of the replicas of its stages, itself among them; group: theirs, None for one.

    parameters: by stage and by the model's own names, sharded ones as DTensors. zero1: the stages whose optimizer's
    state the replicas divide.
    """

    program: Program
    relay: Relay
    ranks: tuple[int, ...]
    group: dist.ProcessGroup | None
    stages: Mapping[int, StageModule]
    replicas: Mapping[int, Replica]
    parameters: Mapping[int, Mapping[str, nn.Parameter]]
    zero1: Mapping[int, Zero1]


def rank_state(
    model: RankModel,
    program: Program,
    groups: Groups,
    *,
    fill: Callable[[StageModule], None],
    run: Runner,
    relaxed: bool,
) -> RankState:
    """The stages of `program`, the code of their blocks run by `run`; all ranks call it.

    fill: gives a stage of a model without memory tensors that ops can run on: before its replica is made, or after
    where it is cut into shards then. relaxed: no engine reduces gradients by itself, as replicas keep together
    otherwise.
    """
    plan, relay, replicas = model.plan, Relay(), dict[int, Replica]()
    position = position_of(plan)[program.stages[0]]
    ranks = like_ranks(plan, position, program.inner)
    group = groups.of(ranks) if len(ranks) > 1 else None
    _join_axes(model, groups, replica_ranks(plan, position, program.replica))
    stages = model.stages(program.stages, sharded=group is not None)
    compressed = getattr(torch, plan.settings.gradient_compression, None)  # of "none" there is none
    bucket_bytes = plan.bucket_bytes if plan.reduces_beside and not relaxed else None
    for index, stage in stages.items():
        stage.watch(relay)
        stage.run_by(run)
        sharded = group is not None and plan.stages[index].by_fsdp
        if not sharded:
            fill(stage)
        replicas[index] = replica(
            stage, plan.stages[index], ranks, groups.of, relay, device=model.device, bucket_bytes=bucket_bytes,
            way=planned_route(plan, index, ranks), compressed=compressed, hears=bool(told_weights(plan.graph)),
        )  # fmt: skip
        if sharded:
            fill(stage)
        if relaxed or (len(plan.microbatches) > 1 and not isinstance(replicas[index], DdpReplica)):
            add_up_wide(stage.parameters())
    divided = [index for index in stages if plan.stages[index].sharding == "optimizer"]
    return RankState(
        program=program, relay=relay, ranks=ranks, group=group, stages=stages, replicas=replicas,
        parameters={index: stage.own_parameters() for index, stage in stages.items()},
        zero1={index: Zero1(group, ranks, model.device) for index in divided if group is not None},
    )  # fmt: skip


def _join_axes(model: RankModel, groups: Groups, replica: tuple[int, ...]) -> None:
    """Give the devices of the replica, and those along each axis of it, their process groups."""
    if len(replica) > 1:
        model.axis.group = groups.of(replica)
    for fast in inner_axes(model.plan, position_of_rank(model.plan, model.rank)):
        for axis, ranks in zip(model.axis.lines(fast), line_ranks(model.plan, model.rank, fast), strict=True):
            axis.group = groups.of(ranks) if len(ranks) > 1 else None


def rank_groups(plan: Plan) -> tuple[tuple[int, ...], ...]:
    """The ranks that hold the same in the replicas of a position, those of each replica, and of each axis of it."""
    meshes = tuple(enumerate(plan.meshes))
    like = {like_ranks(plan, at, inner) for at, mesh in meshes for inner in range(mesh.degree)}
    inside = {replica_ranks(plan, at, replica) for at, mesh in meshes for replica in range(mesh.replicas)}
    lines = {
        ranks
        for rank in range(plan.world_size)
        for fast in inner_axes(plan, position_of_rank(plan, rank))
        for ranks in line_ranks(plan, rank, fast)
    }
    return tuple(sorted(like | inside | lines))


def axis_of(plan: Plan, rank: int) -> Axis:
    """The devices of a rank's replica, and the rank among them."""
    position = position_of_rank(plan, rank)
    degree = plan.meshes[position].degree
    return Axis(degree, (rank - plan.first_ranks[position]) % degree)


def _kept_results(plan: Plan, cut: CutModel, rank: int) -> Iterator[fx.Node]:
    """The products that keep their results in the blocks of a rank's stages; the block of the loss never runs again."""
    backend, final = plan.cluster.devices[plan.ranks[rank]].backend, len(plan.graph.blocks) - 1
    held = (plan.stages[index] for index in plan.stages_at[position_of_rank(plan, rank)])
    again = (range(stage.first, stage.last)[: stage.recomputed] for stage in held if stage.recompute == "selective")
    for number in (number for blocks in again for number in blocks if number < final):
        block_class, nodes = plan.graph.block_class(number), op_nodes(cut.module.graph, cut.block_of, number)
        require_same(plan.graph.blocks[number], block_class, nodes)
        yield from (nodes[op] for op in kept_results(block_class, plan.settings, backend))


def _read_only(plan: Plan, rank: int) -> Iterator[str]:
    """Tied parameters that this rank's stages cut in other places than the first stage that has them."""
    own = position_of_rank(plan, rank)
    for name, stages in shared_parameters(plan).items():
        held = [plan.stages[stage] for stage in stages if plan.graph.parameters[name].shape]
        kinds = {(stage.by_fsdp, stage.replicas if stage.sharding != "none" else 1) for stage in held}
        if position_of(plan)[stages[0]] != own and not (len(kinds) < 2 and tied_by_inner(plan, stages)):
            yield name


def _copied(tensor: torch.Tensor) -> torch.Tensor:
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(tensor.detach().clone(), requires_grad=tensor.requires_grad)
    return tensor
