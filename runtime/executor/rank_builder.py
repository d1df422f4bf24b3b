"""What one rank holds: its program, its process groups, its stages cut from the model, held as the plan says."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property

import torch
from torch import distributed as dist
from torch import fx, nn

from placer.plans.plan import Plan
from placer.plans.schedule import SPLIT_BACKWARD
from placer.program.instructions import Program
from placer.program.lowering import lower
from placer.program.ranks import (
    connected_with,
    inner_axes,
    like_ranks,
    line_ranks,
    position_of,
    position_of_rank,
    replica_ranks,
)
from placer.rules.two_axis_layouts import held_shape
from placer.runtime.data_parallel.replicas import Replica, replica
from placer.runtime.data_parallel.zero1 import Zero1
from placer.runtime.distributed.groups import Groups
from placer.runtime.observer import Relay
from placer.runtime.spmd import Axis, Pieces
from placer.runtime.stages.block_code import CutModel
from placer.runtime.stages.captured_model import input_dtypes
from placer.runtime.stages.shapes import TensorMeta, shapes_of
from placer.runtime.stages.stage import OP_BY_OP, Runner, StageModule, stage_code
from placer.runtime.weights.rank_weights import RankWeights
from placer.runtime.weights.tensor_chunks import ChunkMap
from placer.spmd.parameter_layouts import value_state


@dataclass(frozen=True, kw_only=True)
class Held:
    """What a rank holds. ranks: of the replicas of its stages, itself among them; group: theirs, None for one."""

    plan: Plan
    device: torch.device
    program: Program
    relay: Relay
    groups: Groups
    ranks: tuple[int, ...]
    stages: Mapping[int, StageModule]
    replicas: Mapping[int, Replica]

    @property
    def group(self) -> dist.ProcessGroup | None:
        """The process group of `ranks`."""
        return self.groups.of(self.ranks) if len(self.ranks) > 1 else None

    @cached_property
    def zero1(self) -> dict[int, Zero1]:
        """The stages whose optimizer's state the replicas divide."""
        group = self.group
        return {
            index: Zero1(group, self.ranks, self.device)
            for index in self.stages
            if group is not None and self.plan.stages[index].sharding == "optimizer"
        }

    @cached_property
    def parameters(self) -> dict[int, dict[str, nn.Parameter]]:
        """The parameters by stage and by the model's own names, sharded ones as DTensors."""
        return {index: stage.own_parameters() for index, stage in self.stages.items()}


