"""What the ranks of an emulated cluster are asked to do, each function by every rank of a world."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

import torch
import torch.distributed as dist

from examples.measured.emulated.system import brake, release
from examples.parity.cases import capture_of
from placer.cluster import calibrate
from placer.cluster.cluster import Device
from placer.errors import IllegalPlanError, UsageError
from placer.plans.plan import Plan
from placer.runtime import VerifyReport, load, verify
from placer.runtime.stages.captured_model import run_dtype
from placer.runtime.verify.handed import eager_run
from placer.runtime.weights.meta_model import prepared_model
from placer.tracer import random_batch

VERIFIED_STEPS = 2
# Steps that set up buffers and buckets, and one in which what the quota had saved up is used.
FIRST_STEPS = 1
SIZES = (1 << 14, 1 << 17, 1 << 20, 1 << 21)
REPEATS = 3
Points = tuple[tuple[float, float], ...]
Brakes = Sequence[tuple[Path, float]]


def measured_device() -> Device:
    """This device without brakes."""
    return calibrate.calibrate(1).devices[0]


def prepare(plan: Plan) -> None:
    """Capture the model of a plan, once."""
    capture_of(plan)


def verified(plan: Plan) -> VerifyReport | str:
    """The plan's steps held to one device's; the reason where the runtime refuses the plan."""
    try:
        return verify(plan, VERIFIED_STEPS, capture=capture_of(plan))
    except (IllegalPlanError, UsageError) as error:
        return str(error)


def step_seconds(plan: Plan, brakes: Brakes, steps: int) -> tuple[float, ...]:
    """Seconds of each of `steps` steps, every device with its brakes on."""
    executor, batch = load(plan, capture=capture_of(plan)), _batch(plan, 0)
    for _ in range(FIRST_STEPS):
        executor.step(batch)
    with _Braked(*brakes[executor.rank]):
        for _ in range(1 + steps):
            executor.step(batch)
    return tuple(executor.timings[-steps:])


def one_device_losses(plan: Plan, steps: int) -> tuple[float, ...]:
    """What `placer execute` gets on one device with its synthetic data of seed 0."""
    model = prepared_model(plan, None, torch.device("cpu"))
    judge = eager_run(plan, model, capture_of(plan))
    return tuple(judge.step(_batch(plan, step)).loss for step in range(steps))


def message_seconds(brakes: Brakes) -> Points:
    """(bytes, seconds one way) between two ranks."""
    rank = dist.get_rank()

    def there_and_back(buffer: torch.Tensor) -> None:
        for turn in (0, 1):
            if rank == turn:
                dist.send(buffer, 1 - rank)
            else:
                dist.recv(buffer, 1 - rank)

    with _Braked(*brakes[rank]):
        return tuple((size, seconds / 2) for size, seconds in _timed(there_and_back))


def all_reduce_seconds(brakes: Brakes) -> Points:
    """(bytes, seconds) of an all-reduce over the ranks."""
    with _Braked(*brakes[dist.get_rank()]):
        return _timed(lambda buffer: dist.all_reduce(buffer))


def _batch(plan: Plan, seed: int) -> dict[str, torch.Tensor]:
    batch = random_batch(plan.graph, plan.rows, seed)
    return {name: tensor.to(run_dtype(plan, tensor.dtype)) for name, tensor in batch.items()}


def _timed(action: Callable[[torch.Tensor], object]) -> Points:
    found = []
    for size in SIZES:
        buffer, seconds = torch.zeros(size // 8, dtype=torch.float64), []
        action(buffer)
        for _ in range(REPEATS):
            dist.barrier()
            began = time.perf_counter()
            action(buffer)
            seconds.append(time.perf_counter() - began)
        found.append((float(size), median(seconds)))
    return tuple(found)


class _Braked:
    """This process's control group with a share of a core, in the body only."""

    def __init__(self, group: Path, share: float) -> None:
        self._group, self._share = group, share

    def __enter__(self) -> None:
        _together()
        brake(self._group, self._share)

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            _together()
        release(self._group)


def _together() -> None:
    """Wait for the other ranks, if there are others."""
    if dist.is_initialized():
        dist.barrier()
