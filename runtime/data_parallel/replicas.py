"""The replicas of a stage: how its state is held and its gradients are summed.

    Replica       parameters on every replica; placer reduces the gradients (several stages), or there is one replica
    DdpReplica    the same by DistributedDataParallel: one-stage plans that reduce beside the backward
    FsdpReplica   FSDP2: every block a unit, and the stage for what several blocks read; sharding `gradients` keeps
                  parameters gathered between forward and backward. It divides along dim 0: parameters without dims
                  or elements stay whole, and placer reduces their gradients

Where a step may bring some weights no gradient (`hears`), engines listen to which it reaches, and take zeros for the
others: DDP is brought to all of them, FSDP2 is given the zeros (`reached`) and led through its units
(`unit_order`).

Losses are shares of the global mean, so gradients are SUMMED: DDP by a communication hook that does not divide,
FSDP2 by a divide factor of 1. Only the backward of a stage's last microbatch reduces.

Gradients of 16 bits are summed in float32, over microbatches and over replicas. Autograd and FSDP2 (by its
reduce_dtype) add them up so by themselves. DDP wants gradients of the type of its parameters: what earlier microbatches
added up is put aside before the last backward, and added to it bucket by bucket.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterable
from typing import cast

import torch
from torch import distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from placer.errors import UsageError
from placer.plans.plan import Sharding
from placer.plans.plan import Stage as PlannedStage
from placer.program.buckets import divides
from placer.program.mixed_allreduce import SumRoute
from placer.program.reductions import ServerRoute
from placer.runtime.data_parallel.bucket_hook import BucketHook
from placer.runtime.data_parallel.compression import CompressedReduceScatter
from placer.runtime.data_parallel.reached import Heard, coming_to, fill_in, gathered, shards
from placer.runtime.data_parallel.unit_order import UnitCord
from placer.runtime.distributed.tensors import GroupOf, summed_in
from placer.runtime.observer import Observer
from placer.runtime.stages.pass_context import PassContext
from placer.runtime.stages.recompute import Tensors
from placer.runtime.stages.stage import BlockModule, StageModule


class Replica:
    """A stage as held by this rank: with all of its state, and nothing reduced by itself."""

    #: Whether ranks wait for each other in its passes.
    grouped = False

    def __init__(self, stage: StageModule) -> None:
        self.stage = stage
        #: What an engine that fills in zeros was brought a gradient of.
        self.heard = Heard()

    def forward(self, mode: PassContext, *tensors: torch.Tensor) -> Tensors:
        """The stage's outputs."""
        return cast(Tensors, self.stage(mode, *tensors))

    def cord(self) -> torch.Tensor | None:
        """What the backward of the last forward has to begin with too, so that ranks meet in it whatever gradients
        there are."""
        return None

    def before_backward(self, last: bool) -> None:
        """To be called before each backward; `last` says that it completes the stage's gradients."""

    def settle(self) -> None:
        """Do between the first two steps what the engine would do in the second: it reads what it hears from others."""

    @property
    def lasting(self) -> tuple[torch.UntypedStorage, ...]:
        """What an engine holds from step to step beside the stage's state."""
        return ()

    def reshard(self) -> None:
        """Give up what forwards gathered that no backward follows."""


class DdpReplica(Replica):
    """A stage under DistributedDataParallel, which reduces during the last backward."""

    grouped = True

    def __init__(
        self, stage: StageModule, group: dist.ProcessGroup, bucket_bytes: int, hook: BucketHook, *, hears: bool
    ) -> None:
        super().__init__(stage)
        self._hears = hears
        if hears:
            self.heard.listen(stage.own_parameters())
        # Autograd gives dims of size 1 other strides than DDP's buckets do; both say the same.
        warnings.filterwarnings("ignore", message="Grad strides do not match bucket view strides")
        self._engine = DistributedDataParallel(
            stage,
            process_group=group,
            bucket_cap_mb=bucket_bytes / 2**20,
            init_sync=False,
            **_no_buffer_sync(),  # type: ignore[arg-type]  # one of two names, both bool
        )
        self._hook = hook
        self._engine.register_comm_hook(None, hook.hook)

    def forward(self, mode: PassContext, *tensors: torch.Tensor) -> Tensors:
        """The stage's outputs; DDP is armed by `before_backward`, so that forwards may run ahead (gpipe)."""
        with self._engine.no_sync():
            made = cast(Tensors, self._engine(mode, *tensors))
        if not self._hears or not torch.is_grad_enabled():
            return made
        weights = (one for one in self.stage.parameters() if one.requires_grad)
        return (*made[:-1], coming_to(made[-1], weights))  # a stage that is the whole model gives the loss last

    def before_backward(self, last: bool) -> None:
        """Arm the reducer before the backward that completes the gradients."""
        self._engine.require_backward_grad_sync = last
        if last:
            self._put_aside()
            self._engine.reducer.prepare_for_backward([])
        else:
            add_up_wide(self.stage.parameters())

    def _put_aside(self) -> None:
        """Have the last backward make gradients of the type of the parameters; those before it wait for it."""
        for parameter in self.stage.parameters():
            if parameter.requires_grad and parameter.grad_dtype != parameter.dtype:
                if parameter.grad is not None:
                    self._hook.earlier[parameter] = parameter.grad
                parameter.grad = None
                parameter.grad_dtype = parameter.dtype

    def settle(self) -> None:
        """Fill the buckets in the order in which gradients came in the first step."""
        self._engine.reducer._rebuild_buckets()

    @property
    def lasting(self) -> tuple[torch.UntypedStorage, ...]:
        """The buckets that it last reduced and still has."""
        found = (reference() for reference in self._hook.buckets.values())
        return tuple(storage for storage in found if storage is not None)


