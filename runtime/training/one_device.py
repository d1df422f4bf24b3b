"""The losses that one device gets in the steps of a run: rank 0 computes them, the others wait for it."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta

import torch.distributed as dist

from placer.plans.plan import Plan
from placer.runtime.data import Batch
from placer.runtime.distributed.world import World
from placer.runtime.stages.captured_model import captured
from placer.runtime.verify.handed import eager_run
from placer.runtime.weights.meta_model import prepared_model

# One device does the work of all; waiting for it is no fault. A rank that dies is still seen at once.
WAITING_SECONDS = 24 * 3600.0


def one_device_losses(
    plan: Plan, world: World, steps: Iterable[tuple[float, Batch]], weights: str = ""
) -> tuple[float, ...]:
    """The loss of each step (its learning rate, its global batch) from the plan's initial weights, or from the folder
    `weights`, on every rank."""
    group = dist.new_group(backend="gloo", timeout=timedelta(seconds=WAITING_SECONDS))
    box: list[tuple[float, ...]] = [()]
    if world.first:
        box = [tuple(_losses(plan, world, steps, weights))]
    dist.broadcast_object_list(box, src=0, group=group)
    return box[0]


def _losses(plan: Plan, world: World, steps: Iterable[tuple[float, Batch]], weights: str) -> Iterable[float]:
    model = prepared_model(plan, None, world.device, weights)
    judge = eager_run(plan, model, captured(plan, model))
    for rate, batch in steps:
        judge.set_learning_rate(rate)
        yield judge.step(batch).loss
