"""apply_threads(): this rank's threads and cores as `placer.cluster.threads` chooses them for the ranks of its host.

Nothing is changed where the user has chosen: OMP_NUM_THREADS as torchrun was started with (torchrun gives its ranks 1
by itself, which is nobody's choice), or a rank whose cores are not torchrun's (`torchrun --numa-binding`, `taskset`).
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import torch

from placer.cluster.calibrate.machine import usable_cores
from placer.cluster.threads import HostThreads, Topology, host_threads, topology


def apply_threads(found: Topology | None = None) -> HostThreads | None:
    """What was applied to this rank of a host whose ranks all compute on processors; None where the user has chosen."""
    if chosen_by_user() or "LOCAL_WORLD_SIZE" not in os.environ:
        return None
    chosen = host_threads(found or topology(), int(os.environ["LOCAL_WORLD_SIZE"]), usable_cores())
    own = chosen.processes[int(os.environ["LOCAL_RANK"])]
    torch.set_num_threads(own.threads)
    with suppress(RuntimeError):  # ops have run already: torch then keeps the threads it has
        torch.set_num_interop_threads(own.inter_op)
    if own.cores:
        os.sched_setaffinity(0, own.cores)
    return chosen


def chosen_by_user(parent: int | None = None) -> bool:
    """Whether who started the ranks has said how many threads or which cores they get."""
    pid = parent or os.getppid()
    try:
        began = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:  # not Linux, or not ours to read: what is said stays
        return "OMP_NUM_THREADS" in os.environ
    if any(line.startswith(b"OMP_NUM_THREADS=") for line in began):
        return True
    with suppress(OSError):
        return os.sched_getaffinity(0) != os.sched_getaffinity(pid)
    return False
