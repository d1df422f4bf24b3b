"""What mpirun starts for the tests of MPI as a backend: `python mpi_ranks.py NAME FOLDER`."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch
from torch import distributed as dist

from placer.runtime.distributed.mpi.process_group import NAME, register
from placer.runtime.distributed.mpi.started import told_as_torchrun_tells

LIMIT_SECONDS = 20.0
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.uint8)
SUM, LARGEST = dist.ReduceOp.SUM, dist.ReduceOp.MAX
Did = list[torch.Tensor]


def drawn(rank: int, dtype: torch.dtype, *shape: int) -> torch.Tensor:
    """Whole numbers below 16: their sums are exact in every type and order."""
    return torch.randint(0, 16, shape, generator=torch.Generator().manual_seed(rank)).to(dtype)


def all_reduced(group: dist.ProcessGroup, own: torch.Tensor) -> Did:
    both = own.clone(), own.clone()
    dist.all_reduce(both[0], group=group)
    dist.all_reduce(both[1], LARGEST, group=group)
    return list(both)


def without_gaps(group: dist.ProcessGroup, own: torch.Tensor) -> Did:
    found = own.clone().t()
    dist.all_reduce(found, group=group)
    return [found]


def waited_for_later(group: dist.ProcessGroup, own: torch.Tensor) -> Did:
    many = [own + turn for turn in range(4)]
    works = [dist.all_reduce(one, group=group, async_op=True) for one in many]
    for work in reversed(works):
        assert work is not None
        work.wait()
    return many


def reduced(group: dist.ProcessGroup, own: torch.Tensor) -> Did:
    found = own.clone()
    dist.reduce(found, 1, group=group)
    return [found] if dist.get_rank() == 1 else []


def broadcast(group: dist.ProcessGroup, own: torch.Tensor) -> Did:
    found = own.clone()
    dist.broadcast(found, 1, group=group)
    return [found]


def gathered(group: dist.ProcessGroup, own: torch.Tensor) -> Did:
    size = dist.get_world_size()
    found = [torch.empty_like(own) for _ in range(size)]
    dist.all_gather(found, own, group=group)
    at_root = [torch.empty_like(own) for _ in range(size)] if dist.get_rank() == 0 else []
    dist.gather(own, at_root or None, 0, group=group)
    return [*found, *at_root]


def scattered(group: dist.ProcessGroup, own: torch.Tensor) -> Did:
    given = [own + rank for rank in range(dist.get_world_size())] if dist.get_rank() == 0 else None
    found = torch.empty_like(own)
    dist.scatter(found, given, 0, group=group)
    return [found]


def in_one(group: dist.ProcessGroup, own: torch.Tensor) -> Did:
    size = dist.get_world_size()
    together, part = own.new_empty(size * len(own), own.shape[1]), own.new_empty(len(own), own.shape[1])
    gather, scatter = (getattr(dist, new, None) or getattr(dist, old) for new, old in NAMES)
    gather(together, own, group=group)
    scatter(part, torch.cat([own + rank for rank in range(size)]), group=group)
    return [together, part]


# As torch 2.13 and as 2.11 calls them.
NAMES = (("all_gather_single", "all_gather_into_tensor"), ("reduce_scatter_single", "reduce_scatter_tensor"))


def exchanged(group: dist.ProcessGroup, own: torch.Tensor) -> Did:
    """Each its own number of rows to and from each."""
    size, rank = dist.get_world_size(), dist.get_rank()
    sent, received = [rank + to for to in range(size)], [rank + source for source in range(size)]
    given, found = own.new_zeros(sum(sent), 3) + rank, own.new_empty(sum(received), 3)
    dist.all_to_all_single(found, given, received, sent, group=group)
    return [found]


def passed_on(group: dist.ProcessGroup, own: torch.Tensor) -> Did:
    """A message to everyone and from everyone before any is waited for."""
    rank, size = dist.get_rank(), dist.get_world_size()
    others = [other for other in range(size) if other != rank]
    rooms = [torch.empty_like(own) for _ in others]
    works = [dist.isend(own, other, group=group, tag=7) for other in others]
    works += [dist.irecv(room, other, group=group, tag=7) for room, other in zip(rooms, others, strict=True)]
    for work in works:
        assert work is not None
        work.wait()
    return rooms


CALLS: tuple[Callable[[dist.ProcessGroup, torch.Tensor], Did], ...] = (
    all_reduced, without_gaps, waited_for_later, reduced, broadcast, gathered, scattered, in_one, exchanged, passed_on,
)  # fmt: skip


def same_as_gloo() -> None:
    """Every call by both backends on the same numbers."""
    rank, limit = dist.get_rank(), timedelta(seconds=60)
    gloo, mpi = (dist.new_group(backend=name, timeout=limit) for name in ("gloo", NAME))
    part = dist.new_group([0, 2], backend=NAME, timeout=limit)
    for dtype in DTYPES:
        for call in CALLS:
            if call is exchanged and dtype in (torch.bfloat16, torch.float16):
                continue  # gloo exchanges none of these
            own = drawn(rank, dtype, 5, 4)
            for one, other in zip(call(mpi, own), call(gloo, own), strict=True):
                assert torch.equal(one, other), (call.__name__, dtype, one, other)
    if rank in (0, 2):
        found = drawn(rank, torch.float32, 3)
        dist.all_reduce(found, group=part)
        assert torch.equal(found, drawn(0, torch.float32, 3) + drawn(2, torch.float32, 3))
    print(f"rank {rank}: the same", flush=True)


def killed() -> None:
    """The last rank dies where the others wait for it."""
    if dist.get_rank() == dist.get_world_size() - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(torch.ones(2**20))


def late() -> None:
    """The last rank never comes to a sum."""
    if dist.get_rank() == dist.get_world_size() - 1:
        time.sleep(3600)
    dist.all_reduce(torch.ones(2**20))


def main(name: str, folder: str) -> None:
    told_as_torchrun_tells()
    register()
    torch.set_num_threads(1)
    world = {"rank": int(os.environ["RANK"]), "world_size": int(os.environ["WORLD_SIZE"])}
    limit = timedelta(seconds=LIMIT_SECONDS if name == "late" else 300)
    dist.init_process_group(NAME, init_method=f"file://{Path(folder, 'store')}", timeout=limit, **world)  # type: ignore[arg-type]
    {"same_as_gloo": same_as_gloo, "killed": killed, "late": late}[name]()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
