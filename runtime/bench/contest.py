"""compared(kind, size): the same plan run by placer and by hand on two processes of this machine, taking turns.

Round by round every contestant does `steps` steps, in an order that turns by one each round; a turn takes as long as
its slowest rank. What the machine does besides falls on all of them alike.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Protocol

import torch
from torch import distributed as dist

from placer.plans.plan import Plan
from placer.runtime.bench.megatron import Distributed, Written
from placer.runtime.bench.model import Decoder, Size, batch, decoder
from placer.runtime.bench.plans import RANKS, plan_of
from placer.runtime.bench.torch_baselines import AutoPiped, Batch, Bucketed, Piped, Wrapped
from placer.runtime.distributed.rank_pool import RankPool
from placer.runtime.executor.load import load
from placer.runtime.stages.captured_model import CapturedModel, captured

OURS = "placer"
TURN_SECONDS = 600.0
# Batches that take turns: making one is no part of a step.
BATCHES = 4


class Contestant(Protocol):
    """Something that trains."""

    def step(self, batch: Batch) -> float:
        """One training step; the loss as this rank knows it."""
        ...


Maker = Callable[[Decoder, Size], Contestant]
#: Of each kind: the contestants beside placer. The first is what a person writes, the others are torch's wrappers.
KINDS: dict[str, dict[str, Maker]] = {
    "data": {"by hand": Bucketed, "DDP": Wrapped},
    "pipeline": {"by hand": Piped, "pipeline()": AutoPiped},
    "tensor": {"by hand": Written, "DTensor": Distributed},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """One contestant's turns: seconds of a step by the clock, and of all ranks' processors.

    losses: of the first steps, as rank 0 knows them.
    """

    name: str
    seconds: tuple[float, ...]
    processor_seconds: tuple[float, ...]
    losses: tuple[float, ...]

    @property
    def step_seconds(self) -> float:
        """The median by the clock."""
        return median(self.seconds)

    @property
    def step_processor_seconds(self) -> float:
        """The median of processors."""
        return median(self.processor_seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """What came of one kind at one size, placer first."""

    kind: str
    size: Size
    times: tuple[Times, ...]


def compared(kind: str, size: Size, *, rounds: int, steps: int) -> Compared:
    """Run all contestants of a kind. Raises ExecutionError where a rank fails."""
    model = decoder(size)
    plan = plan_of(kind, model, size)
    capture = captured(plan, model)
    contest = partial(_turns, kind=kind, size=size, rounds=rounds, steps=steps, plan=plan)
    _CAPTURES[kind, size] = capture
    with RankPool(RANKS) as pool:
        times = pool.run(RANKS, contest, timeout=TURN_SECONDS)[0]
    return Compared(kind=kind, size=size, times=times)


# What ranks know by being forked: a capture cannot be sent.
_CAPTURES: dict[tuple[str, Size], CapturedModel] = {}


def _turns(*, kind: str, size: Size, rounds: int, steps: int, plan: Plan) -> tuple[Times, ...]:
    contestants: dict[str, Contestant] = {
        OURS: load(plan, model=decoder(size), capture=_CAPTURES[kind, size]),
        **{name: make(decoder(size), size) for name, make in KINDS[kind].items()},
    }
    batches = [batch(size, step) for step in range(BATCHES)]
    losses = {name: tuple(one.step(b) for b in batches) for name, one in contestants.items()}
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in contestants}
    names = list(contestants)
    gc.collect()
    gc.disable()
    try:
        for turn in range(rounds):
            for name in names[turn % len(names) :] + names[: turn % len(names)]:
                found[name].append(_turn(contestants[name], batches, steps))
    finally:
        gc.enable()
    return tuple(
        Times(
            name=name,
            seconds=tuple(wall for wall, _ in turns),
            processor_seconds=tuple(processor for _, processor in turns),
            losses=losses[name],
        )
        for name, turns in found.items()
    )


def _turn(contestant: Contestant, batches: list[Batch], steps: int) -> tuple[float, float]:
    """Seconds of a step: the slowest rank's by the clock, and all ranks' of processors."""
    dist.barrier()
    wall, processor = time.perf_counter(), time.process_time()
    for step in range(steps):
        contestant.step(batches[step % BATCHES])
    spent = torch.tensor([time.perf_counter() - wall, time.process_time() - processor])
    every = [torch.zeros_like(spent) for _ in range(RANKS)]
    dist.all_gather(every, spent)
    each = torch.stack(every)
    return float(each[:, 0].max()) / steps, float(each[:, 1].sum()) / steps
