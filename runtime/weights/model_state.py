"""The state of the model as the ranks of a plan hold it, by the model's own names.

A rank holds the parameters and buffers of its stages; rank 0 also what no stage reads (an unused head). Buffers are
those of replica 0: batch norm's running statistics follow the rows that replica 0 sees, as under DDP.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from placer.errors import UsageError
from placer.runtime.distributed.tensors import Packed, all_rows, on_host, packed, unpacked
from placer.runtime.spmd import Pieces
from placer.runtime.stages.block_code import CutModel, attribute
from placer.runtime.stages.stage import StageModule
from placer.runtime.weights.given_state import Shape, listed, require_fitting, shapes_of
from placer.runtime.weights.same_numbers import same_numbers


@dataclass(frozen=True, kw_only=True)
class ModelState:
    """The named tensors of this rank: those of its `stages`, and `rest`, which no stage reads.

    aliases: for each kept name the other names the model has for the same tensor. persistent: what torch's state_dict
    holds, with its shapes; written: buffers that it leaves out, and steps write, so that later steps depend on them.
    first_rank: the first rank of this rank's replicas, whose buffers count; group: these replicas, None for one;
    unlike: whether some of them are on GPUs and others on CPUs. pieces: what this rank holds of each. States are given
    whole: all ranks of a replica put their pieces together.
    """

    stages: Mapping[int, StageModule]
    rest: Mapping[str, torch.Tensor]
    aliases: Mapping[str, tuple[str, ...]]
    persistent: Mapping[str, Shape]
    written: frozenset[str]
    first_rank: int
    group: dist.ProcessGroup | None
    unlike: bool
    pieces: Pieces

    def local(self) -> dict[str, torch.Tensor]:
        """What this rank holds; tied parameters once."""
        return {name: self.pieces.joined(name, tensor) for name, tensor in self.held().items()}

    def held(self) -> dict[str, torch.Tensor]:
        """The same as it lies here: pieces of what the devices of a replica cut."""
        self.share_buffers()
        found: dict[str, torch.Tensor] = {n: t.detach() for n, t in self.rest.items()}
        for stage in self.stages.values():
            for name, tensor in (*stage.own_parameters().items(), *stage.own_buffers().items()):
                if name in self.persistent and name not in found:
                    found[name] = tensor.detach()
        return found

    def held_beside(self) -> dict[str, torch.Tensor]:
        """Of `written` what lies here: no part of the model's state, and yet what a run that goes on needs."""
        self.share_buffers()
        every = [buffers for stage in self.stages.values() for buffers in stage.own_buffers().items()]
        return {name: buffer.detach() for name, buffer in reversed(every) if name in self.written}

    def full(self, *, rank0_only: bool = False) -> dict[str, torch.Tensor]:
        """The whole model's state, on every rank or on rank 0 (others get nothing); all ranks call it."""
        return self._gathered({name: _whole(tensor) for name, tensor in self.local().items()}, rank0_only)

    def full_gradients(self) -> dict[str, torch.Tensor]:
        """The gradients of all parameters, on rank 0; all ranks call it."""
        found: dict[str, torch.Tensor] = {}
        for stage in self.stages.values():
            for name, parameter in stage.own_parameters().items():
                if parameter.grad is not None and name not in found:
                    found[name] = _whole(self.pieces.joined(name, parameter.grad.detach()))
        return self._gathered(found, rank0_only=True)

    def load(self, state: Mapping[str, torch.Tensor]) -> None:
        """Take every tensor this rank holds from `state`. Raises UsageError before anything is taken."""
        require_fitting(state, self.persistent)
        wanted = {name: tensor for name, tensor in self.local().items() if name in self.persistent}
        missing = [name for name in wanted if self._find(state, name) is None]
        if missing:
            raise UsageError(
                f"the state lacks {listed(missing)}; give the state of the same model, by its own parameter names"
            )
        self._require_one_value(state)
        held: list[Mapping[str, torch.Tensor]] = [self.rest]
        for stage in self.stages.values():
            held += [stage.own_parameters(), stage.own_buffers()]
        with torch.no_grad():
            for tensors in held:
                for name, tensor in tensors.items():
                    source = self._find(state, name)
                    if source is not None:
                        self.pieces.take(name, tensor, source)

    def _require_one_value(self, state: Mapping[str, torch.Tensor]) -> None:
        """Raise UsageError where `state` has unlike values under several names of one tensor."""
        for name, others in self.aliases.items():
            for other in others if name in state else ():
                if name < other and other in state and not _equal(state[name], state[other]):
                    raise UsageError(
                        f"the state has unlike values for {name} and {other}, which are one tensor of the model; "
                        "leave one of them out"
                    )

    def share_buffers(self) -> None:
        """Give all replicas the buffers of replica 0."""
        if self.group is None:
            return
        for stage in self.stages.values():
            for name, buffer in sorted(stage.own_buffers().items()):
                if name in self.persistent or name in self.written:
                    sent = on_host(buffer) if self.unlike else buffer
                    dist.broadcast(sent, self.first_rank, group=self.group)
                    if sent is not buffer:
                        buffer.copy_(sent)

    def _gathered(self, whole: Mapping[str, torch.Tensor], rank0_only: bool) -> dict[str, torch.Tensor]:
        """What all ranks hold, by the lowest rank that does: of ranks that hold the same tensors only the first
        sends."""
        if not dist.is_initialized() or dist.get_world_size() == 1:
            return self._with_aliases(whole)
        sends = dist.get_rank() == self.first_rank and self.pieces.first
        own = packed(whole if sends else {})
        parts: list[Packed | None] = [None] * dist.get_world_size()
        if rank0_only:
            dist.gather_object(own, parts if dist.get_rank() == 0 else None)
        else:
            dist.all_gather_object(parts, own)
        found: dict[str, torch.Tensor] = {}
        for part in reversed(parts):
            found |= unpacked(part) if part is not None else {}
        return self._with_aliases(found)

    def _find(self, state: Mapping[str, torch.Tensor], name: str) -> torch.Tensor | None:
        return next((state[n] for n in (name, *self.aliases.get(name, ())) if n in state), None)

    def _with_aliases(self, state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        more = {alias: state[name] for name, others in self.aliases.items() if name in state for alias in others}
        return {**state, **more}


def model_state(
    cut: CutModel, stages: Mapping[int, StageModule], read: Callable[[str], torch.Tensor], *, rank: int,
    first_rank: int, group: dist.ProcessGroup | None, unlike: bool, pieces: Pieces,
) -> ModelState:  # fmt: skip
    """The state of the model of `cut` as rank `rank` holds it in its `stages`; `read` gives what no stage reads."""
    model = cut.model
    rest = {name: read(name) for name in unread(model, cut)} if rank == 0 else {}
    persistent = shapes_of(model.state_dict(keep_vars=True))
    return ModelState(
        stages=stages, rest=rest, aliases=_aliases(model), persistent=persistent,
        written=frozenset(cut.written - persistent.keys()), first_rank=first_rank, group=group, unlike=unlike,
        pieces=pieces,
    )  # fmt: skip


def _aliases(model: nn.Module) -> dict[str, tuple[str, ...]]:
    """For each name of the model's state the other names of the same tensor."""
    by_tensor: dict[int, list[str]] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        by_tensor.setdefault(id(tensor), []).append(name)
    return {name: tuple(n for n in names if n != name) for names in by_tensor.values() for name in names}


def unread(model: nn.Module, cut: CutModel) -> tuple[str, ...]:
    """The names of what no stage reads, not even what a layout may cut of it: a block may have ops that lead nowhere,
    such as a dropout of a last layer's second output."""
    read = {
        str(source.target)
        for nodes in cut.nodes_of.values()
        for node in nodes
        for source in node.all_input_nodes
        if source.op == "get_attr"
    }
    every = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    kept = model.state_dict(keep_vars=True)
    read_ids = {id(attribute(model, name)) for name in read if name in every or name in kept}
    return tuple(name for name, tensor in every.items() if name in kept and id(tensor) not in read_ids)


def _equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors of a given state have the same numbers, as far as a rank sees: of DTensors its own part, of
    one beside a whole tensor nothing."""
    if one is other or isinstance(one, DTensor) != isinstance(other, DTensor):
        return True
    first, second = (tensor.to_local() if isinstance(tensor, DTensor) else tensor for tensor in (one, other))
    return same_numbers(first, second)


def _whole(tensor: torch.Tensor) -> torch.Tensor:
    return all_rows(tensor).detach().cpu().clone()
