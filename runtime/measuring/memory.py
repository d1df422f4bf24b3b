"""Measured bytes of a step on one rank, by the categories of the Ledger (`peak_memory`) and at once (`Allocated`).

activations   peak bytes of storages that autograd keeps for backward (`SavedTensors`), but parameters and buffers
workspace     peak bytes of everything alive, less what the other categories hold (CUDA only: its allocator counts)
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial, wraps

import torch
from torch import nn
from torch._guards import active_fake_mode
from torch._ops import OpOverload
from torch.autograd.graph import saved_tensors_hooks
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.utils import _pytree

from placer.plans.ledger import MemoryBytes
from placer.runtime.distributed.tensors import local_part
from placer.runtime.observer import OpWatch
from placer.runtime.stages.stage import StageModule


def local_bytes(tensors: Iterable[torch.Tensor]) -> int:
    """Bytes that `tensors` hold on this rank: a sharded one counts its own shard, a storage counts once."""
    seen: dict[int, int] = {}
    for tensor in tensors:
        storage = local_part(tensor).untyped_storage()
        seen[storage._cdata] = storage.nbytes()
    return sum(seen.values())


class SavedTensors:
    """Bytes that autograd keeps for backward: `alive` now, `peak` since the start. Each storage counts once.

    Use `with saved.watching():` around the step. Storages of `known` tensors (parameters, buffers) are not counted.
    """

    def __init__(self, known: Iterable[torch.Tensor]) -> None:
        # A storage's own address, not that of its bytes: those of fake tensors have none.
        self._apart = {local_part(tensor).untyped_storage()._cdata for tensor in known}
        self._holders: dict[int, int] = {}
        self.alive = 0
        self.peak = 0

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Count what is saved by operations of the body."""
        with saved_tensors_hooks(self._pack, _unpack):
            yield

    def leave_out(self, tensor: torch.Tensor) -> None:
        """Do not count the storage of `tensor`: a gathered parameter's, whose bytes come and go."""
        self._apart.add(tensor.untyped_storage()._cdata)

    def _pack(self, tensor: torch.Tensor) -> _Kept:
        # An output of the op itself would hold the op that holds it: nothing of either would go without a backward
        # that gives up the graph, and a backward in two parts keeps it.
        kept = _Kept(tensor=tensor.detach())
        storage = tensor.untyped_storage()
        address, size = storage._cdata, storage.nbytes()
        if size and address not in self._apart:
            self._hold(address, size)
            weakref.finalize(kept, self._release, address, size)
        return kept

    def _hold(self, address: int, size: int) -> None:
        holders = self._holders.get(address, 0)
        self._holders[address] = holders + 1
        if not holders:
            self.alive += size
            self.peak = max(self.peak, self.alive)

    def _release(self, address: int, size: int) -> None:
        self._holders[address] -= 1
        if not self._holders[address]:
            del self._holders[address]
            self.alive -= size


@dataclass(slots=True, weakref_slot=True)
class _Kept:
    """A saved tensor whose end of life is seen."""

    tensor: torch.Tensor


def _unpack(kept: _Kept) -> torch.Tensor:
    return kept.tensor


class Gathered:
    """What FSDP2 holds beside the shards while `stages` run: peak bytes of gathered parameters in use, which `saved`
    leaves out, and of gradients, whole ones between microbatches included.

    FSDP2 puts the gathered parameter into its module for the time it is there, and the sharded one, a DTensor,
    otherwise; the gathered one keeps its gradient while several microbatches add up.
    """

    def __init__(self, stages: Iterable[StageModule], saved: SavedTensors) -> None:
        self._stages = tuple(s for s in stages if any(isinstance(p, DTensor) for p in s.parameters()))
        self._sharded = tuple(parameter for stage in self._stages for parameter in stage.parameters())
        self._saved = saved
        self._seen: dict[int, torch.Tensor] = {}
        self.parameters = 0
        self.gradients = 0

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Look before every block's forward, when it is gathered."""
        with ExitStack() as hooks:
            for stage in self._stages:
                for block in stage.blocks:
                    hooks.callback(block.register_forward_pre_hook(self._look).remove)
            yield

    def look_at_gradients(self) -> None:
        """To be called after a backward: shards and whole ones together."""
        held = (*self._sharded, *self._seen.values())
        gradients = (p.grad for p in held if p.grad is not None)
        self.gradients = max(self.gradients, local_bytes((*gradients, *self._adding_up())))

    def _adding_up(self) -> Iterator[torch.Tensor]:
        """What FSDP2 adds up in another type than the parameters'."""
        for module in (module for stage in self._stages for module in stage.modules()):
            group = module._get_fsdp_state()._fsdp_param_group if isinstance(module, FSDPModule) else None
            for parameter in () if group is None else group.fsdp_params:
                if parameter.unsharded_accumulated_grad is not None:
                    yield parameter.unsharded_accumulated_grad

    def _look(self, module: nn.Module, args: object) -> None:
        whole = [p for stage in self._stages for p in stage.parameters() if p.dim() and not isinstance(p, DTensor)]
        for parameter in whole:
            self._seen[id(parameter)] = parameter
            self._saved.leave_out(parameter)
        self.parameters = max(self.parameters, local_bytes(whole))


