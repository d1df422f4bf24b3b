"""Sums of gradients by gloo and by MPI: seconds of an all-reduce of so many bytes, in the same processes, in turns.

    python -m examples.measured.backends                    2 processes
    python -m examples.measured.backends --processes 4

Needs placer-planner[mpi] and an MPI with its mpirun, which starts the processes. Both are torch.distributed's
all_reduce, over a group of each backend; `MPI itself` is MPI_Allreduce without torch. Rounds take turns, so that what
else the machine does falls on all alike; the median of all calls is told, with where half of them lie.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory

import torch
from torch import distributed as dist

from placer.errors import require_extra
from placer.runtime.distributed.mpi.started import INSTALL, UNASKED, mpirun, told_as_torchrun_tells

BYTES = (2**12, 2**16, 2**20, 2**23, 2**25)
ROUNDS, CALLS = 7, 5
LIMIT = timedelta(seconds=120)
MIB = 2**20


def ways() -> dict[str, Callable[[torch.Tensor], object]]:
    """Each way to sum a tensor in place; all ranks call it."""
    from placer.runtime.distributed.mpi.process_group import NAME

    mpi = require_extra("mpi", "mpi4py.MPI")
    gloo, over_mpi = (dist.new_group(backend=name, timeout=LIMIT) for name in ("gloo", NAME))
    return {
        "gloo": lambda tensor: dist.all_reduce(tensor, group=gloo),
        "MPI": lambda tensor: dist.all_reduce(tensor, group=over_mpi),
        "MPI itself": lambda tensor: mpi.COMM_WORLD.Allreduce(mpi.IN_PLACE, tensor.numpy()),
    }


def measured(size: int) -> dict[str, list[float]]:
    """Seconds of each call of each way on float32 of `size` bytes."""
    found: dict[str, list[float]] = {}
    tensor = torch.zeros(size // 4)
    order = list(ways().items())
    for turn in range(ROUNDS + 1):
        for name, sum_over_all in (*order[turn % len(order) :], *order[: turn % len(order)]):
            for _ in range(CALLS):
                dist.barrier()
                began = time.perf_counter()
                sum_over_all(tensor)
                if turn:  # the first round is for buffers and connections
                    found.setdefault(name, []).append(time.perf_counter() - began)
    return found


def rank(store: str) -> None:
    """What mpirun starts."""
    told_as_torchrun_tells()
    from placer.runtime.distributed.mpi.process_group import register

    torch.set_num_threads(1)
    register()
    own, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=own, world_size=size, timeout=LIMIT)
    for count in BYTES:
        for name, seconds in measured(count).items():
            if own == 0:
                low, _, high = quantiles(seconds, n=4)
                per_second = count / median(seconds) / MIB
                print(
                    f"{size:>9}  {count:>10}  {name:12}{1e3 * median(seconds):>10.3f}  "
                    f"{f'{1e3 * low:.3f} - {1e3 * high:.3f}':>20}  {per_second:>10.0f}",
                    flush=True,
                )
    dist.destroy_process_group()


def main(arguments: Sequence[str] | None = None) -> int:
    """Start the processes; their exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=2, help="how many; 2 if not given")
    asked = parser.parse_args(arguments)
    if asked.processes < 2:
        parser.error(f"--processes is {asked.processes}; a sum needs at least 2")
    require_extra("mpi", "mpi4py")
    if not mpirun():
        print(f"no mpirun beside this Python or on the PATH; {INSTALL}", file=sys.stderr)
        return 2
    print(f"processes  {'bytes':>10}  {'by':12}{'ms':>10}  {'half of them within':>20}  {'MiB/s':>10}", flush=True)
    with TemporaryDirectory() as folder:
        program = f"from {__spec__.name} import rank; rank({str(Path(folder, 'store'))!r})"
        command = [mpirun(), "-n", str(asked.processes), sys.executable, "-c", program]
        environment = {"OMP_NUM_THREADS": "1", **UNASKED, **os.environ}
        return subprocess.run(command, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
