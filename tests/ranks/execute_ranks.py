"""What the ranks of the launch tests run: `python -m execute_ranks DEED`, under torchrun, two of them."""

from __future__ import annotations

import os
import signal
import sys
import time

import torch
import torch.distributed as dist

from execute_plans import tiny_plan, two_rank_plan
from placer import tracer
from placer.errors import PlacerError, UsageError
from placer.runtime import load
from placer.runtime.distributed.world import World, join, joined

GROUP_TIMEOUT_SECONDS = 15.0


def fine(world: World) -> None:
    for _ in range(3):
        dist.all_reduce(torch.ones(4))
    print(f"rank {world.rank} is done")


def killed(world: World) -> None:
    dist.barrier()  # in the middle of a run: a rank that is told to end while it still joins has nothing to tell
    if world.rank == 1:
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(torch.ones(4))


def fails(world: World) -> None:
    if world.rank == 1:
        raise ValueError("a shelf fell over")
    dist.all_reduce(torch.ones(4))


def is_told(world: World) -> None:
    """Rank 1 is sent the signal that is named."""
    dist.barrier()
    if world.rank == 1:
        os.kill(os.getpid(), getattr(signal, sys.argv[2]))
        time.sleep(3600)
    dist.all_reduce(torch.ones(4))


def hangs(world: World) -> None:
    if world.rank == 1:
        time.sleep(3600)
    dist.all_reduce(torch.ones(4))


def sleeps(world: World) -> None:
    os.write(1, f"pid {os.getpid()}\n".encode())  # at once: two unbuffered prints would mix their lines
    dist.barrier()
    time.sleep(3600)


DEEDS = {deed.__name__: deed for deed in (fine, killed, fails, is_told, hangs, sleeps)}


def joins_again() -> None:
    """As people do who load one plan after another in one process; one rank comes later than the other."""
    for times in range(2):
        time.sleep(times * int(os.environ["RANK"]))
        rank = join(two_rank_plan(), timeout_seconds=GROUP_TIMEOUT_SECONDS)
        total = torch.ones(4)
        dist.all_reduce(total)
        dist.barrier()
        dist.destroy_process_group()
        print(f"rank {rank} sums {total[0]:.0f}", flush=True)


def goes_on_after_close() -> None:
    """As a loop does that closes its executor too early: what each call then says."""
    executor = load(tiny_plan(2, 1))
    batch = tracer.random_batch(executor.plan.graph, executor.plan.rows, 0)
    executor.step(batch)
    executor.close()
    calls = (lambda: executor.step(batch), lambda: executor.evaluate(batch), executor.full_state_dict)
    for call in calls:
        try:
            print(f"gives {call()}", flush=True)
        except UsageError as error:
            print(error, flush=True)


ALONE = {deed.__name__: deed for deed in (joins_again, goes_on_after_close)}


def main() -> None:
    if sys.argv[1] in ALONE:
        ALONE[sys.argv[1]]()
        return
    try:
        with joined(two_rank_plan(), timeout_seconds=GROUP_TIMEOUT_SECONDS) as world:
            DEEDS[sys.argv[1]](world)
    except PlacerError as error:
        print(f"placer: {error}", file=sys.stderr)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
