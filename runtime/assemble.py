"""load(plan): the model captured, cut into this rank's stages, held as the plan says, with its optimizer: an
Executor."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property

import torch
from torch import distributed as dist
from torch import fx, nn

from placer import legality, tracer
from placer.errors import IllegalPlanError, StalePlanError, UsageError
from placer.plans import Plan
from placer.program import (
    degree,
    gradient_buckets,
    like_ranks,
    lower,
    part_buckets,
    position_of,
    replica_ranks,
    shared_parameters,
)
from placer.rules.layouts import Cut as Pieces
from placer.rules.layouts import piece
from placer.runtime.actions import Interpreter, Wiring
from placer.runtime.captured import PRECISIONS, Captured, captured, input_dtypes
from placer.runtime.cut import Cut
from placer.runtime.executor import Executor, Parts
from placer.runtime.feed import Batch
from placer.runtime.gradients import Gradients
from placer.runtime.groups import TIMEOUT_SECONDS, Groups, device_of, join
from placer.runtime.lowering import Axis, Held, LocalBlocks
from placer.runtime.messages import Shape
from placer.runtime.observer import Relay
from placer.runtime.optimizers import OptimizerFactory, Updater, optimizer_factory
from placer.runtime.replicas import replica
from placer.runtime.shapes import shapes_of
from placer.runtime.stages import Stage, attribute, stage_code
from placer.runtime.state import State
from placer.splitting import parameter_states, value_state


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
    _require_linear(plan, cut)
    axis = Axis(degree(plan), rank % degree(plan))
    if plan.layouts:
        cut = replace(cut, lowering=LocalBlocks.of(plan, axis))
    return _Assembly(
        plan=plan, rank=rank, device=device, model=source, cut=cut, axis=axis, timeout_seconds=timeout_seconds
    ).executor(optimizer)


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


def _require_linear(plan: Plan, cut: Cut) -> None:
    pieces = len(plan.microbatches) * plan.stages[0].replicas
    if cut.loss_node is None:
        raise UsageError(
            f"{plan.graph.name} gives no loss ({plan.graph.loss.why}); plan with a batch that has labels, or a loss_fn"
        )
    if pieces > 1 and cut.rewrites.nonlinear:
        raise IllegalPlanError(
            f"the batch is divided into {pieces} pieces, but {cut.rewrites.nonlinear}; use one piece"
        )


@dataclass(frozen=True, kw_only=True)
class _Assembly:
    """What every part of an executor is made from."""

    plan: Plan
    rank: int
    device: torch.device
    model: nn.Module
    cut: Cut
    axis: Axis
    timeout_seconds: float

    def executor(self, optimizer: OptimizerFactory | None) -> Executor:
        plan, observer = self.plan, Relay()
        programs = lower(plan)
        program = programs[self.rank]
        ranks = like_ranks(plan, self.position, program.inner)
        groups = Groups(programs, self._groups(), self.timeout_seconds)
        group = groups.of(ranks) if len(ranks) > 1 else None
        if degree(plan) > 1:
            self.axis.group = groups.of(replica_ranks(plan, self.position, program.replica))
        stages = self._stages(program.stages)
        for stage in stages.values():
            stage.watch(observer)
        held = {
            s: replica(
                stage,
                alone=len(plan.stages) == 1,
                sharding=plan.stages[s].sharding,
                ranks=ranks,
                group=group,
                bucket_bytes=plan.settings.bucket_bytes,
                observer=observer,
            )
            for s, stage in stages.items()
        }
        parameters = {s: stage.own_parameters() for s, stage in stages.items()}
        gradients = Gradients(
            parameters,
            buckets=self._buckets(program.stages),
            shared=shared_parameters(plan),
            counts_own=program.replica == 0,
            held=self.held,
            group_of=groups.of,
            observer=observer,
        )
        updater = Updater(_named_once(parameters), optimizer or optimizer_factory(plan.settings))
        parts = Parts(
            plan=plan,
            rank=self.rank,
            replica=program.replica,
            relay=observer,
            device=self.device,
            stages=stages,
            gradients=gradients,
            updater=updater,
            state=self._state(stages, ranks, group),
            counts=self.cut.rewrites.counts,
            weights=self._weights(),
            labels=self._labels(),
        )
        wiring = Wiring(
            program=program,
            replicas=held,
            home=self._home(),
            shapes=self._shapes(),
            loss=self.cut.loss,
            autocast=plan.settings.precision == "bfloat16-autocast",
            device=self.device,
            counts_loss=program.inner == 0,
        )
        interpreter = Interpreter(
            wiring,
            reduce=gradients.reduce,
            sum_over=gradients.sum_over,
            update=lambda: executor.finish_step(),
            observer=observer,
        )
        executor = Executor(parts, interpreter)
        return executor

    @property
    def position(self) -> int:
        """This rank's place in the pipeline."""
        return self.rank // (self.plan.stages[0].replicas * degree(self.plan))

    @cached_property
    def held(self) -> Held:
        """What this rank holds of each parameter and buffer."""
        return Held(parameter_states(self.plan), self.axis)

    def _groups(self) -> set[tuple[int, ...]]:
        """Ranks that reduce gradients together, and those of each replica."""
        plan = self.plan
        like = {like_ranks(plan, p, inner) for p in range(plan.positions) for inner in range(degree(plan))}
        replicas = range(plan.stages[0].replicas)
        return like | {replica_ranks(plan, p, replica) for p in range(plan.positions) for replica in replicas}

    def _stages(self, indices: tuple[int, ...]) -> dict[int, Stage]:
        """This rank's stages. A parameter tied between stages is copied for each: their gradients are summed."""
        found: dict[int, Stage] = {}
        taken: set[str] = set()
        for index in indices:
            plan = self.plan.stages[index]
            code = stage_code(self.cut, plan.first, plan.last, self._produces(index))
            names = {n[2:] for block in (code.prologue, *code.blocks) for n in block.inputs if n.startswith("p:")}
            state = {name: self._tensor(name, name in taken) for name in names}
            taken |= names
            found[index] = Stage(code, state, plan.recompute)
        return found

    def _tensor(self, name: str, copy: bool) -> torch.Tensor:
        tensor = self.held.piece(name, attribute(self.model, name))
        if copy and isinstance(tensor, nn.Parameter):
            return nn.Parameter(tensor.detach().clone(), requires_grad=tensor.requires_grad)
        return tensor

    def _produces(self, index: int) -> tuple[str, ...]:
        """What later stages read of stage `index`, and the loss."""
        plan, graph = self.plan, self.plan.graph
        read = dict.fromkeys(name for block in graph.blocks[plan.stages[index].last :] for name in block.inputs)
        return (*read, self.cut.loss)

    def _buckets(self, stages: tuple[int, ...]) -> dict[tuple[int, str], tuple[str, ...]]:
        return {
            (stage, f"bucket {index}"): bucket.names
            for stage in stages
            for index, bucket in enumerate(gradient_buckets(self.plan, stage, self.axis.rank))
        } | {
            (stage, f"parts {index}"): bucket.names
            for stage in stages
            for index, bucket in enumerate(part_buckets(self.plan, stage, self.axis.rank))
        }

    def _home(self) -> dict[str, int]:
        """The stage that makes each block output."""
        found = {}
        for stage, entry in enumerate(self.plan.stages):
            for block in range(entry.first, entry.last):
                for node in self.cut.outputs_of.get(block, ()):
                    found[self.cut.name(node)] = stage
        return found

    def _shapes(self) -> Callable[[int], Mapping[str, Shape]]:
        values = {node: self.cut.name(node) for nodes in self.cut.outputs_of.values() for node in nodes}
        plan, module = self.plan, self.cut.module

        @cache
        def at(rows: int) -> dict[str, Shape]:
            if position_of(plan).count(0) == len(plan.stages):
                return {}
            autocast = plan.settings.precision == "bfloat16-autocast"
            found = shapes_of(module, plan.graph, input_dtypes(plan), rows=rows, autocast=autocast)
            return {name: self._held_shape(name, found[node]) for node, name in values.items()}

        return at

    def _held_shape(self, name: str, shape: Shape) -> Shape:
        """The shape of what this rank holds of a value that crosses stages."""
        lay = value_state(self.plan, name).value if name.startswith("b") else None
        if not isinstance(lay, Pieces):
            return shape
        start, end = piece(shape.shape[lay.dim], self.axis.degree, self.axis.rank)
        sizes = (*shape.shape[: lay.dim], end - start, *shape.shape[lay.dim + 1 :])
        return Shape(sizes, shape.dtype, shape.requires_grad)

    def _weights(self) -> tuple[torch.Tensor | None, ...]:
        """The class weights of each loss op."""
        nodes = (count.weight for count in self.cut.rewrites.counts)
        return tuple(None if n is None else attribute(self.cut.module, str(n.target)).cpu() for n in nodes)

    def _labels(self) -> Callable[[Batch], tuple[torch.Tensor, ...]]:
        """A function from model inputs to the labels of each loss op."""
        nodes: list[fx.Node] = [count.target for count in self.cut.rewrites.counts]
        names = [self.cut.name(node) for node in nodes]
        code = self.cut.prologue(names)
        unknown = [name for name in names if not name.startswith("x:") and name not in code.outputs]
        if unknown:
            raise UsageError("the labels of the loss are computed from parameters; give them as a model input")

        own = {n: attribute(self.model, n[2:]).cpu() for n in code.inputs if n.startswith("p:")}

        def labels(batch: Batch) -> tuple[torch.Tensor, ...]:
            values = {**{f"x:{name}": tensor for name, tensor in batch.items()}, **own}
            given = [values[name] for name in code.inputs]
            values.update(zip(code.outputs, code.module(None, *given), strict=True))
            return tuple(values[name] for name in names)

        return labels

    def _state(self, stages: Mapping[int, Stage], ranks: tuple[int, ...], group: dist.ProcessGroup | None) -> State:
        model = self.model
        every = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        aliases: dict[str, tuple[str, ...]] = {}
        persistent = frozenset(model.state_dict(keep_vars=True))
        by_tensor: dict[int, list[str]] = {}
        for name, tensor in model.state_dict(keep_vars=True).items():
            by_tensor.setdefault(id(tensor), []).append(name)
        for names in by_tensor.values():
            for name in names:
                aliases[name] = tuple(other for other in names if other != name)
        return State(
            stages,
            self._unread(every) if self.rank == 0 else {},
            aliases=aliases,
            persistent=persistent,
            first_rank=ranks[0],
            group=group,
            held=self.held,
        )

    def _unread(self, every: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """What no stage reads."""
        read = {
            str(source.target)
            for nodes in self.cut.nodes_of.values()
            for node in nodes
            for source in node.all_input_nodes
            if source.op == "get_attr"
        }
        kept = self.model.state_dict(keep_vars=True)
        read_ids = {id(attribute(self.model, name)) for name in read if name in every or name in kept}
        return {name: tensor for name, tensor in every.items() if name in kept and id(tensor) not in read_ids}


def _named_once(parameters: Mapping[int, Mapping[str, nn.Parameter]]) -> dict[str, nn.Parameter]:
    """All parameters of a rank by name; a second copy of a tied one is numbered."""
    found: dict[str, nn.Parameter] = {}
    for stage, named in parameters.items():
        for name, parameter in named.items():
            found[name if name not in found else f"{name}@{stage}"] = parameter
    return found