@dataclass(frozen=True, kw_only=True)
class Assembly:
    """What everything on a rank is made from.

    alone: the other ranks are not there, so nothing is made for them. fill: gives a stage of a model without memory
    tensors that ops can run on. relaxed: no engine reduces gradients by itself, as replicas keep together otherwise.
    run: what runs the code of blocks.
    """

    plan: Plan
    rank: int
    device: torch.device
    weights: RankWeights
    pieces: Pieces
    chunks: ChunkMap
    cut: CutModel
    axis: Axis
    timeout_seconds: float
    fill: Callable[[StageModule], None]
    alone: bool = False
    relaxed: bool = False
    run: Runner = OP_BY_OP

    def held(self) -> Held:
        """Stages and process groups of this rank, made; all ranks call it."""
        programs, relay, plan = self._programs(), Relay(), self.plan
        program = next(program for program in programs if program.rank == self.rank)
        position = position_of(plan)[program.stages[0]]
        ranks = like_ranks(plan, position, program.inner)
        groups = Groups(programs, self._groups(), self.timeout_seconds, self.rank if self.alone else None)
        self._join_axes(groups, replica_ranks(plan, position, program.replica))
        stages = self.bare_stages(program.stages, sharded=len(ranks) > 1)
        for stage in stages.values():
            stage.watch(relay)
            stage.run_by(self.run)
        group = groups.of(ranks) if len(ranks) > 1 else None
        replicas = {index: self._filled(index, stage, ranks, group, relay) for index, stage in stages.items()}
        return Held(
            plan=plan, device=self.device, program=program, relay=relay, groups=groups, ranks=ranks, stages=stages,
            replicas=replicas,
        )  # fmt: skip

    def _join_axes(self, groups: Groups, replica: tuple[int, ...]) -> None:
        """Give the devices of the replica, and those along each axis of it, their process groups."""
        if len(replica) > 1:
            self.axis.group = groups.of(replica)
        for fast in inner_axes(self.plan, position_of_rank(self.plan, self.rank)):
            for axis, ranks in zip(self.axis.lines(fast), line_ranks(self.plan, self.rank, fast), strict=True):
                axis.group = groups.of(ranks) if len(ranks) > 1 else None

    def _programs(self) -> tuple[Program, ...]:
        """Those of all ranks; alone, of the ranks that stand like this one in the replicas it communicates with."""
        if not self.alone:
            return lower(self.plan)
        position = position_of_rank(self.plan, self.rank)
        replica = (self.rank - self.plan.first_ranks[position]) // self.axis.degree
        return lower(self.plan, (connected_with(self.plan, position, replica),), (self.axis.rank,))

    def home(self) -> dict[str, int]:
        """The stage that makes each block output."""
        found = {}
        for stage, entry in enumerate(self.plan.stages):
            for block in range(entry.first, entry.last):
                for node in self.cut.outputs_of.get(block, ()):
                    found[self.cut.name(node)] = stage
        return found

    def shapes(self) -> Callable[[int, int], Mapping[str, TensorMeta]]:
        """A function from a number of rows, and a stage of this rank, to the shapes that block outputs have in it.

        It gives none where nothing is sent.
        """
        values = {node: self.cut.name(node) for nodes in self.cut.outputs_of.values() for node in nodes}
        plan, module, axis = self.plan, self.cut.module, self.axis

        @cache
        def whole(rows: int) -> Mapping[fx.Node, TensorMeta]:
            if plan.settings.precision == "bfloat16-autocast":
                return shapes_of(module, plan.graph, input_dtypes(plan), rows=rows, autocast=True)
            return {node: self.cut.shape_at(node, rows) for node in values}

        @cache
        def at(rows: int, stage: int) -> dict[str, TensorMeta]:
            if position_of(plan).count(0) == len(plan.stages):
                return {}
            found = whole(rows)
            return {name: _piece(plan, axis, name, found[node], stage) for node, name in values.items()}

        return at

    def _groups(self) -> tuple[tuple[int, ...], ...]:
        """The ranks that hold the same in the replicas of a position, those of each replica, and of each axis of it."""
        plan, meshes = self.plan, tuple(enumerate(self.plan.meshes))
        like = {like_ranks(plan, at, inner) for at, mesh in meshes for inner in range(mesh.degree)}
        inside = {replica_ranks(plan, at, replica) for at, mesh in meshes for replica in range(mesh.replicas)}
        lines = {
            ranks
            for rank in range(plan.world_size)
            for fast in inner_axes(plan, position_of_rank(plan, rank))
            for ranks in line_ranks(plan, rank, fast)
        }
        return tuple(sorted(like | inside | lines))

    def _filled(
        self, index: int, stage: StageModule, ranks: tuple[int, ...], group: dist.ProcessGroup | None, relay: Relay
    ) -> Replica:
        """The replica of a stage, filled before it is made, or after where it is cut into shards then."""
        sharded = group is not None and self.plan.stages[index].by_fsdp
        if not sharded:
            self.fill(stage)
        found = self._replica(index, stage, ranks, group, relay)
        if sharded:
            self.fill(stage)
        return found

    def _replica(
        self, index: int, stage: StageModule, ranks: tuple[int, ...], group: dist.ProcessGroup | None, relay: Relay
    ) -> Replica:
        plan = self.plan
        return replica(
            stage,
            beside=plan.reduces_beside and not self.relaxed,
            sharding=plan.stages[index].sharding,
            ranks=ranks,
            group=group,
            device=self.device,
            bucket_bytes=plan.bucket_bytes,
            observer=relay,
        )

    def bare_stages(self, indices: tuple[int, ...], *, sharded: bool = False) -> dict[int, StageModule]:
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
            state = {name: _copied(made(name)) if name in taken else made(name) for name in sorted(names)}
            taken |= names
            # The first stage has no inputs whose gradients could come first: its backward has one part.
            parts = self.plan.schedule in SPLIT_BACKWARD and index > 0
            found[index] = StageModule(code, state, plan.recompute, once=parts)
        return found

    def _produces(self, index: int) -> tuple[str, ...]:
        """What later stages read of stage `index`, and the loss."""
        plan, graph = self.plan, self.plan.graph
        read = dict.fromkeys(name for block in graph.blocks[plan.stages[index].last :] for name in block.inputs)
        return (*read, self.cut.loss)


def _piece(plan: Plan, axis: Axis, name: str, shape: TensorMeta, stage: int) -> TensorMeta:
    """The shape of what this rank has of a value that crosses blocks, in a stage that makes or reads it."""
    lay = value_state(plan, name, stage).value
    return replace(shape, shape=held_shape(shape.shape, lay, axis.degree, axis.rank))


def _copied(tensor: torch.Tensor) -> torch.Tensor:
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(tensor.detach().clone(), requires_grad=tensor.requires_grad)
    return tensor