class Allocated(OpWatch):
    """Bytes alive now and at most, of the tensors `held` from the beginning, of `lasting`, which no op may show before
    it is written, and of all that ops make meanwhile: `with Allocated(held) as allocated`, then `allocated.peak`.

    Each storage counts from the op that makes it until nobody holds it, whatever it is for, as an allocator without
    slack would count. It slows every op, so one step is enough. FSDP2 gives up and takes back the memory of storages it
    keeps, which no op shows: their own `resize_` is watched.
    """

    def __init__(self, held: Iterable[torch.Tensor], lasting: Iterable[torch.UntypedStorage] = ()) -> None:
        super().__init__()
        self._sizes: dict[int, int] = {}
        self._seen: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        self._resize = torch.UntypedStorage.resize_
        self._fake: object = None
        self.alive = 0
        self.peak = 0
        self._count((*_storages(held), *lasting))

    def __enter__(self) -> Allocated:
        self._fake = active_fake_mode()
        torch.UntypedStorage.resize_ = self._resizing()  # type: ignore[method-assign, assignment]
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *raised: object) -> None:
        torch.UntypedStorage.resize_ = self._resize  # type: ignore[method-assign]
        super().__exit__(*raised)  # type: ignore[no-untyped-call]

    def op(self, func: OpOverload, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        """Run the op and count what it gives."""
        made = func(*args, **kwargs)
        # DTensor finds out shapes on fake tensors of its own, which take no memory.
        if active_fake_mode() is self._fake:
            leaves = (leaf for leaf in _pytree.tree_leaves(made) if isinstance(leaf, torch.Tensor))
            self._count(_storages(leaves))
        return made

    def _count(self, storages: Iterable[torch.UntypedStorage]) -> None:
        for storage in storages:
            key = id(storage)
            if key not in self._seen:
                self._seen[key] = weakref.ref(storage, partial(self._gone, key))
                self._set(key, storage.nbytes())

    def _set(self, key: int, size: int) -> None:
        self.alive += size - self._sizes.get(key, 0)
        self._sizes[key] = size
        self.peak = max(self.peak, self.alive)

    def _gone(self, key: int, reference: object) -> None:
        self._seen.pop(key, None)
        self.alive -= self._sizes.pop(key, 0)

    def _resizing(self) -> Callable[[torch.UntypedStorage, int], object]:
        """`resize_` of storages, seen."""
        original = self._resize

        @wraps(original)
        def resize(storage: torch.UntypedStorage, size: int) -> object:
            done = original(storage, size)
            if id(storage) in self._seen:
                self._set(id(storage), storage.nbytes())
            return done

        return resize


def _storages(tensors: Iterable[torch.Tensor]) -> Iterator[torch.UntypedStorage]:
    for tensor in tensors:
        yield (tensor._local_tensor if isinstance(tensor, DTensor) else tensor).untyped_storage()


def peak_memory(
    *,
    parameters: Iterable[torch.Tensor],
    buffers: Iterable[torch.Tensor],
    gradients: int,
    optimizer: Iterable[torch.Tensor],
    activations: int,
    gathered: int,
    keeps_gathered: bool,
    device: torch.device,
    alive: int,
) -> MemoryBytes:
    """Peak bytes of this rank. `gradients`, `activations` and `gathered` are peaks in bytes, tensors are counted here.

    keeps_gathered: gathered parameters stay from forward to backward, and count as parameters. alive: the most that was
    alive at once; a GPU's allocator says that itself.
    """
    known = MemoryBytes(
        parameters=local_bytes(parameters) + keeps_gathered * gathered,
        communication=0 if keeps_gathered else gathered,
        buffers=local_bytes(buffers),
        gradients=gradients,
        optimizer=local_bytes(optimizer),
        activations=activations,
        at_once=alive,
    )
    if device.type != "cuda":
        return known
    allocated = torch.cuda.max_memory_allocated(device)
    # Of the device itself, as its context and libraries are no torch's; what other processes hold there is in it.
    free, total = torch.cuda.mem_get_info(device)
    held = max(torch.cuda.max_memory_reserved(device), total - free)
    return replace(
        known,
        workspace=max(0, allocated - sum(known.categories.values())),
        overhead=max(0, held - allocated),
        at_once=max(allocated, held),
    )
