"""Measuring in step: every rank starts a timing at the same moment and all agree how long to go on."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median
from typing import TypeVar

import torch
import torch.distributed as dist

Value = TypeVar("Value")
# Seconds after which every timing is taken once instead of three times, and after which only what is needed is timed.
PATIENCE = 10.0
HURRY = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Together:
    """The ranks that measure, seen from one of them."""

    rank: int
    size: int
    device: torch.device

    begun: float = field(default_factory=time.monotonic)

    def seconds(self, action: Callable[[], object], *, window: float = 0.08) -> float:
        """Seconds per call of `action` while all ranks call it: the median over some windows of wall time.

        Windows, not best times: where processes share cores a single call may have had a core to itself. A crowded
        machine gets fewer windows, so that the whole stays short.
        """
        action()
        self.synchronize()
        found = []
        for _ in range(1 if self.later_than(PATIENCE) else 3):
            dist.barrier()
            found.append(self._window(action, window))
        return median(found)

    def later_than(self, seconds: float) -> bool:
        """Whether any rank has been at it for longer; all ranks get the same answer."""
        return self.slowest(time.monotonic() - self.begun) > seconds

    def _window(self, action: Callable[[], object], window: float) -> float:
        calls, batch, begun = 0, 1, time.perf_counter()
        while True:
            for _ in range(batch):
                action()
            self.synchronize()
            calls += batch
            elapsed = time.perf_counter() - begun
            if elapsed >= window:
                return elapsed / calls
            batch = max(1, min(calls, int(calls * (window - elapsed) / elapsed)))

    def synchronize(self) -> None:
        """Wait for the device."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def slowest(self, seconds: float) -> float:
        """The largest of the ranks' values, the same on all."""
        value = torch.tensor([seconds], dtype=torch.float64, device=self.device)
        dist.all_reduce(value, op=dist.ReduceOp.MAX)
        return float(value.item())

    def gather(self, value: Value) -> list[Value]:
        """Every rank's value."""
        found: list[Value | None] = [None] * self.size
        dist.all_gather_object(found, value)
        return [item for item in found if item is not None]

    def progress(self, text: str) -> None:
        """Tell what is measured now."""
        if self.rank == 0:
            print("progress", text, flush=True)
