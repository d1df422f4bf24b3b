"""Copies between a GPU and its host, and the host's own memory, all devices at work at once."""

from __future__ import annotations

import time
from statistics import median

import torch
import torch.distributed as dist

from placer.cluster.calibrate.result import HostCopies
from placer.cluster.calibrate.timings import HURRY, Together

SIZES = (1 << 12, 1 << 20, 1 << 24, 1 << 26)
# Of each of three tensors in the host's memory, larger than its caches together with the others.
HOST_TENSOR = 64 << 20
REPEATED = 5


def host_copies(together: Together) -> HostCopies | None:
    """Seconds by bytes of a copy from page-locked memory, of the slower direction, and bytes/second of the memory under
    all ranks; None on a processor, and where time is up."""
    if not together.on_gpu or together.later_than(HURRY):
        return None
    together.progress("copies between host and device")
    return HostCopies(
        copies=tuple((float(size), _copied(together, size)) for size in SIZES),
        memory_bandwidth=together.size * _host_bandwidth(together),
    )


def _copied(together: Together, size: int) -> float:
    """Seconds of a copy, to the device or back."""
    there = torch.empty(size, dtype=torch.uint8, device=together.device)
    here = torch.zeros(size, dtype=torch.uint8, pin_memory=True)
    return max(
        together.seconds(lambda: there.copy_(here, non_blocking=True)),
        together.seconds(lambda: here.copy_(there, non_blocking=True)),
    )


def _host_bandwidth(together: Together) -> float:
    """Bytes/second of one rank that sums two tensors on the host while all do, of the slowest."""
    a, b, out = (torch.ones(HOST_TENSOR // 4) for _ in range(3))
    torch.add(a, b, out=out)
    dist.barrier()
    seconds = []
    for _ in range(REPEATED):
        begun = time.perf_counter()
        torch.add(a, b, out=out)
        seconds.append(time.perf_counter() - begun)
    return 3 * HOST_TENSOR / together.slowest(median(seconds))
