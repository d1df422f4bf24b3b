"""Tensors as ranks hold and pass them on: this rank's part of a sharded one, all its rows, many as one, mixed sums.

`DTensor.full_tensor` gathers as `all_rows` does, by a redistribution, which takes some milliseconds of Python for each
tensor; pickling, sending and unpickling tensors one by one takes most of a millisecond each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import distributed as dist
from torch.distributed.tensor import DTensor, Shard

from placer.program.mixed_allreduce import SumRoute, route_steps
from placer.program.reductions import ServerRoute
from placer.runtime.distributed.served_sum import served_sum

GroupOf = Callable[[tuple[int, ...]], dist.ProcessGroup]

SIXTEEN_BITS = frozenset({torch.bfloat16, torch.float16})


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's part of a sharded tensor; any other as it is."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def summed_in(dtype: torch.dtype) -> torch.dtype:
    """The type in which gradients of `dtype` are summed, as `placer.program.buckets.summed_in` has it."""
    return torch.float32 if dtype in SIXTEEN_BITS else dtype


def has_gaps(tensor: torch.Tensor) -> bool:
    """Whether the elements do not fill their memory from the first to the last: what is made like it has no gaps."""
    return tensor.stride() != torch.empty_like(tensor, device="meta").stride()


def all_rows(tensor: torch.Tensor) -> torch.Tensor:
    """The whole of a sharded tensor, which all ranks of its mesh ask for in the same order; any other as it is."""
    if not isinstance(tensor, DTensor):
        return tensor
    mesh, placements = tensor.device_mesh, tuple(tensor.placements)
    if mesh.ndim != 1 or placements != (Shard(0),):
        return tensor.full_tensor()
    own = tensor.to_local().detach()
    rows = -(-tensor.shape[0] // mesh.size())  # of each rank, as `torch.chunk` divides; the last ones may have fewer
    padded = own.new_zeros((rows, *tensor.shape[1:]))
    if own.numel():
        padded[: own.shape[0]] = own
    pieces = [torch.empty_like(padded) for _ in range(mesh.size())]
    dist.all_gather(pieces, padded, group=mesh.get_group())
    return torch.cat(pieces)[: tensor.shape[0]]


def flat(tensors: list[torch.Tensor]) -> torch.Tensor:
    """The elements of `tensors` in one."""
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])


@torch.no_grad()
def spread(source: torch.Tensor, into: list[torch.Tensor]) -> None:
    """Give `into` the elements of `source`, as `flat` put them there."""
    offset = 0
    for tensor in into:
        tensor.copy_(source[offset : offset + tensor.numel()].view_as(tensor))
        offset += tensor.numel()


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """Tensors by name as one of each dtype. places: name, dtype and shape of each; flat: the elements by dtype."""

    places: tuple[tuple[str, torch.dtype, tuple[int, ...]], ...]
    flat: Mapping[torch.dtype, torch.Tensor]


def packed(tensors: Mapping[str, torch.Tensor]) -> Packed:
    """Tensors of one device put behind each other."""
    lines: dict[torch.dtype, list[torch.Tensor]] = {}
    for tensor in tensors.values():
        lines.setdefault(tensor.dtype, []).append(tensor)
    return Packed(
        places=tuple((name, tensor.dtype, tuple(tensor.shape)) for name, tensor in tensors.items()),
        flat={dtype: flat(line) for dtype, line in lines.items()},
    )


def unpacked(given: Packed) -> dict[str, torch.Tensor]:
    """The tensors again, by name in the same order, each in memory of its own."""
    found = {name: given.flat[dtype].new_empty(shape) for name, dtype, shape in given.places}
    for dtype, elements in given.flat.items():
        spread(elements, [found[name] for name, of, _ in given.places if of == dtype])
    return found


def sum_over(
    tensor: torch.Tensor, way: SumRoute | ServerRoute, ranks: tuple[int, ...], rank: int, group_of: GroupOf
) -> None:
    """Sum `tensor`, contiguous, over `ranks` in place, step by step as `way` says; all of them call it. Messages go
    over their group.

    A rank on a CPU has its tensor on the host already; an accelerator's goes through a copy there. Nothing here asks
    which of both a device is: ranks with tensors of processes in both roles do the same.
    """
    everyone, host = group_of(ranks), tensor
    if isinstance(way, ServerRoute):
        served_sum(tensor, way, rank, everyone)
        return
    for step in route_steps(way, rank):
        if step.do == "copy out":
            host = on_host(tensor)
        elif step.do == "copy in":
            tensor.copy_(host)
        elif step.do == "add":
            tensor.add_(_received(tensor, step.ranks[0], everyone))
        elif step.do == "send":
            dist.send(host, step.ranks[0], group=everyone)
        elif step.do == "receive":
            dist.recv(host, step.ranks[0], group=everyone)
        elif step.do == "reduce":
            dist.reduce(host, step.ranks[0], group=group_of(step.ranks))
        elif step.do == "broadcast":
            dist.broadcast(host, step.ranks[0], group=group_of(step.ranks))
        else:
            dist.all_reduce(tensor if step.on == "device" else host, group=group_of(step.ranks))


def on_host(tensor: torch.Tensor) -> torch.Tensor:
    """A copy in memory of the host, from which a GPU copies fast."""
    return _room(tensor).copy_(tensor)


def _received(like: torch.Tensor, source: int, group: dist.ProcessGroup) -> torch.Tensor:
    """What rank `source` sends, on the device of `like`."""
    host = _room(like)
    dist.recv(host, source, group=group)
    return torch.empty_like(like).copy_(host)


def _room(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=tensor.is_cuda)


def on_device(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """`tensor` on `device`; to a GPU from page-locked memory, which takes a third of the time and does not stop the
    host."""
    if device.type != "cuda" or tensor.is_cuda:
        return tensor.to(device)
    return (tensor if tensor.is_pinned() else tensor.pin_memory()).to(device, non_blocking=True)
