"""What happens to a rank's gradients after its last backward: summed over replicas by buckets, over the devices of its
replica where each has a part, over the stages that share a parameter, what no rank reached taken away again, and their
norm over the whole model taken, each element counted once. After an update of rows of theirs replicas get each
other's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from placer.plans.plan import Plan
from placer.program.buckets import divided_buckets, gradient_buckets, part_buckets, shared_parameters
from placer.program.collectives import tied_by_inner, tied_by_shard
from placer.program.instructions import Collective, Program
from placer.program.told import told_weights
from placer.runtime.data_parallel.reached import Heard, told
from placer.runtime.data_parallel.zero1 import Zero1
from placer.runtime.distributed.tensors import flat, local_part, spread, sum_over, summed_in
from placer.runtime.distributed.world import Groups
from placer.runtime.observer import Observer
from placer.runtime.spmd import Pieces

Parameters = Mapping[int, Mapping[str, nn.Parameter]]  # by stage, by the model's own name


@dataclass(frozen=True, slots=True, kw_only=True)
class Tie:
    """How the gradients of a tied parameter are summed over the stages that hold it.

    by_shard: shard by shard; otherwise as a whole, into which each rank puts its shard, which is number `shard` of
    `shards`. counts: whether this rank's gradient is a part of the sum; otherwise another rank of its replica has the
    same.
    """

    by_shard: bool
    counts: bool
    shard: int = 0
    shards: int = 1

    def first_row(self, rows: int) -> int:
        """The row of `rows` at which this rank's shard begins: FSDP2 divides dim 0 as `torch.chunk` does."""
        return min(self.shard * -(-rows // self.shards), rows)


@dataclass(kw_only=True, eq=False)
class Gradients:
    """The gradients of this rank's stages.

    buckets: names per (stage, unit) as the program has them. shared: the stages that hold each tied parameter;
    ties: how their gradients are summed.
    pieces: what this rank holds of each.
    zero1: the stages whose optimizer's state the replicas divide.
    told: the weights of which ranks tell each other whether they reached them; heard: what engines that fill in zeros
    reached, by stage.
    counts_own: whether this rank's whole (not sharded or divided) gradients enter the norm: only one replica's do.
    """

    parameters: Parameters
    buckets: Mapping[tuple[int, str], tuple[str, ...]]
    shared: Mapping[str, tuple[int, ...]]
    ties: Mapping[str, Tie]
    zero1: Mapping[int, Zero1]
    told: tuple[str, ...]
    heard: Mapping[int, Heard]
    counts_own: bool
    pieces: Pieces
    groups: Groups
    observer: Observer
    _summed: set[str] = field(default_factory=set, init=False)
    _made_up: set[nn.Parameter] = field(default_factory=set, init=False)
    _squared: torch.Tensor | None = field(default=None, init=False)

    @staticmethod
    def of(
        plan: Plan, program: Program, parameters: Parameters, *, shards: int, zero1: Mapping[int, Zero1],
        counts_own: bool, pieces: Pieces, groups: Groups, observer: Observer, heard: Mapping[int, Heard],
    ) -> Gradients:  # fmt: skip
        """Those of a rank with `program`, one of `shards` replicas."""
        return Gradients(
            parameters=parameters, buckets=_buckets(plan, program), shared=shared_parameters(plan),
            ties=_ties(plan, program, shards), zero1=zero1, counts_own=counts_own, pieces=pieces, groups=groups,
            observer=observer, told=told_weights(plan.graph), heard=heard,
        )  # fmt: skip

    def reduce(self, collective: Collective) -> None:
        """Do one of placer's collectives on gradients, or on parameters that were updated."""
        if collective.purpose in ("gradients", "parts"):
            self._reduce_bucket(collective)
        elif collective.purpose == "tied":
            self._reduce_tied(collective)
        elif collective.purpose == "reached":
            self._leave_unreached(collective)
        elif collective.purpose == "parameters":
            named = self.parameters[collective.stage]
            # A stage has no weights of ops whose results nothing reads (LXMERT's last vision layer).
            members = [named[name] for name in self.buckets[collective.stage, collective.unit] if name in named]
            if members:
                self._tell(collective, self.zero1[collective.stage].gather(members))
        else:
            self._squared = self._local_squared()
            self.sum_over(collective, self._squared)

    def sum_over(self, collective: Collective, tensor: torch.Tensor) -> None:
        """All-reduce `tensor` in place."""
        if collective.way is None:
            dist.all_reduce(tensor, group=self.groups.of(collective.ranks))
        else:
            sum_over(tensor, collective.way, collective.ranks, dist.get_rank(), self.groups.of)
        self._tell(collective, tensor.numel() * tensor.element_size())

    def norm(self) -> torch.Tensor:
        """The norm of the whole model's gradients, where they lie; to be called once per step, which it ends."""
        squared = self._local_squared() if self._squared is None else self._squared
        self.finish()
        return squared.sqrt()

    def finish(self) -> None:
        """End a step that needs no norm."""
        self._sum_local_ties()
        self._squared, self._summed, self._made_up = None, set(), set()
        for heard in self.heard.values():
            heard.names.clear()

    def _reduce_bucket(self, collective: Collective) -> None:
        named = self.parameters[collective.stage]
        members = [named[name] for name in self.buckets[collective.stage, collective.unit] if name in named]
        if not members:
            return
        gradients = [local_part(self._gradient(parameter)) for parameter in members]
        total = flat(gradients)
        if not total.is_complex():  # there are none of few bits
            total = total.to(getattr(torch, collective.dtype))  # float32 for 16 bits, and these where compressed
        self.sum_over(collective, total)
        spread(total, gradients)

    def _reduce_tied(self, collective: Collective) -> None:
        name = collective.unit
        total = self._sum_over_stages(name)
        if total is None:
            return
        tie, gradient = self.ties[name], self._gradient(self._held(name)[0])
        if not tie.counts:
            total.zero_()
        if tie.by_shard or not isinstance(gradient, DTensor):
            self.sum_over(collective, total)
            self._give(name, total)
            return
        whole = total.new_zeros(gradient.shape)
        mine = whole.narrow(0, tie.first_row(whole.shape[0]), total.shape[0])
        mine.copy_(total)
        self.sum_over(collective, whole)
        self._give(name, mine)

    def _sum_local_ties(self) -> None:
        """Tied parameters whose holders are all on this rank have no collective."""
        for name in self.shared:
            if name not in self._summed:
                total = self._sum_over_stages(name)
                if total is not None:
                    self._give(name, total)

    def _sum_over_stages(self, name: str) -> torch.Tensor | None:
        held = self._held(name)
        if not held:
            return None
        first = local_part(self._gradient(held[0]))
        total = first.to(summed_in(first.dtype), copy=True, memory_format=torch.contiguous_format)
        for parameter in held[1:]:
            total += local_part(self._gradient(parameter))
        return total

    def _give(self, name: str, total: torch.Tensor) -> None:
        self._summed.add(name)
        for parameter in self._held(name):
            local_part(self._gradient(parameter)).copy_(total)

    def _held(self, name: str) -> list[nn.Parameter]:
        stages = self.shared[name]
        return [self.parameters[s][name] for s in stages if s in self.parameters and name in self.parameters[s]]

    def _local_squared(self) -> torch.Tensor:
        """The squared norm of what this rank counts: shards always, whole gradients on one replica, tied ones once.

        What all devices of a replica hold alike is counted by the first of them.
        """
        self._sum_local_ties()
        return self.squared()

    @torch.no_grad()
    def squared(self) -> torch.Tensor:
        """The same of gradients as they lie there; to be called after the step has been ended."""
        counted = [local_part(one) for one in self._counted()]
        if not counted:
            first = next((one for named in self.parameters.values() for one in named.values()), torch.zeros(()))
            return torch.zeros((), dtype=torch.float64, device=first.device)
        sixteen = any(one.element_size() < 4 for one in counted)
        norms = torch._foreach_norm(counted, 2.0, dtype=torch.float32 if sixteen else None)
        return torch.stack(list(norms)).double().square().sum()

    def _counted(self) -> Iterator[torch.Tensor]:
        for stage, named in self.parameters.items():
            for name, parameter in named.items():
                if parameter.grad is None or self.shared.get(name, (stage,))[0] != stage:
                    continue
                gradient = self.zero1[stage].own(parameter.grad) if stage in self.zero1 else parameter.grad
                if self.pieces.counts(name) and (isinstance(gradient, DTensor) or self.counts_own):
                    yield gradient

    def _gradient(self, parameter: nn.Parameter) -> torch.Tensor:
        """The gradient; zeros where there is none, as every rank must take part: a weight that trains gets them."""
        if parameter.grad is not None:
            return parameter.grad
        made = torch.zeros_like(parameter, dtype=parameter.grad_dtype)
        if parameter.requires_grad:
            self._made_up.add(parameter)
            parameter.grad = made
        return made

    def _leave_unreached(self, collective: Collective) -> None:
        """Take away the zeros of weights that no rank reached."""
        self._sum_local_ties()
        every = [(name, one) for named in self.parameters.values() for name, one in named.items()]
        here = next((one.device for _, one in every), torch.device("cpu"))
        ranks = told(self.told, set(self._reached()), here)
        self.sum_over(collective, ranks)
        unreached = {name for name, count in zip(self.told, ranks.tolist(), strict=True) if not count}
        for name, parameter in every:
            if name in unreached:
                parameter.grad = None

    def _reached(self) -> Iterator[str]:
        """The weights that a gradient of this rank's own reached."""
        for stage, named in self.parameters.items():
            if stage in self.heard:
                yield from self.heard[stage].names
            else:
                yield from (n for n, one in named.items() if one.grad is not None and one not in self._made_up)

    def _tell(self, collective: Collective, size: int) -> None:
        self.observer.collective(replace(collective, bytes=size))


def _buckets(plan: Plan, program: Program) -> dict[tuple[int, str], tuple[str, ...]]:
    return {
        (stage, f"{unit} {index}"): bucket.names
        for stage in program.stages
        for unit, buckets in (
            ("bucket", gradient_buckets(plan, stage, program.inner)),
            ("parts", [bucket for _, bucket in part_buckets(plan, stage, program.inner)]),
            ("rows", divided_buckets(plan, stage, program.inner)),
        )
        for index, bucket in enumerate(buckets)
    }


def _ties(plan: Plan, program: Program, shards: int) -> dict[str, Tie]:
    return {
        name: Tie(
            by_shard=tied_by_shard(plan, name, stages),
            counts=program.inner == 0 or tied_by_inner(plan, stages),
            shard=program.replica,
            shards=shards,
        )
        for name, stages in shared_parameters(plan).items()
    }
