"""Measured seconds and bytes of one step on one rank, by the categories of the Ledger.

In: the interpreter's instructions, wrapped in `clock.during(category)`; nested measurements are taken out of the outer
one, so that the categories of a step and `other` add up to its wall time. Out: `Seconds`, and with `Memory` the peak
`MemoryBytes`:

    activations   peak bytes of storages that autograd keeps for backward (`SavedTensors`), but parameters and buffers
    workspace     peak bytes of everything alive, less what the other categories hold (CUDA only: its allocator counts)
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields

import torch
from torch.autograd.graph import saved_tensors_hooks

from placer.plans.ledger import MemoryBytes, Seconds
from placer.runtime.distributed.dtensors import local_part
from placer.runtime.observer import Category


def synchronizer(device: torch.device) -> Callable[[], None]:
    """What makes the clock wait for the device; does nothing for CPUs, whose ops return when they are done."""
    if device.type != "cuda":
        return lambda: None
    return lambda: torch.cuda.synchronize(device)


class Clock:
    """Seconds of one step by category. `synchronize` runs at each boundary (a GPU's kernels outlast their launch)."""

    def __init__(self, synchronize: Callable[[], None] = lambda: None) -> None:
        self._synchronize = synchronize
        self._spent: dict[Category, float] = {}
        self._inner = [0.0]
        self._issued: tuple[int, float] | None = None
        self._began = time.perf_counter()

    def start(self) -> None:
        """Begin a step: forget the last one."""
        self._synchronize()
        self._spent, self._inner, self._issued = {}, [0.0], None
        self._began = time.perf_counter()

    @contextmanager
    def during(self, category: Category) -> Iterator[None]:
        """Count the time of the body under `category`, without what nested calls count themselves."""
        self._synchronize()
        began = time.perf_counter()
        self._inner.append(0.0)
        try:
            yield
        finally:
            self._synchronize()
            whole = time.perf_counter() - began
            depth = len(self._inner)
            own = whole - self._inner.pop()
            self._inner[-1] += whole
            waited = min(own, self._waited(depth))
            self._spend(category, own - waited)
            self._spend("reduction", waited)

    def reduces(self) -> None:
        """A reduction that runs beside the innermost body was issued: what follows the last one there waits for it."""
        self._issued = len(self._inner), time.perf_counter()

    def _waited(self, depth: int) -> float:
        """Seconds since the last reduction was issued in a body so deep, which ends now."""
        if self._issued is None or self._issued[0] != depth:
            return 0.0
        began, self._issued = self._issued[1], None
        return time.perf_counter() - began

    def _spend(self, category: Category, seconds: float) -> None:
        self._spent[category] = self._spent.get(category, 0.0) + seconds

    def stop(self) -> Seconds:
        """The step's seconds; what no category claimed is `other`."""
        self._synchronize()
        whole = time.perf_counter() - self._began
        return Seconds(**self._spent, other=max(0.0, whole - sum(self._spent.values())))


def median_seconds(steps: Iterable[Seconds]) -> Seconds:
    """Per category the mean of the middle half of the steps, so that one disturbed step does not show."""
    measured = tuple(steps)
    return Seconds(**{field.name: _middle([getattr(s, field.name) for s in measured]) for field in fields(Seconds)})


def _middle(values: list[float]) -> float:
    if not values:
        return 0.0
    ordered = sorted(values)
    cut = len(ordered) // 4
    kept = ordered[cut : len(ordered) - cut]
    return sum(kept) / len(kept)


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
    reserved = torch.cuda.max_memory_reserved(device)
    return MemoryBytes(
        parameters=known.parameters,
        buffers=known.buffers,
        gradients=known.gradients,
        optimizer=known.optimizer,
        activations=known.activations,
        communication=known.communication,
        workspace=max(0, allocated - sum(known.categories.values())),
        overhead=max(0, reserved - allocated),
        at_once=max(allocated, reserved),
    )