class FsdpReplica(Replica):
    """A stage under FSDP2."""

    grouped = True

    def __init__(
        self, stage: StageModule, mesh: DeviceMesh, sharding: Sharding, compressed: torch.dtype | None, *,
        device: torch.device, hears: bool,
    ) -> None:  # fmt: skip
        super().__init__(stage)
        self._compressed = compressed
        self._sharded: list[FSDPModule] = []
        gives_up = sharding == "parameters"
        # A block may return a view, of which torch 2.13 warns as an in-place write into it would lose a hook. There is
        # none: `cut` lets an op that writes a value of another block write a copy.
        warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")
        for block in stage.blocks:
            if any(divides(parameter.shape) for parameter in block.parameters()):
                self._shard(block, mesh, gives_up)
                cast(BlockModule, block).gives_up = gives_up
        # The root is used by several blocks: it stays gathered from forward to backward.
        self._root = self._shard(stage, mesh, False)
        self._shards = shards(stage, self._sharded) if hears else {}
        if hears:
            self.heard.listen({name: one for name, one in stage.own_parameters().items() if name not in self._shards})
            for module in self._sharded:
                fill_in(module)
        self._cord = UnitCord(self._sharded, self._root, device) if hears else None

    def cord(self) -> torch.Tensor | None:
        """That along all units."""
        return None if self._cord is None else self._cord.cut()

    def before_backward(self, last: bool) -> None:
        """Scatter gradients in the last backward only."""
        self.heard.listen(gathered(self._shards))
        self._root.set_requires_gradient_sync(last)
        self._root.set_is_last_backward(last)

    def reshard(self) -> None:
        """Give up the parameters that forwards gathered: the stage's are its shards again."""
        for module in self._sharded:
            module.reshard()

    def _shard(self, module: nn.Module, mesh: DeviceMesh, gives_up: bool) -> FSDPModule:
        whole = {parameter for parameter in module.parameters() if not divides(parameter.shape)}
        # Those of blocks that are sharded already are no longer the root's.
        own = (one for one in module.parameters() if divides(one.shape) and not isinstance(one, DTensor))
        types = {one.dtype for one in own if one.requires_grad}
        if len(types) > 1:
            raise UsageError(
                f"a block has parameters of {' and of '.join(sorted(map(str, types)))}, which FSDP2 does not shard "
                "together; plan with --pin shard=optimizer or none"
            )
        policy = MixedPrecisionPolicy(reduce_dtype=next(map(summed_in, types), None), cast_forward_inputs=False)
        fully_shard(module, mesh=mesh, reshard_after_forward=gives_up, ignored_params=whole, mp_policy=policy)
        sharded = cast(FSDPModule, module)
        sharded.set_gradient_divide_factor(1.0)
        # Without this FSDP2 uses a pre-multiplied sum, which gloo does not have.
        sharded.set_force_sum_reduction_for_comms(True)
        if self._compressed is not None:
            sharded.set_custom_reduce_scatter(CompressedReduceScatter(self._compressed))
        self._sharded.append(sharded)
        return sharded


def replica(
    stage: StageModule,
    planned: PlannedStage,
    ranks: tuple[int, ...],
    group_of: GroupOf,
    observer: Observer,
    *,
    device: torch.device,
    bucket_bytes: int | None,
    way: SumRoute | ServerRoute | None,
    compressed: torch.dtype | None = None,
    hears: bool = False,
) -> Replica:
    """`stage` held as its plan says by `ranks`; in buckets of `bucket_bytes` DDP sums its gradients in this way, unless
    that is None. compressed: the 16 bits to which gradients are cast while they are summed, None: they are not. hears:
    whether a step may bring some weights no gradient."""
    if len(ranks) == 1:
        return Replica(stage)
    group = group_of(ranks)
    if planned.by_fsdp:
        mesh = DeviceMesh.from_group(group, device.type, mesh=list(ranks))
        return FsdpReplica(stage, mesh, planned.sharding, compressed, device=device, hears=hears)
    # DDP refuses a module of which it would have nothing to sum.
    if bucket_bytes is None or not any(parameter.requires_grad for parameter in stage.parameters()):
        return Replica(stage)
    hook = BucketHook(ranks=ranks, way=way, group_of=group_of, observer=observer, compressed=compressed)
    return DdpReplica(stage, group, bucket_bytes, hook, hears=hears)


def add_up_wide(parameters: Iterable[nn.Parameter]) -> None:
    """Have autograd add the gradients of 16 bits of these up in float32; FSDP2 sees to those of its shards."""
    for parameter in parameters:
        if parameter.requires_grad and not isinstance(parameter, DTensor):
            parameter.grad_dtype = summed_in(parameter.dtype)


def _no_buffer_sync() -> dict[str, bool]:
    """Buffers are replica 0's by definition and are sent when they are read (evaluation, checkpoints).

    torch 2.13 renames the argument and warns about the old name.
    """
    known = inspect.signature(DistributedDataParallel.__init__).parameters
    return {"forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers": False}
