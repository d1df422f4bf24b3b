"""described(ranks): what processes reach between and within emulated nodes, from which every machine is described.

Of the first machines, whose nodes have two devices and equal links, the least of some repetitions of each:

    latency          half of there and back, of nothing
    wire             the share of a link's rate that a large message reaches
    core_seconds     of a byte between two processes of a node
    collective_share of that the share that a ring of two reaches, which sends and receives at once
    setup            what an all_reduce of nothing takes beside its messages
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
import torch.distributed as dist

from examples.measured.emulated.description import MEGABIT, Measured
from examples.measured.emulated.ranks import Ranks
from examples.measured.emulated.tasks import measured_device

SMALL, LARGE = 8, 2**22
SMALL_TIMES, LARGE_TIMES = 50, 4
SECONDS = 300.0


def described(ranks: Ranks) -> Measured:
    """Measure on the first two nodes."""
    machines = ranks.emulated.machines
    first, second = machines.node_of.index(0), machines.node_of.index(1)
    rate = min(node.megabits for node in machines.nodes[:2]) * MEGABIT
    empty = _least(ranks, [first, second], message_seconds, SMALL, SMALL_TIMES)
    message = _least(ranks, [first, second], message_seconds, LARGE, LARGE_TIMES) - empty
    inside = _least(ranks, [first, first + 1], message_seconds, LARGE, LARGE_TIMES) - empty
    empty_ring = _least(ranks, [first, second], sum_seconds, SMALL, SMALL_TIMES)
    ring = _least(ranks, [first, second], sum_seconds, LARGE, LARGE_TIMES) - empty_ring
    return Measured(
        device=ranks.run([first], measured_device, timeout=SECONDS)[0],
        latency=empty,
        wire=LARGE / message / rate,
        core_seconds=inside / LARGE,
        collective_share=message / ring,
        setup=max(0.0, empty_ring - 2 * empty),
    )


def message_seconds(size: int, times: int) -> tuple[float, ...]:
    """Seconds one way of a message of `size` bytes between two ranks."""
    rank, buffer = dist.get_rank(), torch.zeros(size, dtype=torch.uint8)

    def there_and_back() -> None:
        for turn in (0, 1):
            if rank == turn:
                dist.send(buffer, 1 - rank)
            else:
                dist.recv(buffer, 1 - rank)

    return tuple(seconds / 2 for seconds in _timed(there_and_back, times))


def sum_seconds(size: int, times: int) -> tuple[float, ...]:
    """Seconds of an all_reduce of `size` bytes."""
    buffer = torch.zeros(size // 8, dtype=torch.float64)
    return _timed(lambda: dist.all_reduce(buffer), times)


def _timed(action: Callable[[], object], times: int) -> tuple[float, ...]:
    action()
    found = []
    for _ in range(times):
        dist.barrier()
        began = time.perf_counter()
        action()
        found.append(time.perf_counter() - began)
    return tuple(found)


def _least(
    ranks: Ranks, devices: list[int], task: Callable[[int, int], tuple[float, ...]], size: int, times: int
) -> float:
    """The least of some repetitions, each of which takes as long as the slowest rank."""
    every = ranks.run(devices, task, size, times, timeout=SECONDS)
    return min(max(one) for one in zip(*every, strict=True))
