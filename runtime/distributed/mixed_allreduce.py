"""Sums of one tensor per rank over accelerators and CPU workers together, step by step as the program says.

A rank on a CPU has its tensor on the host already; an accelerator's goes through a copy there, pinned where the device
is a GPU. Nothing here asks which of both a device is: ranks with tensors of processes in both roles do the same.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import distributed as dist

from placer.program.mixed_allreduce import SumRoute, route_steps

GroupOf = Callable[[tuple[int, ...]], dist.ProcessGroup]


def sum_over(tensor: torch.Tensor, way: SumRoute, ranks: tuple[int, ...], rank: int, group_of: GroupOf) -> None:
    """Sum `tensor`, contiguous, over `ranks` in place, by `way`; all of them call it. Messages go over their group."""
    everyone, host = group_of(ranks), tensor
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
