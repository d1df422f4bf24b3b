"""load(plan): this rank's stage cut from the model as for placer's own engine, given to DeepSpeed."""

from __future__ import annotations

from torch import nn

from placer import legality
from placer.plans import Plan
from placer.runtime.assemble import prepared_model, require_linear
from placer.runtime.assembly import Assembly
from placer.runtime.captured import captured
from placer.runtime.deepspeed.limits import require_runnable
from placer.runtime.deepspeed.pipeline import PipelineRun
from placer.runtime.deepspeed.run import DeepSpeedRun, Own
from placer.runtime.deepspeed.zero import ZeroRun
from placer.runtime.groups import TIMEOUT_SECONDS, device_of, join
from placer.runtime.labels import class_weights, labels_of
from placer.runtime.lowering import Axis


def load(plan: Plan, model: nn.Module | None = None, *, timeout_seconds: float = TIMEOUT_SECONDS) -> DeepSpeedRun:
    """The run of this process's rank on DeepSpeed's engine; `model` as for `placer.runtime.load`.

    Raises IllegalPlanError naming what DeepSpeed cannot run, UsageError where it is not installed, and what
    `placer.runtime.load` raises.
    """
    legality.require(plan)
    require_runnable(plan)
    rank = join(plan, timeout_seconds)
    device = device_of(plan, rank)
    source = prepared_model(plan, model, device)
    cut = captured(plan, source).cut(plan, source)
    require_linear(plan, cut)
    replicas = plan.stages[0].replicas
    index, replica = divmod(rank, replicas)
    made = Assembly(
        plan=plan, rank=rank, device=device, model=source, cut=cut, axis=Axis(1, 0), timeout_seconds=timeout_seconds
    )
    stage = made.bare_stages((index,))[index]
    own = Own(
        plan=plan,
        rank=rank,
        replica=replica,
        device=device,
        counts=cut.rewrites.counts,
        weights=class_weights(cut),
        labels=labels_of(cut),
    )
    return ZeroRun(own, stage, cut.loss) if len(plan.stages) == 1 else PipelineRun(own, index, stage, cut.loss)
