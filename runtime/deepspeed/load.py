"""load(plan): this rank's stage cut from the model as for placer's own engine, given to DeepSpeed."""

from __future__ import annotations

from torch import nn

from placer import legality
from placer.plans.plan import Plan
from placer.runtime.deepspeed.limits import require_runnable
from placer.runtime.deepspeed.pipeline import PipelineRun
from placer.runtime.deepspeed.run import DeepSpeedRun
from placer.runtime.deepspeed.zero import ZeroRun
from placer.runtime.distributed.world import TIMEOUT_SECONDS, device_of, join
from placer.runtime.executor.load import require_loss
from placer.runtime.executor.rank_builder import RankModel
from placer.runtime.stages.captured_model import CapturedModel, captured
from placer.runtime.stages.microbatch import BatchSplit
from placer.runtime.weights.meta_model import meta_model


def load(
    plan: Plan,
    model: nn.Module | None = None,
    *,
    weights: str = "",
    capture: CapturedModel | None = None,
    timeout_seconds: float = TIMEOUT_SECONDS,
) -> DeepSpeedRun:
    """The run of this process's rank on DeepSpeed's engine; `model`, `weights`, `capture` as for `placer.runtime.load`.

    Raises IllegalPlanError naming what DeepSpeed cannot run, UsageError where it is not installed, and what
    `placer.runtime.load` raises.
    """
    legality.require(plan)
    require_runnable(plan)
    rank = join(plan, timeout_seconds)
    device = device_of(plan, rank)
    source = meta_model(plan, model, device, weights)
    cut = (capture or captured(plan, source.model)).cut(plan, source.model)
    replicas = plan.stages[0].replicas
    index, replica = divmod(rank, replicas)
    require_loss(plan, cut)
    rank_model = RankModel.of(plan, source, cut, rank=rank, device=device)
    stage = rank_model.stages((index,))[index]
    batch_split = BatchSplit.of(plan, cut, rank_model.weights.whole, position=0, replica=replica, device=device)
    if len(plan.stages) == 1:
        return ZeroRun(batch_split, stage, cut.loss)
    return PipelineRun(batch_split, index, stage, cut.loss)
