"""Seconds of messages between pairs of processes and of all-reduces over all, by size."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
import torch.distributed as dist

from placer.cluster.calibrate.lockstep import HURRY, Together

SIZES = (1 << 12, 1 << 16, 1 << 19, 1 << 22, 1 << 24)


def messages(together: Together) -> tuple[tuple[float, float], ...]:
    """(bytes, seconds one way) of a ping-pong in pairs, all pairs at once; empty for a rank without a partner."""
    if together.size < 2:
        return ()
    together.progress("messages")
    partner = together.rank ^ 1
    found = []
    for size in SIZES:
        buffer = torch.ones(size // 4, device=together.device)
        alone = partner >= together.size
        seconds = _repeated(together, (lambda: None) if alone else _ping_pong(together.rank, partner, buffer))
        found.append((float(size), seconds / 2))
    return () if partner >= together.size else tuple(found)


def all_reduces(together: Together) -> tuple[tuple[float, float], ...]:
    """(bytes, seconds) of an all-reduce over all processes."""
    if together.size < 2:
        return ()
    together.progress("all-reduce")
    found = []
    for size in SIZES:
        buffer = torch.zeros(size // 4, device=together.device)
        found.append((float(size), _repeated(together, lambda buffer=buffer: dist.all_reduce(buffer))))  # type: ignore[misc]
    return tuple(found)


def _ping_pong(rank: int, partner: int, buffer: torch.Tensor) -> Callable[[], None]:
    """One message there and one back."""

    def there_and_back() -> None:
        if rank < partner:
            dist.send(buffer, partner)
            dist.recv(buffer, partner)
        else:
            dist.recv(buffer, partner)
            dist.send(buffer, partner)

    return there_and_back


def _repeated(together: Together, action: Callable[[], object], window: float = 0.15) -> float:
    """Seconds per call; all ranks call equally often, since each call needs its partners."""
    for _ in range(2):
        action()
    together.synchronize()
    calls, spent, batch = 0, 0.0, 3
    enough = 0.0 if together.later_than(HURRY) else window
    while calls == 0 or (spent < enough and calls < 2000):
        dist.barrier()
        begun = time.perf_counter()
        for _ in range(batch):
            action()
        together.synchronize()
        spent = together.slowest(spent + time.perf_counter() - begun)
        calls += batch
        batch = max(1, min(500, int(calls * (window - spent) / max(spent, 1e-9))))
    return spent / calls
